//! A registry in memory, with the faults that real ones have.
//!
//! It is linearizable: one lock, every write a compare-and-set on the whole record. A fault makes a single write lose
//! its answer, come through later than its caller believes, or not at all; that is how the promises that need no trust
//! in answers are tested. Nothing of it is durable, so it serves tests and benchmarks only.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Answer, Bound, Owner, RegistryError, Swap, Worker, WorkerRegistry, unclaimed};
use crate::ids::Incarnation;

/// What goes wrong with the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It happens, and the caller is told that the outcome is unknown.
    AnswerLost,
    /// The caller is told that the outcome is unknown; it happens at [`MemoryRegistry::settle`].
    AppliedLate,
    /// It never happens, and the caller is told that the outcome is unknown.
    RequestLost,
    /// It never happens, and the caller is told so.
    Refused,
}

#[derive(Clone, Debug)]
struct Write {
    worker: u32,
    expected: Bound,
    next: Bound,
    claim: bool,
}

#[derive(Debug, Default)]
struct Records {
    workers: Vec<Worker>,
    faults: VecDeque<Fault>,
    late: Vec<Write>,
}

/// Bounds and owners in memory.
#[derive(Debug)]
pub struct MemoryRegistry {
    records: Mutex<Records>,
    exclusive: bool,
}

impl MemoryRegistry {
    /// A registry of `workers` worker ids whose bounds are `hi` (Unix milliseconds). One that is not `exclusive` has
    /// owners that vanish only by [`Self::expire`], as leases do.
    pub fn new(workers: u32, hi: u64, exclusive: bool) -> Self {
        let worker = |id| Worker { id, bound: Some(unclaimed(hi)), owner: None };
        let records = Records { workers: (0..workers).map(worker).collect(), ..Records::default() };
        Self { records: Mutex::new(records), exclusive }
    }

    /// Lets `fault` happen to the next call that has none yet.
    pub fn inject(&self, fault: Fault) {
        self.lock().faults.push_back(fault);
    }

    /// Forgets faults that have not happened yet.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Lets all late writes come through, in the order they were sent; gives how many took place.
    pub fn settle(&self) -> usize {
        let mut records = self.lock();
        let late = std::mem::take(&mut records.late);
        late.iter().filter(|write| records.apply(write) == Swap::Done).count()
    }

    /// Ends the ownership of `worker`, as a lease that runs out.
    pub fn expire(&self, worker: u32) {
        if let Some(worker) = self.lock().find(worker) {
            worker.owner = None;
        }
    }

    /// Puts `bound` in the place of what stands: what an operator or a restore does, not a registry.
    pub fn overwrite(&self, worker: u32, bound: Option<Bound>) {
        if let Some(worker) = self.lock().find(worker) {
            worker.bound = bound;
        }
    }

    /// All worker ids, past any fault.
    pub fn workers(&self) -> Vec<Worker> {
        self.lock().workers.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads through the next fault, if one waits.
    pub fn look<T>(&self, read: impl FnOnce(&[Worker]) -> T) -> Result<T, RegistryError> {
        let mut records = self.lock();
        match records.faults.pop_front() {
            Some(_) => Err(RegistryError::Unavailable("no answer".to_owned())),
            None => Ok(read(&records.workers)),
        }
    }

    /// Writes through the next fault, if one waits.
    pub fn write(&self, worker: u32, expected: &Bound, next: &Bound, claim: bool) -> Result<Swap, RegistryError> {
        let write = Write { worker, expected: expected.clone(), next: next.clone(), claim };
        let mut records = self.lock();
        match records.faults.pop_front() {
            None => return Ok(records.apply(&write)),
            Some(Fault::AnswerLost) => drop(records.apply(&write)),
            Some(Fault::AppliedLate) => records.late.push(write),
            Some(Fault::RequestLost) => {}
            Some(Fault::Refused) => return Err(RegistryError::Unavailable("connection refused".to_owned())),
        }
        Err(RegistryError::Unknown("no answer".to_owned()))
    }

    /// Gives up the ownership of `worker` if `incarnation` has it.
    pub fn give_up(&self, worker: u32, incarnation: Incarnation) {
        if let Some(worker) = self.lock().find(worker)
            && worker.owner.as_ref().is_some_and(|owner| owner.incarnation == incarnation)
        {
            worker.owner = None;
        }
    }
}

impl Records {
    fn find(&mut self, worker: u32) -> Option<&mut Worker> {
        self.workers.iter_mut().find(|candidate| candidate.id == worker)
    }

    fn apply(&mut self, write: &Write) -> Swap {
        let Write { expected, next, claim, .. } = write;
        let Some(worker) = self.find(write.worker) else { return Swap::Refused };
        let owner = worker.owner.as_ref().map(|owner| owner.incarnation);
        // Whoever renews re-creates his ownership if it has run out.
        let owner_allows = owner.is_none_or(|owner| owner == next.incarnation);
        let taken_over = *claim && !owner_allows;
        if worker.bound.as_ref() != Some(expected) || next.hi <= expected.hi || taken_over {
            return Swap::Refused;
        }
        worker.bound = Some(next.clone());
        worker.owner = Some(Owner { incarnation: next.incarnation, host: next.host.clone() });
        Swap::Done
    }
}

impl WorkerRegistry for MemoryRegistry {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn exclusive(&self) -> bool {
        self.exclusive
    }

    fn leases(&self) -> bool {
        !self.exclusive
    }

    fn list(&self) -> Answer<'_, Vec<Worker>> {
        Box::pin(ready(self.look(<[Worker]>::to_vec)))
    }

    fn read(&self, worker: u32) -> Answer<'_, Option<Bound>> {
        let find =
            |workers: &[Worker]| workers.iter().find(|found| found.id == worker).and_then(|found| found.bound.clone());
        Box::pin(ready(self.look(find)))
    }

    fn claim<'a>(&'a self, worker: u32, expected: &'a Bound, next: &'a Bound) -> Answer<'a, Swap> {
        // Owners of an exclusive registry are gone: only one process can be there.
        if self.exclusive {
            self.expire(worker);
        }
        Box::pin(ready(self.write(worker, expected, next, true)))
    }

    fn renew<'a>(&'a self, worker: u32, expected: &'a Bound, next: &'a Bound) -> Answer<'a, Swap> {
        Box::pin(ready(self.write(worker, expected, next, false)))
    }

    fn release(&self, worker: u32, incarnation: Incarnation) -> Answer<'_, ()> {
        self.give_up(worker, incarnation);
        Box::pin(ready(Ok(())))
    }

    fn raise_all(&self, hi: u64) -> Answer<'_, u64> {
        let mut records = self.lock();
        let mut raised = 0;
        for worker in &mut records.workers {
            worker.owner = None;
            if let Some(bound) = &mut worker.bound {
                *bound = Bound { hi: bound.hi.max(hi), n: bound.n + 1, ..bound.clone() };
                raised += 1;
            }
        }
        Box::pin(ready(Ok(raised)))
    }
}
