//! The Snowflake engine: ids from time, a worker id and a sequence, without a store on the way.
//!
//! [`Snowflake::take`] is one load of what is published, one reading of logical time and one compare-and-set. A task on
//! a thread of its own (`renewal`) keeps a worker id and its window and publishes them; when there is none, callers are
//! refused. What was handed out lies below a bound that the registry has confirmed, always. `layout`, `sequencer`,
//! `timeline` and `window` are pure. Rejected: a lock around the generator, and one generator a tag (a worker id each).

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

use self::layout::{Layout, Parts, Problem};
use self::sequencer::{Sequencer, Short, Want, most_in_one_tick};
use self::timeline::Line;
use crate::clock::{Boot, Clock, Wall, rfc3339};
use crate::engine::{Demand, Later, Refusal, Shortage};
use crate::health::Health;
use crate::ids::{IdRange, Incarnation};
use crate::metrics::{Counter, Gauge};
use crate::registry::{RegistryError, Worker, WorkerRegistry};

mod config;
pub mod exchange;
pub mod layout;
mod renewal;
pub mod sequencer;
#[cfg(test)]
mod simulation;
pub mod timeline;
pub mod window;

pub use config::Config;

/// How often a take starts again when time has passed or the worker id has changed in between.
const ATTEMPTS: usize = 4;
/// The shortest pause a caller is sent away with.
const SHORTEST_PAUSE: Duration = Duration::from_micros(50);
/// A running clock fills a tick in no more than this: one tick, and one for rounding.
const FULL_TICK: Duration = Duration::from_millis(2);

/// What the engine is built from.
pub struct Setup {
    /// The section `snowflake`, validated.
    pub config: Config,
    /// Its layout, which the identity of the cluster agrees with.
    pub layout: Layout,
    /// Where worker ids come from.
    pub registry: Arc<dyn WorkerRegistry>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// Where the state of the worker id is told.
    pub health: Arc<Health>,
    /// This process.
    pub incarnation: Incarnation,
    /// Its host name, for people and for the hint `ordinal`.
    pub host: String,
    /// How long a request may wait: it bounds a batch.
    pub wait_max: Duration,
}

/// What is counted.
#[derive(Debug, Default)]
pub struct SnowflakeMetrics {
    /// Times a clock was seen to have moved backwards.
    pub rollbacks: Counter,
    /// The wall clock minus logical time, in nanoseconds.
    pub offset_ns: Gauge,
    /// Requests that found all ticks full up to the borrowed ones.
    pub sequence_exhausted: Counter,
    /// Worker ids that another process has claimed.
    pub lost: Counter,
    /// Attempts to get a worker id that failed.
    pub register_failures: Counter,
    /// Times the registry had gone back behind what it had confirmed.
    pub regressions: Counter,
}

/// What the hot path reads: replaced as a whole.
#[derive(Debug)]
struct Active {
    worker: u32,
    node: u64,
    line: Line,
    sequencer: Arc<Sequencer>,
}

/// Whether the boot clock gets on while callers wait for it.
#[derive(Debug, Default)]
struct Patience {
    furthest: Boot,
    waited: Duration,
}

/// The state of the engine, for `IDNODE`, `IDINFO` and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The worker id, if there is one.
    pub worker: Option<u32>,
    /// The datacenter id.
    pub datacenter: u32,
    /// What is left of the window, in milliseconds.
    pub window_remaining_ms: u64,
    /// The wall clock minus logical time, in nanoseconds.
    pub clock_offset_ns: i64,
    /// How far time was led ahead to get the worker id, in nanoseconds.
    pub lead_ns: u64,
    /// The first moment without ids, in Unix milliseconds.
    pub exhaustion_ms: u64,
    /// Why there is no worker id or window, or what delays the next one; empty when all is well.
    pub reason: String,
}

/// What may be done with a worker id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// It can be claimed.
    Free,
    /// This node uses it.
    Mine,
    /// Another node uses it.
    Owned,
    /// Its bound lies too far in the future.
    Ahead,
    /// Its record is gone: never used again.
    Missing,
}

impl WorkerState {
    /// The word in replies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Mine => "mine",
            Self::Owned => "owned",
            Self::Ahead => "ahead",
            Self::Missing => "missing",
        }
    }
}

/// A worker id for `IDWORKERS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// The worker id.
    pub id: u32,
    /// The incarnation that wrote the record, as text; empty if nobody did.
    pub owner: String,
    /// Its host.
    pub host: String,
    /// The bound in Unix milliseconds.
    pub bound_ms: Option<u64>,
    /// Its state.
    pub state: WorkerState,
}

