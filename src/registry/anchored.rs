//! A registry whose work is done on one runtime, whoever asks.
//!
//! A connection to a database server belongs to the event loop on which it was opened, and renewals run on a thread with
//! an event loop of its own, which ends before everything else does. So the work runs on the runtime that was there first.
//! And a caller that gives up cancels nothing: what was begun ends.

use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::{Answer, Bound, RegistryError, Swap, Worker, WorkerRegistry};
use crate::ids::Incarnation;

/// The registry `R`, doing its work on one runtime.
#[derive(Debug)]
pub struct Anchored<R> {
    registry: Arc<R>,
    runtime: Handle,
}

impl<R: WorkerRegistry> Anchored<R> {
    /// `registry`, from now on working on `runtime`.
    pub fn new(registry: R, runtime: Handle) -> Self {
        Self { registry: Arc::new(registry), runtime }
    }

    fn run<'a, T, F>(&self, work: impl FnOnce(Arc<R>) -> F) -> Answer<'a, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RegistryError>> + Send + 'static,
    {
        let task = self.runtime.spawn(work(Arc::clone(&self.registry)));
        Box::pin(async move {
            // A task that panicked, or a runtime that ends: what it did is not known.
            task.await.unwrap_or_else(|error| Err(RegistryError::Unknown(format!("broken off: {error}"))))
        })
    }
}

impl<R: WorkerRegistry> WorkerRegistry for Anchored<R> {
    fn name(&self) -> &'static str {
        self.registry.name()
    }

    fn exclusive(&self) -> bool {
        self.registry.exclusive()
    }

    fn leases(&self) -> bool {
        self.registry.leases()
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
