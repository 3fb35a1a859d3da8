//! The segment engine: ids of one tag out of ranges that the store has granted.
//!
//! Guaranteed: an id leaves only from a range whose grant was confirmed, and what is not known to have happened is never
//! used. How: [`buffer`] decides under a short lock, and a task of its own asks the store, so that a client that leaves
//! cancels nothing. A request that must wait subscribes under that same lock, so no wake-up is lost.
//! Rejected: asking the store on the request's own task (a disconnect in the middle of a commit leaves a range in doubt),
//! a queue of waiters (they ask again anyway, and a watch wakes all at once).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use super::{Demand, Later, Refusal, Shortage};
use crate::clock::{Boot, Clock};
use crate::health::Health;
use crate::ids::{IdRange, TagName};
use crate::metrics::{Labelled, Metrics, StoreMetrics, TagMetrics};
use crate::store::{Definition, Row, SegmentStore, Tail, Witness, WitnessMode};

pub mod breaker;
pub mod buffer;
mod circuit;
pub mod gather;
mod grants;
pub mod mark;
pub mod outcome;
mod refill;
#[cfg(test)]
mod simulation;
pub mod step;
pub mod strict;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use buffer::{Buffer, Taken};
use step::{Reason, Step};

/// The section `segment`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `STEP` of tags that don't name one: how many ids the first grant asks for, `min_step` to `max_step`; default 1000.
    /// From there the step follows the load ([`step`]). A grant asks for more where waiting requests lack more. A crash
    /// skips two grants at most, and a third one after a large request that gave up.
    pub default_step: u64,
    /// `MINSTEP` of tags that don't name one, 1 or more; default 100.
    pub min_step: u64,
    /// `MAXSTEP` of tags that don't name one, up to 1000000000; default 1000000.
    pub max_step: u64,
    /// Which part of a segment is used when the next one is fetched, 0 to 1; default 0.8.
    pub preload_threshold: f64,
    /// How often a refill is tried again when the store was busy or its answer was lost, 0 to 10; default 3.
    pub max_retry: u32,
    /// How many tags ask the store at the same time, 1 to 64; default 8.
    pub max_refills: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            default_step: 1000,
            min_step: 100,
            max_step: 1_000_000,
            preload_threshold: 0.8,
            max_retry: 3,
            max_refills: 8,
        }
    }
}

/// The largest `segment.max_step`: a thousand crashes at this step use a ten-millionth of the id space.
const MOST_STEP: u64 = 1_000_000_000;

impl Config {
    /// Checks the bounds of every key.
    ///
    /// # Errors
    /// In words, naming the key and the fix.
    pub fn validate(&self) -> Result<(), String> {
        if self.min_step == 0 {
            return Err("segment.min_step must be 1 or more, and is 0".into());
        }
        let Self { default_step, min_step, max_step, preload_threshold, max_retry, max_refills } = self;
        if max_step < min_step || *max_step > MOST_STEP {
            return Err(format!(
                "segment.max_step must be segment.min_step ({min_step}) to {MOST_STEP}, and is {max_step}: change one of the two"
            ));
        }
        if !(min_step..=max_step).contains(&default_step) {
            return Err(format!(
                "segment.default_step must be segment.min_step ({min_step}) to segment.max_step ({max_step}), and is \
                 {default_step}: set it to a number inside, or change those"
            ));
        }
        if !(0.0..=1.0).contains(preload_threshold) {
            return Err(format!("segment.preload_threshold must be 0 to 1, such as 0.8, and is {preload_threshold}"));
        }
        if *max_retry > 10 {
            return Err(format!("segment.max_retry must be 0 to 10, and is {max_retry}"));
        }
        if !(1..=64).contains(max_refills) {
            return Err(format!("segment.max_refills must be 1 to 64, and is {max_refills}"));
        }
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000 after the clamp")]
    fn preload_permille(&self) -> u64 {
        (self.preload_threshold.clamp(0.0, 1.0) * 1000.0).round() as u64
    }
}

/// What all segment tags of a node share.
pub struct Supply {
    store: Arc<dyn SegmentStore>,
    clock: Arc<dyn Clock>,
    health: Arc<Health>,
    discarded: Arc<Labelled>,
    counts: Arc<StoreMetrics>,
    permits: Semaphore,
    /// What refills of tags that never had ids take before a permit, as many as there are of those: so no more of them
    /// stand before the refill of a tag in use, however many cold tags there are.
    cold: Semaphore,
    guarded: Mutex<circuit::Guarded>,
    witness: Option<grants::Witnessed>,
    rules: Rules,
    max_retry: u32,
    preload_permille: u64,
    runtime: tokio::runtime::Handle,
    this: Weak<Self>,
}

/// What a supply may have beside the store.
#[derive(Clone, Default)]
pub struct Beside {
    /// The witness of published ranges, unless [`WitnessMode::Off`].
    pub witness: Option<(Arc<dyn Witness>, WitnessMode)>,
    /// The right rules but in tests.
    pub rules: Rules,
}

/// Bugs to plant, for tests that show that they would be found. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Those of the ranges in memory.
    pub buffer: buffer::Rules,
    /// Those of the answers of the store.
    pub outcome: outcome::Rules,
}