/// The node's one generator, shared by all Snowflake tags.
pub struct Snowflake {
    me: Weak<Self>,
    setup: Setup,
    batch_max: u64,
    consecutive_max: u64,
    metrics: Arc<SnowflakeMetrics>,
    active: ArcSwapOption<Active>,
    /// Why there is nothing to issue with.
    reason: Mutex<String>,
    patience: Mutex<Patience>,
    wanted: AtomicBool,
    /// Whether a first attempt to get a worker id has ended, well or badly.
    settled: AtomicBool,
    /// Counts the ends of attempts.
    attempts: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    /// Whether the task of the worker id runs.
    running: watch::Sender<bool>,
}

impl fmt::Debug for Snowflake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layout, active) = (&self.setup.layout, self.active.load());
        f.debug_struct("Snowflake").field("layout", layout).field("active", &active).finish_non_exhaustive()
    }
}

impl Snowflake {
    /// An engine that has no worker id until something wants one.
    ///
    /// # Errors
    /// The configuration key that can't be used.
    pub fn new(setup: Setup) -> Result<Arc<Self>, Problem> {
        setup.config.validate(setup.clock.wall())?;
        let layout = setup.layout;
        // What `wait_max` can yield, and never more than a renewed window always has left.
        let most = setup.wait_max.min(setup.config.window / 3).as_millis();
        let ticks = u64::try_from(most).unwrap_or(u64::MAX).max(1);
        let metrics = Arc::new(SnowflakeMetrics::default());
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            batch_max: ticks << layout.sequence_bits(),
            consecutive_max: most_in_one_tick(layout.sequence_bits()),
            metrics,
            active: ArcSwapOption::empty(),
            reason: Mutex::new("no worker id has been asked for yet".to_owned()),
            patience: Mutex::default(),
            wanted: AtomicBool::new(false),
            settled: AtomicBool::new(false),
            attempts: watch::Sender::new(0),
            stop: watch::Sender::new(false),
            running: watch::Sender::new(false),
            setup,
        }))
    }

    /// Appends ids to `out`: all of `demand`, or for [`Demand::Singles`] as many as there are. `now` may be a little
    /// old.
    ///
    /// # Errors
    /// Why fewer than asked for were appended; for the other demands none were.
    #[inline]
    pub fn take(&self, demand: Demand, now: Boot, out: &mut Vec<IdRange>) -> Result<(), Shortage> {
        let Some(want) = self.want_of(demand) else { return self.refuse_count(demand) };
        if let Some(active) = self.active.load().as_deref()
            && let Ok(slots) = active.sequencer.take(want, self.tick(active.line, now))
        {
            self.setup.layout.emit(active.node, slots, out);
            if slots.count() == demand.count() {
                return Ok(());
            }
            return self.take_slowly(Demand::Singles(demand.count() - slots.count()), out);
        }
        self.take_slowly(demand, out)
    }

    #[inline]
    fn want_of(&self, demand: Demand) -> Option<Want> {
        let (want, most) = match demand {
            Demand::Singles(n) => (Want::UpTo(n), u64::MAX),
            Demand::Batch(n) => (Want::All(n), self.batch_max),
            Demand::Consecutive(n) => (Want::InOneTick(n), self.consecutive_max),
        };
        (1..=most).contains(&demand.count()).then_some(want)
    }

    #[cold]
    fn refuse_count(&self, demand: Demand) -> Result<(), Shortage> {
        match demand {
            _ if demand.count() == 0 => Ok(()),
            Demand::Consecutive(_) => Err(Shortage::Refused(Refusal::TooMany(self.consecutive_max))),
            _ => Err(Shortage::Refused(Refusal::TooMany(self.batch_max))),
        }
    }

    #[inline]
    fn tick(&self, line: Line, now: Boot) -> u64 {
        self.setup.layout.tick(line.at(now) / 1_000_000)
    }

    /// The caller's clock reading was old, or a tick is full, or something is wrong: look with a fresh reading, then
    /// say.
    #[cold]
    fn take_slowly(&self, demand: Demand, out: &mut Vec<IdRange>) -> Result<(), Shortage> {
        let mut rest = demand;
        for _ in 0..ATTEMPTS {
            let Some(want) = self.want_of(rest) else { return self.refuse_count(rest) };
            let Some(active) = self.active.load_full() else {
                match self.no_worker() {
                    Some(shortage) => return Err(shortage),
                    None => continue,
                }
            };
            let tick = self.tick(active.line, self.setup.clock.boot());
            match active.sequencer.take(want, tick) {
                Ok(slots) => {
                    self.setup.layout.emit(active.node, slots, out);
                    if slots.count() == rest.count() {
                        return Ok(());
                    }
                    rest = Demand::Singles(rest.count() - slots.count());
                }
                Err(Short::Closed) => std::hint::spin_loop(),
                Err(Short::OutOfWindow { tick }) => return Err(Shortage::Refused(self.out_of_window(&active, tick))),
                Err(Short::Full { tick, owed }) => {
                    if let Some(shortage) = self.full(&active, tick, owed) {
                        return Err(shortage);
                    }
                }
            }
        }
        Err(Shortage::Later(Later::Tick(SHORTEST_PAUSE)))
    }

    /// `None`: there is one by now.
    fn no_worker(&self) -> Option<Shortage> {
        self.want();
        let attempts = self.attempts.subscribe();
        if self.active.load().is_some() {
            return None;
        }
        if self.settled.load(Ordering::Acquire) {
            return Some(Shortage::Refused(Refusal::NoWorker(self.reason().clone())));
        }
        // The first attempt is under way. Should it have ended since, the next look says so.
        Some(Shortage::Later(Later::Refill(attempts)))
    }

    fn out_of_window(&self, active: &Active, tick: u64) -> Refusal {
        let layout = self.setup.layout;
        if tick > layout.max_timestamp() {
            return Refusal::Exhausted(format!("the timestamp bits ended at {}", rfc3339(layout.exhaustion())));
        }
        let reason = self.reason();
        let cause = if reason.is_empty() { "its renewal is under way" } else { reason.as_str() };
        Refusal::NoWorker(format!("worker id {} has no window left: {cause}", active.worker))
    }

    /// All ticks up to the borrowed ones are full; the first free slot is in `tick`. `None`: it can be had by now.
    fn full(&self, active: &Active, tick: u64, owed: bool) -> Option<Shortage> {
        let config = &self.setup.config;
        let due_ms = (self.setup.layout.epoch_millis() + tick).saturating_sub(config.borrow_max_ms);
        let longest = Duration::from_millis(config.rollback_max_wait_ms) + FULL_TICK;
        // Read under the lock: whoever comes later must not have read earlier.
        let mut patience = lock(&self.patience);
        let now = self.setup.clock.boot();
        let pause = Duration::from_nanos((due_ms * 1_000_000).saturating_sub(active.line.at(now)));
        if now > patience.furthest {
            *patience = Patience { furthest: now, waited: Duration::ZERO };
        }
        if pause.is_zero() {
            return None;
        }
        self.metrics.sequence_exhausted.add(1);
        let owed_max = if owed { self.batch_ticks() } else { Duration::ZERO };
        if pause > longest + owed_max || patience.waited > longest {
            let text = format!("the boot clock of this host stands still or went back by {} ms", pause.as_millis());
            return Some(Shortage::Refused(Refusal::Clock(text)));
        }
        let pause = pause.max(SHORTEST_PAUSE);
        patience.waited += pause;
        Some(Shortage::Later(Later::Tick(pause)))
    }

    fn batch_ticks(&self) -> Duration {
        Duration::from_millis(self.batch_max >> self.setup.layout.sequence_bits())
    }

    /// Asks for a worker id, once: at the start when a Snowflake tag or rule exists, else at the first use.
    pub fn want(&self) {
        if *self.stop.borrow() || self.wanted.swap(true, Ordering::AcqRel) {
            return;
        }
        self.say("a worker id is being claimed".to_owned());
        if let Err(error) = renewal::spawn(self.me.clone()) {
            tracing::error!(%error, error_kind = "system", "no thread for the worker id");
            self.settle(format!("no thread for the worker id: {error}"));
            self.wanted.store(false, Ordering::Release);
        }
    }

    /// Whether a worker id was asked for.
    pub fn wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Waits until a first attempt to get a worker id has ended, well or badly. Wants one.
    pub async fn settled(&self) {
        self.want();
        let mut attempts = self.attempts.subscribe();
        // An error means that the sender is gone, which `self` holds.
        drop(attempts.wait_for(|_| self.settled.load(Ordering::Acquire)).await);
    }

    /// Closes the word, so that nothing is issued any more, and gives up the worker id. Call it when all requests are
    /// answered. Waits for a write in flight, at most a few seconds.
    pub async fn stop(&self) {
        self.stop.send_replace(true);
        drop(self.running.subscribe().wait_for(|running| !running).await);
        self.settle("this node is stopping".to_owned());
    }

    /// The layout.
    pub fn layout(&self) -> Layout {
        self.setup.layout
    }

    /// The most ids of one [`Demand::Batch`].
    pub fn batch_max(&self) -> u64 {
        self.batch_max
    }

    /// The most ids of one [`Demand::Consecutive`].
    pub fn consecutive_max(&self) -> u64 {
        self.consecutive_max
    }

    /// The parts of `id`; `None` when it can't be an id of this layout.
    pub fn decompose(&self, id: u64) -> Option<Parts> {
        self.setup.layout.decompose(id)
    }

    /// The name of the registry of worker ids.
    pub fn registry_name(&self) -> &'static str {
        self.setup.registry.name()
    }

    /// What is counted.
    pub fn metrics(&self) -> &Arc<SnowflakeMetrics> {
        &self.metrics
    }

    /// The state of the engine.
    pub fn view(&self) -> View {
        let layout = self.setup.layout;
        let now = self.setup.clock.boot();
        let active = self.active.load();
        let left =
            active.as_deref().map_or(0, |active| active.sequencer.limit().saturating_sub(self.tick(active.line, now)));
        View {
            worker: active.as_deref().map(|active| active.worker),
            datacenter: self.setup.config.datacenter_id,
            window_remaining_ms: left,
            clock_offset_ns: self.metrics.offset_ns.get(),
            lead_ns: active.as_deref().map_or(0, |active| active.line.lead_at(now)),
            exhaustion_ms: layout.exhaustion(),
            reason: self.reason().clone(),
        }
    }

    /// All worker ids of the datacenter as the registry shows them now.
    ///
    /// # Errors
    /// Why the registry could not say.
    pub async fn workers(&self) -> Result<Vec<WorkerView>, RegistryError> {
        let workers = self.setup.registry.list().await?;
        let active = self.active.load_full();
        let now_ms = active.as_deref().map_or_else(
            || self.setup.clock.wall().millis(),
            |active| active.line.at(self.setup.clock.boot()) / 1_000_000,
        );
        let mine = active.map(|active| active.worker);
        Ok(workers.iter().map(|worker| self.worker_view(worker, mine, now_ms)).collect())
    }

    fn worker_view(&self, worker: &Worker, mine: Option<u32>, now_ms: u64) -> WorkerView {
        let registry = &self.setup.registry;
        let hi = worker.bound.as_ref().map(|bound| bound.hi);
        let max_ahead = u64::try_from(self.setup.config.max_ahead.as_millis()).unwrap_or(u64::MAX);
        let ripe = hi.is_some_and(|hi| hi <= now_ms);
        let online = worker.owner.is_some() && !registry.exclusive() && (registry.leases() || !ripe);
        let state = match hi {
            None => WorkerState::Missing,
            Some(_) if Some(worker.id) == mine => WorkerState::Mine,
            Some(_) if online => WorkerState::Owned,
            Some(hi) if hi > now_ms.saturating_add(max_ahead) => WorkerState::Ahead,
            Some(_) => WorkerState::Free,
        };
        let writer = worker.bound.as_ref().filter(|bound| bound.n > 0);
        let owner = worker.owner.as_ref().map(|owner| (owner.incarnation, owner.host.clone()));
        let (owner, host) = owner
            .or_else(|| writer.map(|bound| (bound.incarnation, bound.host.clone())))
            .map_or_else(Default::default, |(owner, host)| (owner.to_string(), host));
        WorkerView { id: worker.id, owner, host, bound_ms: hi, state }
    }

    fn reason(&self) -> MutexGuard<'_, String> {
        lock(&self.reason)
    }

    fn say(&self, reason: String) {
        *self.reason() = reason;
    }

    /// An attempt to get a worker id has ended: those who wait for the first one look again.
    fn settle(&self, reason: String) {
        self.say(reason);
        self.settled.store(true, Ordering::Release);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }

    /// Both clocks, read so close together that their difference means something.
    fn read_clocks(&self) -> (Boot, Wall) {
        let clock = &self.setup.clock;
        let mut reading = (clock.boot(), clock.wall());
        for _ in 0..ATTEMPTS {
            let before = clock.boot();
            reading = (before, clock.wall());
            if clock.boot().since(before) < Duration::from_micros(200) {
                break;
            }
        }
        reading
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
