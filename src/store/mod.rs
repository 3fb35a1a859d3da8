//! Where the last id given away of every tag (`max_id`) and the tags' definitions are durable.
//!
//! The contract of a [`SegmentStore`]: a grant is one atomic, durable statement; a range exists for the caller only after
//! `Ok`. An error of kind [`Kind::Unknown`] may or may not have happened in the store, so its range is never used. Every
//! statement that writes `max_id` writes a fresh nonce, which is what makes a late copy of a tail return harmless.

use std::future::Future;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

use crate::ids::{IdRange, MAX_ID, TagName};
use crate::limit::{self, Rate};

pub mod anchored;
mod changes;
mod columns;
mod config;
#[cfg(test)]
mod conformance;
mod dsn;
pub mod identity;
pub mod memory;
pub mod mysql;
pub mod network;
pub mod nonce;
pub mod postgres;
#[cfg(test)]
pub(crate) mod servers;
pub mod sqlite;
mod warm;
pub mod witness;

pub use witness::{Mode as WitnessMode, Witness};

pub use config::{Config, Dialect, Durability};
pub use dsn::{Server, Tls};

/// How many tails go back in one transaction at most: one sync for all of them, and no long hold of the writer.
pub const MAX_TAILS: usize = 500;

/// The longest description of a tag, in bytes.
pub const MAX_DESCRIPTION_LEN: usize = 255;

/// A boxed future: what the methods of a trait object return.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Which engine makes the ids of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Ranges leased from the store: increasing per tag.
    Segment,
    /// Time, worker id and sequence: no store on the way.
    Snowflake,
}

impl EngineKind {
    /// The name in SQL, replies, metrics and the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Segment => "segment",
            Self::Snowflake => "snowflake",
        }
    }
}

/// The order that is promised for the ids of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// On one node, a request that starts after another has ended gets a larger id.
    Node,
    /// The same over all nodes.
    Strict,
}

impl Order {
    /// The name in SQL, replies and the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Strict => "strict",
        }
    }
}

/// A tag as its row defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The engine; fixed at creation.
    pub engine: EngineKind,
    /// The promised order; fixed at creation.
    pub order: Order,
    /// How many ids the next grant asks for.
    pub step: u64,
    /// The least the step may adapt to.
    pub min_step: u64,
    /// The most the step may adapt to.
    pub max_step: u64,
    /// The last id the tag may ever give (`MAX`).
    pub id_limit: u64,
    /// Ids per second allowed for the tag on each node; 0: no limit.
    pub qps: u64,
    /// Ids allowed at once above the rate; 0: as many as one second's.
    pub burst: u64,
    /// Whether the tag may probe a store whose breaker is open.
    pub critical: bool,
    /// Free text for people, at most 255 bytes, one line.
    pub description: String,
}

impl Definition {
    /// Checks that the steps are in order, the limit is an id and the rate is one: what every store refuses to write otherwise.
    ///
    /// # Errors
    /// In words, naming the field.
    pub fn validate(&self) -> Result<(), String> {
        let Self { step, min_step, max_step, id_limit, .. } = *self;
        if min_step == 0 || min_step > step || step > max_step || max_step > MAX_ID {
            return Err(format!(
                "MINSTEP {min_step}, STEP {step} and MAXSTEP {max_step} must be at least 1 and in that order"
            ));
        }
        if id_limit == 0 || id_limit > MAX_ID {
            return Err(format!("MAX must be 1 to {MAX_ID}"));
        }
        limit::check(self.qps, self.burst, ["QPS", "BURST"])?;
        if self.description.len() > MAX_DESCRIPTION_LEN || self.description.chars().any(char::is_control) {
            return Err(format!("DESC must be one line of at most {MAX_DESCRIPTION_LEN} bytes"));
        }
        Ok(())
    }

    /// How many ids of the tag each node may give.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        Rate::new(self.qps, self.burst)
    }

    /// The definition with `alteration` made. Who takes the limit away by `QPS 0` alone means its burst, too.
    #[must_use]
    pub fn altered(&self, alteration: &Alteration) -> Self {
        let Alteration { step, min_step, max_step, id_limit, qps, burst, critical, description } = alteration;
        Self {
            engine: self.engine,
            order: self.order,
            step: step.unwrap_or(self.step),
            min_step: min_step.unwrap_or(self.min_step),
            max_step: max_step.unwrap_or(self.max_step),
            id_limit: id_limit.unwrap_or(self.id_limit),
            qps: qps.unwrap_or(self.qps),
            burst: burst.unwrap_or(if *qps == Some(0) { 0 } else { self.burst }),
            critical: critical.unwrap_or(self.critical),
            description: description.clone().unwrap_or_else(|| self.description.clone()),
        }
    }
}