impl std::fmt::Debug for Supply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supply").field("store", &self.store.name()).finish_non_exhaustive()
    }
}

impl Supply {
    /// What is shared: the store, the clock, where the store's state is told, where grants and dropped ids are counted.
    /// Refills run on `runtime`.
    #[must_use]
    pub fn new(
        config: &Config,
        store: Arc<dyn SegmentStore>,
        clock: Arc<dyn Clock>,
        health: Arc<Health>,
        metrics: &Metrics,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        Self::with(config, store, clock, health, metrics, runtime, Beside::default())
    }

    /// The same with what is `beside` the store.
    #[must_use]
    pub fn with(
        config: &Config,
        store: Arc<dyn SegmentStore>,
        clock: Arc<dyn Clock>,
        health: Arc<Health>,
        metrics: &Metrics,
        runtime: tokio::runtime::Handle,
        beside: Beside,
    ) -> Arc<Self> {
        let store_name = store.name();
        let witness = beside.witness.filter(|(_, mode)| *mode != WitnessMode::Off).map(|(witness, mode)| {
            let required = mode == WitnessMode::Required;
            grants::Witnessed::new(witness, required, Arc::clone(&metrics.witness_skipped))
        });
        Arc::new_cyclic(|this| Self {
            store,
            clock,
            health,
            discarded: Arc::clone(&metrics.discarded),
            counts: metrics.store(store_name),
            permits: Semaphore::new(config.max_refills.clamp(1, 64)),
            cold: Semaphore::new(config.max_refills.clamp(1, 64)),
            guarded: Mutex::default(),
            witness,
            rules: beside.rules,
            max_retry: config.max_retry,
            preload_permille: config.preload_permille(),
            runtime,
            this: Weak::clone(this),
        })
    }
}

/// The engine of one tag.
#[derive(Debug)]
pub struct Segment {
    state: Mutex<State>,
    tag: TagName,
    supply: Arc<Supply>,
    metrics: Arc<TagMetrics>,
    this: Weak<Self>,
}

#[derive(Debug)]
struct State {
    buffer: Buffer,
    step: Step,
    id_limit: u64,
    /// Refills that failed since the last good one.
    failures: u32,
    /// The row's `max_id` when this process read it first.
    loaded: u64,
    /// Closes when the refill in flight has ended; made by the first one who waits for it, since most tags are idle.
    ended: Option<watch::Sender<u64>>,
    /// Whether the row was found to be gone, and no grant has shown since that it is back.
    vanished: bool,
    /// Whether the tag may probe a store whose breaker is open.
    critical: bool,
    /// Why the refill in flight has failed so far.
    cause: Option<Refusal>,
}

