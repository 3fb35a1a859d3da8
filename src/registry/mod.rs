//! Where the bound of every worker id is durable, and who owns it.
//!
//! The contract of a [`WorkerRegistry`]: every write is one atomic, durable compare-and-set on the whole bound record,
//! so all writes to a worker id are totally ordered and each starts where its predecessor ended. A bound is only raised
//! and never deleted. Owners are a hint for people and for early reuse; no safety rests on them.

use std::future::Future;
use std::pin::Pin;

use crate::ids::Incarnation;

pub mod anchored;
#[cfg(test)]
mod conformance;
pub mod memory;
pub mod sql;

/// A boxed future: what the methods of a trait object return.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, RegistryError>> + Send + 'a>>;

/// The durable record of one worker id. Guards compare the whole value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bound {
    /// The first timestamp, in Unix milliseconds, that the worker id may not use yet. 0: never used.
    pub hi: u64,
    /// Who wrote it; 0 for the record that `init` made.
    pub incarnation: Incarnation,
    /// How many writes there have been: it makes each write's value unique.
    pub n: u64,
    /// The writer's wall clock at the write, in Unix milliseconds: for people.
    pub wall_ms: u64,
    /// The writer's host name: for people.
    pub host: String,
}

/// The record of a worker id that nobody has used, with the bound `hi`.
#[must_use]
pub fn unclaimed(hi: u64) -> Bound {
    Bound { hi, incarnation: Incarnation(0), n: 0, wall_ms: 0, host: String::new() }
}

/// One worker id as the registry shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// The worker id.
    pub id: u32,
    /// Its bound; `None` when the record is missing, and then the id is never used again.
    pub bound: Option<Bound>,
    /// Who says it is online with it, if anyone.
    pub owner: Option<Owner>,
}

/// Who is online with a worker id: a hint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The owner's incarnation.
    pub incarnation: Incarnation,
    /// The owner's host name.
    pub host: String,
}

/// Whether a compare-and-set took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swap {
    /// It did, durably.
    Done,
    /// The record (or the owner, or the layout) was not the expected one; nothing was written.
    Refused,
}

/// Where bounds and owners of worker ids are durable.
pub trait WorkerRegistry: Send + Sync + 'static {
    /// The name in metrics and texts, such as `sqlite`.
    fn name(&self) -> &'static str;

    /// Whether only this process can be using the registry: then a worker id need not be ripe to be claimed.
    fn exclusive(&self) -> bool;

    /// Whether owners vanish by themselves when they are gone. If not, an owner counts only until its bound has passed,
    /// unless it has released the worker id.
    fn leases(&self) -> bool;

    /// All worker ids of the datacenter, by id.
    ///
    /// # Errors
    /// Why the registry could not do it.
    fn list(&self) -> Answer<'_, Vec<Worker>>;

    /// The bound of one worker id as it stands now; `None` when the record is missing.
    ///
    /// # Errors
    /// Why the registry could not do it.
    fn read(&self, worker: u32) -> Answer<'_, Option<Bound>>;

    /// Claims `worker` if nobody is online with it, its bound is exactly `expected` and the layout is the one this
    /// process started with: `next` becomes the bound and its writer the owner.
    ///
    /// # Errors
    /// `Unknown` when it may have happened, `Unavailable` when it did not.
    fn claim<'a>(&'a self, worker: u32, expected: &'a Bound, next: &'a Bound) -> Answer<'a, Swap>;

    /// Raises the bound of a worker id this process owns, if it is exactly `expected`, and renews the ownership.
    ///
    /// # Errors
    /// `Unknown` when it may have happened, `Unavailable` when it did not.
    fn renew<'a>(&'a self, worker: u32, expected: &'a Bound, next: &'a Bound) -> Answer<'a, Swap>;

    /// Gives up the ownership on a clean stop. The bound stays.
    ///
    /// # Errors
    /// Why the registry could not do it.
    fn release(&self, worker: u32, incarnation: Incarnation) -> Answer<'_, ()>;

    /// Raises every bound to at least `hi` and drops every owner, as after a restore of an older copy with all nodes
    /// stopped; gives how many bounds there are.
    ///
    /// # Errors
    /// Why the registry could not do it.
    fn raise_all(&self, hi: u64) -> Answer<'_, u64>;
}

/// Why a registry did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// It may or may not have happened: read before anything else.
    #[error("{0}")]
    Unknown(String),
    /// Nothing happened; a new attempt may work.
    #[error("{0}")]
    Unavailable(String),
}
