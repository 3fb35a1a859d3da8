//! The two ways of making ids behind one question: so many ids, now.
//!
//! [`Engine::take`] never waits. It hands out ids from memory or says what there is to wait for; the caller waits with its
//! own deadline and asks again. A strict tag has nothing in memory: there, what is waited for are the ids themselves. Ids
//! that were handed out are gone: nothing takes them back.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Boot;
use crate::ids::IdRange;

pub mod segment;
pub mod snowflake;

/// How many ids are asked for, and in which shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// So many separate requests for one id each: any number of them may be served now.
    Singles(u64),
    /// All of them or none, increasing, in as few runs as there are.
    Batch(u64),
    /// All of them or none, as one run of consecutive ids.
    Consecutive(u64),
}

impl Demand {
    /// How many ids are asked for.
    #[must_use]
    pub const fn count(self) -> u64 {
        match self {
            Self::Singles(n) | Self::Batch(n) | Self::Consecutive(n) => n,
        }
    }
}

/// Why fewer ids than asked for were handed out.
#[derive(Debug)]
pub enum Shortage {
    /// More will come: wait, then ask again.
    Later(Later),
    /// Waiting does not help.
    Refused(Refusal),
}

/// What there is to wait for.
#[derive(Debug)]
pub enum Later {
    /// The refill in flight: changes or closes when it has ended, well or badly.
    Refill(tokio::sync::watch::Receiver<u64>),
    /// Time: about so long until the next tick has ids.
    Tick(Duration),
    /// The ids themselves, from a grant that starts after the request has arrived. Not to wait for them skips them.
    Ids(segment::strict::Ticket),
}

/// What came of waiting.
#[derive(Debug, PartialEq, Eq)]
pub enum Waited {
    /// Asking again makes sense now.
    AskAgain,
    /// All the ids, or for [`Demand::Singles`] the first ones: ask again for the rest.
    Ids(IdRange),
    /// Waiting did not help.
    Refused(Refusal),
}

impl Later {
    /// Waits for it.
    pub async fn wait(self) -> Waited {
        match self {
            // A closed channel means that the refill has ended, or that the engine is gone; asking again says which.
            Self::Refill(mut refills) => drop(refills.changed().await),
            Self::Tick(pause) => tokio::time::sleep(pause).await,
            Self::Ids(ticket) => {
                return match ticket.wait().await {
                    segment::gather::Given::Ids(ids) => Waited::Ids(ids),
                    segment::gather::Given::Refused(refusal) => Waited::Refused(refusal),
                };
            }
        }
        Waited::AskAgain
    }
}

/// Why no id was produced. The texts that clients see are made in `command/error.rs`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Waited as long as one may; asking again soon may work.
    #[error("{0}")]
    TryAgain(String),
    /// The store failed and nothing is left in memory.
    #[error("{0}")]
    Backend(String),
    /// No worker id, or no window left.
    #[error("{0}")]
    NoWorker(String),
    /// The boot clock stands still or went back, and the borrowed time is used up.
    #[error("{0}")]
    Clock(String),
    /// The timestamp bits are used up.
    #[error("{0}")]
    Exhausted(String),
    /// A segment tag has fewer ids left than were asked for.
    #[error("no more than {left} ids are left up to MAX {max}")]
    AtMax {
        /// The largest id the tag may have.
        max: u64,
        /// The most ids that the same kind of request could still get here.
        left: u64,
    },
    /// So many at once can never be served; the most that can.
    #[error("at most {0}")]
    TooMany(u64),
    /// The tag is retired.
    #[error("retired")]
    Retired,
}

/// One way of making ids.
#[derive(Clone, Debug)]
pub enum Engine {
    /// Ranges of the store; one object a tag.
    Segment(Arc<segment::Segment>),
    /// Grants of the store, one for all who wait; one object a strict tag.
    Strict(Arc<segment::strict::Strict>),
    /// The node's one generator, shared by all Snowflake tags.
    Snowflake(Arc<snowflake::Snowflake>),
}

impl Engine {
    /// Appends ids to `out`: all of `demand`, or for [`Demand::Singles`] as many as there are.
    ///
    /// # Errors
    /// Why fewer than asked for were appended; for the other demands none were.
    pub fn take(&self, demand: Demand, now: Boot, out: &mut Vec<IdRange>) -> Result<(), Shortage> {
        match self {
            Self::Segment(segment) => segment.take(demand, now, out),
            Self::Strict(strict) => strict.take(demand, now),
            Self::Snowflake(snowflake) => snowflake.take(demand, now, out),
        }
    }

    /// Why what callers wait for has failed so far, where it has: what they are told when they can't wait any longer.
    #[must_use]
    pub fn cause(&self) -> Option<Refusal> {
        match self {
            Self::Segment(segment) => segment.cause(),
            Self::Strict(strict) => strict.cause(),
            Self::Snowflake(_) => None,
        }
    }
}