/// What people and replies are told of a tag's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Ids in memory.
    pub remaining: u64,
    /// Whether a range waits behind the current one.
    pub next_ready: bool,
    /// How many ids the next grant asks for.
    pub step: u64,
    /// Why the step is what it is.
    pub step_reason: &'static str,
    /// The last id known to be given away: granted to this node, or by the row where the store has no other node.
    pub max_id: u64,
    /// The floor this node knows.
    pub floor: u64,
}

impl Segment {
    /// The engine of the tag that `row` defines, with nothing in memory yet. Where no other node uses the store, nobody
    /// but this process moves the row: a grant at or below the `max_id` that it is loaded with is not believed. (A shared
    /// row may be lower a moment later, when another node gives a tail back.)
    #[must_use]
    pub fn new(row: &Row, supply: Arc<Supply>, metrics: Arc<TagMetrics>) -> Arc<Self> {
        let step = Step::new(&row.definition, supply.clock.boot());
        metrics.step.set(step.next_step());
        metrics.headroom.set(row.definition.id_limit.saturating_sub(row.max_id));
        let mut buffer = Buffer::new(row.floor, supply.preload_permille, supply.rules.buffer);
        if !supply.store.shared() {
            buffer.fence(row.max_id);
        }
        if row.retired {
            buffer.close(Refusal::Retired);
        }
        let (id_limit, loaded) = (row.definition.id_limit, row.max_id);
        let critical = row.definition.critical;
        let state =
            State { buffer, step, id_limit, failures: 0, loaded, ended: None, vanished: false, critical, cause: None };
        Arc::new_cyclic(|this| Self {
            state: Mutex::new(state),
            tag: row.tag.clone(),
            supply,
            metrics,
            this: this.clone(),
        })
    }

    /// Appends ids to `out`; never waits. What it asks of the store goes on without the caller.
    ///
    /// # Errors
    /// Why fewer than asked for were appended.
    #[inline]
    pub fn take(&self, demand: Demand, now: Boot, out: &mut Vec<IdRange>) -> Result<(), Shortage> {
        let mut state = self.lock();
        let taken = state.buffer.take(demand, now, out);
        self.metrics.remaining.set(state.buffer.remaining());
        if matches!(taken, Taken::All) && !state.buffer.is_due(now) {
            return Ok(());
        }
        self.settle(state, taken, now)
    }

    #[cold]
    fn settle(&self, mut state: MutexGuard<'_, State>, taken: Taken, now: Boot) -> Result<(), Shortage> {
        let refill = state.buffer.start_refill(now);
        // Under the lock: the refill that this request waits for can't have ended before it is subscribed.
        let waiting = matches!(taken, Taken::Wait).then(|| state.subscribe());
        self.release(state);
        if let Some(this) = self.this.upgrade().filter(|_| refill) {
            let task = refill::InFlight::new(this);
            self.supply.runtime.spawn(task.run());
        }
        match (taken, waiting) {
            (Taken::Refused(refusal), _) => Err(Shortage::Refused(refusal)),
            (_, Some(ended)) => {
                self.metrics.buffer_waits.add(1);
                Err(Shortage::Later(Later::Refill(ended)))
            }
            (_, None) => Ok(()),
        }
    }

    /// Later ids are larger than `floor`; smaller ones in memory are dropped.
    pub fn floor(&self, floor: u64) {
        self.change(|state| state.buffer.raise_floor(floor));
    }

    /// Gives no more ids, ever; those in memory are dropped.
    pub fn retire(&self) {
        self.change(|state| {
            state.buffer.close(Refusal::Retired);
            state.buffer.clear("stop");
        });
    }

    /// The row has vanished from the store: drops what is in memory and refuses until a grant shows that it is back. The
    /// row is never made again from here. Gives what requests are told.
    pub fn vanish(&self) -> Refusal {
        let refusal = self.change(|state| {
            let (refusal, retry_at) = self.vanished(state);
            state.buffer.refuse(refusal.clone(), retry_at);
            refusal
        });
        self.wake();
        refusal
    }