/// A row of the catalogue: the definition and where the tag stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The tag.
    pub tag: TagName,
    /// Its definition.
    pub definition: Definition,
    /// The last id given away; 0: none yet.
    pub max_id: u64,
    /// Later ids are larger than this.
    pub floor: u64,
    /// Whether the tag is retired, for ever.
    pub retired: bool,
    /// Raised by every change of the definition, unique over all tags: what nodes poll.
    pub revision: u64,
}

/// A change of some fields of a definition; `None` leaves a field as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alteration {
    /// `STEP`
    pub step: Option<u64>,
    /// `MINSTEP`
    pub min_step: Option<u64>,
    /// `MAXSTEP`
    pub max_step: Option<u64>,
    /// `MAX`, refused below what is given away
    pub id_limit: Option<u64>,
    /// `QPS`
    pub qps: Option<u64>,
    /// `BURST`
    pub burst: Option<u64>,
    /// `CRITICAL`
    pub critical: Option<bool>,
    /// `DESC`
    pub description: Option<String>,
}

/// A confirmed grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The ids granted. Fewer than asked for only where the tag's `MAX` is near.
    pub range: IdRange,
    /// The nonce this grant wrote beside `max_id`.
    pub nonce: u128,
}

/// The tail of this node's last grant, offered back on a clean stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The tag.
    pub tag: TagName,
    /// The unused ids; its last one is the end of the node's last grant.
    pub unused: IdRange,
    /// The nonce of the node's last grant.
    pub nonce: u128,
}

/// Where `max_id` is durable.
pub trait SegmentStore: Send + Sync + 'static {
    /// The name in metrics and texts, such as `sqlite`.
    fn name(&self) -> &'static str;

    /// Whether other nodes may use the store at the same time.
    fn shared(&self) -> bool;

    /// Gives away the next `count` ids of `tag` (1 or more) in one atomic, durable statement, guarded by the row's own
    /// `retired`, `floor` and limit. Near the limit the last partial range is granted whole.
    ///
    /// # Errors
    /// `Missing`, `Retired`, `Exhausted`, or why the store could not do it.
    fn grant<'a>(&'a self, tag: &'a TagName, count: u64) -> Answer<'a, Grant>;

    /// Takes up to [`MAX_TAILS`] tails back in one transaction, each if nobody was granted anything of its tag since; says
    /// of each in turn whether it was taken. What is beyond that number is not taken. Sent once, never retried.
    ///
    /// # Errors
    /// Why the store could not do it; the ids of all of them are gaps then.
    fn return_tails<'a>(&'a self, tails: &'a [Tail]) -> Answer<'a, Vec<bool>>;

    /// The row of `tag`, or `None`.
    ///
    /// # Errors
    /// Why the store could not do it.
    fn find<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Option<Row>>;

    /// All rows whose revision is above `revision`, by revision; 0 gives all.
    ///
    /// # Errors
    /// Why the store could not do it.
    fn changed_since(&self, revision: u64) -> Answer<'_, Vec<Row>>;

    /// How many rows there are, retired ones included: fewer than known means that rows have vanished.
    ///
    /// # Errors
    /// Why the store could not do it.
    fn count(&self) -> Answer<'_, u64>;

    /// Creates `tag` with `max_id` and floor `start - 1`, unless a row of that name stands; gives the row that stands then
    /// and whether this call made it.
    ///
    /// # Errors
    /// `TooMany` when there are already `most` rows, or why the store could not do it.
    fn create<'a>(
        &'a self,
        tag: &'a TagName,
        definition: &'a Definition,
        start: u64,
        most: u64,
    ) -> Answer<'a, (Row, bool)>;

    /// Changes the named fields; gives the row as it stands then.
    ///
    /// # Errors
    /// `Missing`, `Retired`, `Conflict` (a limit below `max_id`, or steps out of order), or why the store could not do it.
    fn alter<'a>(&'a self, tag: &'a TagName, alteration: &'a Alteration) -> Answer<'a, Row>;

    /// Raises `max_id` and floor to at least `floor`; gives the row as it stands then.
    ///
    /// # Errors
    /// `Missing`, `Retired`, `Conflict` (a floor above the limit), or why the store could not do it.
    fn raise_floor<'a>(&'a self, tag: &'a TagName, floor: u64) -> Answer<'a, Row>;

    /// Retires the tag for ever; again is fine. Gives the row as it stands then.
    ///
    /// # Errors
    /// `Missing`, or why the store could not do it.
    fn retire<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Row>;

    /// Raises every tag's `max_id` and floor by `by`, as after a restore of an older copy; gives how many rows changed.
    ///
    /// # Errors
    /// Why the store could not do it.
    fn raise_all(&self, by: u64) -> Answer<'_, u64>;

    /// Whether a grant could be made now: writes and commits something that means nothing.
    ///
    /// # Errors
    /// Why the store could not do it.
    fn probe(&self) -> Answer<'_, ()>;

    /// What weakens the durability of an acknowledged grant, in words; empty when nothing does.
    ///
    /// # Errors
    /// Why the store could not do it.
    fn durability(&self) -> Answer<'_, Vec<String>>;
}

