//! What the machine of the worker id ([`super::window`]) hears and says: events in, steps out.
//!
//! An event belongs to what was asked last; a step carries what the hot path and people must learn, and one thing to do
//! next. Plain data, so that a test, a simulator and the shell drive the same machine. Pure.

use std::time::Duration;

use super::timeline::Line;
use crate::clock::{Boot, Wall};
use crate::registry::{Bound, RegistryError, Swap, Worker};

/// What is known at the moment of an event: both clocks, read together, and a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The boot clock.
    pub boot: Boot,
    /// The wall clock.
    pub wall: Wall,
    /// Any 64 random bits.
    pub random: u64,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The machine has been started, or the pause it asked for is over.
    Woken,
    /// The answer to [`Ask::List`].
    Listed(Result<Vec<Worker>, RegistryError>),
    /// The answer to [`Ask::Claim`] or [`Ask::Renew`].
    Swapped(Result<Swap, RegistryError>),
    /// The answer to [`Ask::Read`].
    Read(Result<Option<Bound>, RegistryError>),
    /// The answer to [`Ask::Release`]; an error changes nothing, since the bound protects by itself.
    Released,
    /// The process is about to end. May come in the place of any answer, which is not looked at any more.
    Stop,
}

/// What the shell does next; it then comes back with the event that belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Wait, or until a stop is asked for.
    Pause(Duration),
    /// List all worker ids.
    List,
    /// Claim a worker id.
    Claim {
        /// The worker id.
        worker: u32,
        /// The record that must stand.
        expected: Bound,
        /// The record to write.
        next: Bound,
    },
    /// Read the record of a worker id.
    Read {
        /// The worker id.
        worker: u32,
    },
    /// Raise the bound of the worker id that is held.
    Renew {
        /// The worker id.
        worker: u32,
        /// The record that must stand.
        expected: Bound,
        /// The record to write.
        next: Bound,
    },
    /// Give up the ownership.
    Release {
        /// The worker id.
        worker: u32,
    },
    /// Nothing any more.
    End,
}

/// What the hot path learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// Issue with `worker` in the window `edge_ms .. limit_ms` (Unix milliseconds), after closing what was open before.
    Open {
        /// The worker id.
        worker: u32,
        /// The lower edge of the window.
        edge_ms: u64,
        /// The first moment behind it.
        limit_ms: u64,
    },
    /// The window of the open worker id now ends at `limit_ms`.
    Raise {
        /// The first moment behind it.
        limit_ms: u64,
    },
    /// Time runs along another line.
    Line(Line),
    /// Close what is open. A later `Open` still starts above it.
    Close,
}

/// What people and metrics learn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A claim, or what leads to it, did not work; the text says why.
    NotClaimed(String),
    /// A renewal did not work; the text says why.
    NotRenewed(String),
    /// Another process has claimed the worker id.
    Lost(u32),
    /// The record of the worker id is gone. It is never used again.
    Missing(u32),
    /// The registry has gone back behind what it had confirmed: it was restored, or lost a write.
    Regression {
        /// The worker id.
        worker: u32,
        /// The bound that was confirmed, in Unix milliseconds.
        confirmed_ms: u64,
        /// The bound that stands there now.
        found_ms: u64,
    },
    /// A clock has moved backwards.
    Rollback,
    /// The wall clock is so far (nanoseconds) from logical time that it is not followed.
    Stepped(i64),
    /// The wall clock is back where it is followed.
    StepOver,
}

/// The answer to an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// For the hot path, in order, before anything else is done.
    pub publish: Vec<Publish>,
    /// For people.
    pub notices: Vec<Notice>,
    /// What to do next.
    pub ask: Ask,
}
