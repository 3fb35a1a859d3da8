//! A registry whose work is done on one runtime, whoever asks, and that can be had before its database is open.
//!
//! A connection to a database server belongs to the event loop on which it was opened, and renewals run on a thread with
//! an event loop of its own, which ends before everything else does. So the work runs on the runtime that was there first.
//! And a caller that gives up cancels nothing: what was begun ends.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;

use super::{Answer, Bound, RegistryError, Swap, Worker, WorkerRegistry};
use crate::ids::Incarnation;

/// What is known of a registry before it can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// As [`WorkerRegistry::name`].
    pub name: &'static str,
    /// As [`WorkerRegistry::exclusive`].
    pub exclusive: bool,
    /// As [`WorkerRegistry::leases`].
    pub leases: bool,
}

/// A registry that does its work on one runtime.
pub struct Anchored {
    facts: Facts,
    registry: OnceLock<Arc<dyn WorkerRegistry>>,
    runtime: Handle,
}

impl Anchored {
    /// The registry of these `facts`, whose database is not open yet, working on `runtime`.
    pub fn new(facts: Facts, runtime: Handle) -> Self {
        Self { facts, registry: OnceLock::new(), runtime }
    }

    /// Works with `registry`, whose facts have to be those, from now on. A second one is not taken.
    pub fn open(&self, registry: Arc<dyn WorkerRegistry>) {
        let facts = Facts { name: registry.name(), exclusive: registry.exclusive(), leases: registry.leases() };
        debug_assert_eq!(self.facts, facts, "what was said before is true");
        let _ = self.registry.set(registry);
    }

    fn run<'a, T, F>(&self, work: impl FnOnce(Arc<dyn WorkerRegistry>) -> F) -> Answer<'a, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RegistryError>> + Send + 'static,
    {
        let Some(registry) = self.registry.get() else {
            return Box::pin(async { Err(RegistryError::Unavailable("the database is not open yet".into())) });
        };
        let task = self.runtime.spawn(work(Arc::clone(registry)));
        Box::pin(async move {
            // A task that panicked, or a runtime that ends: what it did is not known.
            task.await.unwrap_or_else(|error| Err(RegistryError::Unknown(format!("broken off: {error}"))))
        })
    }
}

impl WorkerRegistry for Anchored {
    fn name(&self) -> &'static str {
        self.facts.name
    }

    fn exclusive(&self) -> bool {
        self.facts.exclusive
    }

    fn leases(&self) -> bool {
        self.facts.leases
    }

    fn list(&self) -> Answer<'_, Vec<Worker>> {
        self.run(|registry| async move { registry.list().await })
    }

    fn read(&self, worker: u32) -> Answer<'_, Option<Bound>> {
        self.run(move |registry| async move { registry.read(worker).await })
    }

    fn claim<'a>(&'a self, worker: u32, expected: &'a Bound, next: &'a Bound) -> Answer<'a, Swap> {
        let (expected, next) = (expected.clone(), next.clone());
        self.run(move |registry| async move { registry.claim(worker, &expected, &next).await })
    }

    fn renew<'a>(&'a self, worker: u32, expected: &'a Bound, next: &'a Bound) -> Answer<'a, Swap> {
        let (expected, next) = (expected.clone(), next.clone());
        self.run(move |registry| async move { registry.renew(worker, &expected, &next).await })
    }

    fn release(&self, worker: u32, incarnation: Incarnation) -> Answer<'_, ()> {
        self.run(move |registry| async move { registry.release(worker, incarnation).await })
    }

    fn raise_all(&self, hi: u64) -> Answer<'_, u64> {
        self.run(move |registry| async move { registry.raise_all(hi).await })
    }
}