/// Why a store did not do something, sorted by what the caller should do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct StoreError {
    /// What the caller should do.
    pub kind: Kind,
    /// The word for the cause in metrics, such as `full`; the kind's name where nothing narrower is known.
    pub reason: &'static str,
    /// What happened, in one line without secrets.
    pub text: String,
}

impl StoreError {
    /// An error of `kind` that says `text`.
    pub fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, reason: kind.name(), text: text.into() }
    }

    /// The same error with a narrower word for its cause.
    #[must_use]
    pub fn because(self, reason: &'static str) -> Self {
        Self { reason, ..self }
    }

    /// Whether somebody else held what the statement needed: that tells of a row, not of the store. Stores give such
    /// failures the reason `locked` (a lock that did not come free in time) or `deadlock`.
    #[must_use]
    pub fn held_up(&self) -> bool {
        matches!(self.reason, "locked" | "deadlock")
    }
}

/// Kinds of store errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The row does not exist.
    Missing,
    /// The tag is retired.
    Retired,
    /// The tag has no ids left below its limit.
    Exhausted,
    /// The request contradicts the row.
    Conflict,
    /// There are as many tags as may be.
    TooMany,
    /// Nothing happened and a new attempt may work: busy, locked, connection refused.
    Transient,
    /// It may or may not have happened: whatever it would have given is never used.
    Unknown,
    /// Nothing happened and a retry is useless: full disk, read-only file, corrupt or foreign database, permission.
    Permanent,
}

impl Kind {
    /// The word for it in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Retired => "retired",
            Self::Exhausted => "exhausted",
            Self::Conflict => "conflict",
            Self::TooMany => "too_many",
            Self::Transient => "transient",
            Self::Unknown => "unknown",
            Self::Permanent => "permanent",
        }
    }
}

/// What every store decides alike before it writes.
mod rules {
    use super::{Alteration, Definition, Kind, Row, StoreError};

    /// The `max_id` of a new tag whose first id is `start`.
    pub(super) fn before_start(definition: &Definition, start: u64) -> Result<u64, StoreError> {
        definition.validate().map_err(|text| StoreError::new(Kind::Conflict, text))?;
        let limit = definition.id_limit;
        match start.checked_sub(1) {
            Some(before) if start <= limit => Ok(before),
            _ => Err(StoreError::new(Kind::Conflict, format!("START must be 1 to MAX, which is {limit}"))),
        }
    }

    /// The answer where no tag may be added.
    pub(super) fn too_many(most: u64) -> StoreError {
        StoreError::new(Kind::TooMany, format!("there are {most} tags already, as many as may be"))
    }

    /// The answer where there is no row.
    pub(super) fn missing(tag: &crate::ids::TagName) -> StoreError {
        StoreError::new(Kind::Missing, format!("there is no row for tag {tag}"))
    }

    /// The row, unless its tag is retired.
    pub(super) fn live(row: Row) -> Result<Row, StoreError> {
        if row.retired { Err(StoreError::new(Kind::Retired, format!("tag {} is retired", row.tag))) } else { Ok(row) }
    }

    /// The answer where nothing is left below the limit.
    pub(super) fn exhausted(limit: u64) -> StoreError {
        StoreError::new(Kind::Exhausted, format!("all ids up to its MAX {limit} are given away"))
    }

    /// The row with `alteration` made.
    pub(super) fn altered(row: Row, alteration: &Alteration) -> Result<Row, StoreError> {
        let definition = row.definition.altered(alteration);
        definition.validate().map_err(|text| StoreError::new(Kind::Conflict, text))?;
        if definition.id_limit < row.max_id {
            let text = format!("MAX {} is below {}, the last id given away", definition.id_limit, row.max_id);
            return Err(StoreError::new(Kind::Conflict, text));
        }
        Ok(Row { definition, ..row })
    }

    /// The row with its floor raised.
    pub(super) fn raised(row: Row, floor: u64) -> Result<Row, StoreError> {
        let limit = row.definition.id_limit;
        if floor > limit {
            return Err(StoreError::new(Kind::Conflict, format!("the floor {floor} is above MAX {limit}")));
        }
        Ok(Row { max_id: row.max_id.max(floor), floor: row.floor.max(floor), ..row })
    }
}