    /// Follows a changed definition from the next grant on.
    pub fn redefine(&self, definition: &Definition) {
        self.change(|state| {
            let changed = state.step.redefine(definition, state.buffer.used(), self.supply.clock.boot());
            self.tell_step(&state.step, changed);
            (state.id_limit, state.critical) = (definition.id_limit, definition.critical);
            state.buffer.forgive();
        });
    }

    /// Serves nothing from now on. Then [`Self::idle`], then [`Self::tail`].
    pub fn stop(&self) {
        self.change(|state| state.buffer.close(Refusal::TryAgain("this node is stopping".into())));
    }

    /// Waits until no refill is in flight.
    pub async fn idle(&self) {
        loop {
            let ended = {
                let mut state = self.lock();
                state.buffer.is_refilling().then(|| state.subscribe())
            };
            match ended {
                Some(mut ended) => drop(ended.changed().await),
                None => return,
            }
        }
    }

    /// The unused ids of a stopped tag for [`SegmentStore::return_tails`], once. Ids that can't go back are counted as
    /// discarded; those of a tail that the store then refuses are the caller's to count. A refill still in flight is not
    /// waited for, and its ids are skipped.
    pub fn tail(&self) -> Option<Tail> {
        if self.lock().buffer.is_refilling() {
            tracing::warn!(biz_tag = %self.tag, "a refill was still in flight at the stop; its ids are skipped");
        }
        let tail = self.change(|state| state.buffer.tail());
        tail.map(|(unused, nonce)| Tail { tag: self.tag.clone(), unused, nonce })
    }

    /// What is known of the buffer now.
    #[must_use]
    pub fn view(&self) -> View {
        // A change, since the time that has passed may lower the step.
        self.change(|state| {
            self.adapt(state);
            View {
                remaining: state.buffer.remaining(),
                next_ready: state.buffer.next_ready(),
                step: state.step.next_step(),
                step_reason: state.step.reason(),
                max_id: state.buffer.highest(),
                floor: state.buffer.floor(),
            }
        })
    }

    /// Why the refill in flight has failed so far, where it has.
    #[must_use]
    pub fn cause(&self) -> Option<Refusal> {
        self.lock().cause.clone()
    }

    /// The tag.
    #[must_use]
    pub const fn tag(&self) -> &TagName {
        &self.tag
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, make: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = make(&mut state);
        self.release(state);
        result
    }

    /// Ends a change of the state: counts what it dropped, and adapts the step.
    fn release(&self, mut state: MutexGuard<'_, State>) {
        self.adapt(&mut state);
        let lost = state.buffer.drain_lost();
        self.metrics.remaining.set(state.buffer.remaining());
        if state.buffer.highest() > 0 {
            self.metrics.headroom.set(state.id_limit.saturating_sub(state.buffer.highest()));
        }
        drop(state);
        for (reason, n) in lost {
            self.supply.discarded.add(reason, n);
        }
    }

    /// Judges how the ids are used, which may change the step of the next grant.
    fn adapt(&self, state: &mut State) {
        if state.buffer.is_closed() {
            return;
        }
        let State { step, buffer, .. } = state;
        for changed in step.follow(buffer, self.supply.clock.boot()) {
            self.tell_step(step, changed);
        }
    }

    fn tell_step(&self, step: &Step, changed: Option<Reason>) {
        if let Some(reason) = changed {
            self.metrics.step.set(step.next_step());
            self.metrics.step_changes.add(reason.name(), 1);
        }
    }

    fn wake(&self) {
        let ended = self.lock().ended.take();
        drop(ended);
    }
}

impl State {
    /// Waits for the end of the refill in flight.
    fn subscribe(&mut self) -> watch::Receiver<u64> {
        self.ended.get_or_insert_with(|| watch::Sender::new(0)).subscribe()
    }
}
