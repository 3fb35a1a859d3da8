//! The task that gets a worker id and keeps its window: the shell around [`Window`].
//!
//! It runs on a thread and a runtime of its own, so that a busy data path can't starve the renewals. Every call of the
//! registry has a time limit, after which its outcome counts as unknown. It holds the engine only while it works on an
//! event, so that an engine nobody holds any more ends it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;

use super::sequencer::{Rules, Sequencer, Start};
use super::window::{Ask, Event, Notice, Now, Publish, Step, Terms, Window};
use super::{Active, Snowflake};
use crate::clock::rfc3339;
use crate::health::{Part, State};
use crate::ids::random_u128;
use crate::registry::{RegistryError, WorkerRegistry};

/// The longest a call of the registry may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the thread of `engine`.
pub(super) fn spawn(engine: Weak<Snowflake>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Some(strong) = engine.upgrade() else { return Ok(()) };
    strong.running.send_replace(true);
    let thread = std::thread::Builder::new().name("worker-id".to_owned());
    // Moved into the thread, or dropped here when there is none.
    let running = Running(engine);
    let body = move || {
        runtime.block_on(async {
            run(&running.0).await;
            finish_tasks().await;
        });
    };
    thread.spawn(body).map(drop)
}

/// Tells the engine, at its end, that the task has ended: also by a panic, or a stop would wait for ever.
struct Running(Weak<Snowflake>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(engine) = self.0.upgrade() else { return };
        if std::thread::panicking() {
            let reason = "the task that renews the worker id has failed; restart this node";
            engine.settle(reason.to_owned());
            engine.down(reason.to_owned());
        }
        engine.running.send_replace(false);
    }
}

/// Lets the tasks end that the registry's client has started on this runtime: a database pool gives its connection back
/// in one, and would lose it with the runtime.
async fn finish_tasks() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let finished = async {
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // What hangs for so long is not waited for.
    drop(tokio::time::timeout(CALL_TIMEOUT, finished).await);
}

async fn run(engine: &Weak<Snowflake>) {
    let Some(strong) = engine.upgrade() else { return };
    let mut stop = strong.stop.subscribe();
    let registry = Arc::clone(&strong.setup.registry);
    let mut window = Window::new(strong.terms(), strong.now());
    let mut last = None;
    let mut event = Event::Woken;
    drop(strong);
    loop {
        let Some(strong) = engine.upgrade() else { return };
        let Step { publish, notices, ask } = window.on(strong.now(), event);
        for notice in notices {
            strong.tell(&notice);
        }
        for change in publish {
            strong.publish(&window, change, &mut last);
        }
        strong.after_event(&window);
        let incarnation = strong.setup.incarnation;
        drop(strong);
        event = match ask {
            Ask::End => return,
            Ask::Release { worker } => {
                // Without it the worker id is free a little later: nothing to tell.
                drop(tokio::time::timeout(CALL_TIMEOUT, registry.release(worker, incarnation)).await);
                Event::Released
            }
            ask => {
                let event = answer(registry.as_ref(), ask, &mut stop).await;
                if *stop.borrow() { Event::Stop } else { event }
            }
        };
    }
}

async fn answer(registry: &dyn WorkerRegistry, ask: Ask, stop: &mut watch::Receiver<bool>) -> Event {
    match ask {
        Ask::Pause(pause) => {
            tokio::select! {
                () = tokio::time::sleep(pause) => Event::Woken,
                _ = stop.wait_for(|stop| *stop) => Event::Stop,
            }
        }
        Ask::List => Event::Listed(limited(registry.list()).await),
        Ask::Claim { worker, expected, next } => {
            Event::Swapped(limited(registry.claim(worker, &expected, &next)).await)
        }
        Ask::Read { worker } => Event::Read(limited(registry.read(worker)).await),
        Ask::Renew { worker, expected, next } => {
            Event::Swapped(limited(registry.renew(worker, &expected, &next)).await)
        }
        Ask::Release { .. } | Ask::End => Event::Released,
    }
}

async fn limited<T>(call: crate::registry::Answer<'_, T>) -> Result<T, RegistryError> {
    let late = |_| RegistryError::Unknown(format!("no answer within {} s", CALL_TIMEOUT.as_secs()));
    tokio::time::timeout(CALL_TIMEOUT, call).await.map_err(late)?
}

impl Snowflake {
    fn now(&self) -> Now {
        let (boot, wall) = self.read_clocks();
        // Without randomness the choice is less spread, no less right.
        let random = random_u128().map_or(boot.0, |bits| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0));
        Now { boot, wall, random }
    }

    fn terms(&self) -> Terms {
        let setup = &self.setup;
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Terms {
            incarnation: setup.incarnation,
            host: setup.host.clone(),
            window_ms: millis(setup.config.window),
            max_ahead_ms: millis(setup.config.max_ahead),
            exclusive: setup.registry.exclusive(),
            leases: setup.registry.leases(),
            hint: setup.config.hint(&setup.host).ok().flatten(),
        }
    }

    /// Makes `change` visible to the hot path. `last` is the newest sequencer there was: the next one starts above it.
    fn publish(&self, window: &Window, change: Publish, last: &mut Option<Arc<Sequencer>>) {
        let layout = self.setup.layout;
        let line = window.line();
        let now = self.tick(line, self.setup.clock.boot());
        match change {
            Publish::Open { worker, edge_ms, limit_ms } => {
                let Some(node) = layout.node(self.setup.config.datacenter_id, worker) else {
                    self.say(format!("the registry gave worker id {worker}, which has too many bits"));
                    return;
                };
                let start = Start { edge: layout.tick(edge_ms), now };
                let limit = layout.tick(limit_ms);
                let borrow = self.setup.config.borrow_max_ms;
                let bits = layout.sequence_bits();
                let sequencer =
                    Arc::new(Sequencer::open(bits, borrow, start, limit, last.as_deref(), Rules::default()));
                *last = Some(Arc::clone(&sequencer));
                self.active.store(Some(Arc::new(Active { worker, node, line, sequencer })));
                self.opened(worker);
            }
            Publish::Raise { limit_ms } => {
                if let Some(active) = self.active.load().as_deref() {
                    active.sequencer.raise(layout.tick(limit_ms), now);
                }
                self.up();
            }
            Publish::Line(line) => {
                if let Some(active) = self.active.load_full() {
                    let (worker, node, sequencer) = (active.worker, active.node, Arc::clone(&active.sequencer));
                    self.active.store(Some(Arc::new(Active { worker, node, line, sequencer })));
                }
            }
            Publish::Close => {
                if let Some(sequencer) = last.as_deref() {
                    sequencer.close();
                }
                self.active.store(None);
            }
        }
    }

    fn opened(&self, worker: u32) {
        let end = rfc3339(self.setup.layout.exhaustion());
        let registry = self.setup.registry.name();
        tracing::info!(worker_id = worker, registry, exhaustion = %end, "worker id claimed");
        let lead = Duration::from_nanos(self.view().lead_ns);
        if lead > self.setup.config.max_ahead {
            tracing::warn!(
                worker_id = worker,
                error_kind = "system",
                "timestamps lead the clock by {} s: the bound of the worker id lies so far ahead",
                lead.as_secs()
            );
        }
        self.up();
        self.settle(String::new());
    }

    fn up(&self) {
        self.reason().clear();
        self.setup.health.set(Part::Snowflake, State::Up);
    }

    fn down(&self, reason: String) {
        self.setup.health.set(Part::Snowflake, State::Down(reason));
    }

    /// Looks whether what is published still serves.
    fn after_event(&self, window: &Window) {
        self.metrics.offset_ns.set(window.offset());
        let view = self.view();
        if view.window_remaining_ms > 0 {
            return;
        }
        if let Some(worker) = view.worker {
            self.down(format!("worker id {worker} has no window left: {}", view.reason));
        } else if self.settled.load(Ordering::Acquire) {
            self.down(view.reason);
        }
    }

    fn tell(&self, notice: &Notice) {
        let (metrics, registry) = (&self.metrics, self.setup.registry.name());
        match notice {
            Notice::NotClaimed(text) => {
                metrics.register_failures.add(1);
                let text = format!("no worker id: {text}");
                // One line for what repeats.
                if *self.reason() != text {
                    tracing::warn!(registry, error_kind = "system", "{text}");
                }
                self.settle(text);
            }
            Notice::NotRenewed(text) => {
                if *self.reason() != *text {
                    tracing::warn!(registry, error_kind = "system", "window not renewed: {text}");
                }
                self.say(text.clone());
            }
            Notice::Lost(worker) => {
                metrics.lost.add(1);
                tracing::warn!(
                    worker_id = worker,
                    registry,
                    error_kind = "system",
                    "worker id claimed by another node"
                );
            }
            Notice::Missing(worker) => {
                let text = "the record of the worker id is gone; it is never used again";
                tracing::error!(worker_id = worker, registry, error_kind = "system", "{text}");
            }
            Notice::Regression { worker, confirmed_ms, found_ms } => {
                metrics.regressions.add(1);
                let (confirmed, found) = (rfc3339(*confirmed_ms), rfc3339(*found_ms));
                let text = "the registry has lost a confirmed write: after a restore stop all nodes, run after-restore";
                tracing::error!(worker_id = worker, registry, %confirmed, %found, error_kind = "system", "{text}");
            }
            Notice::Rollback => {
                metrics.rollbacks.add(1);
                tracing::warn!(error_kind = "system", "a clock of this host moved backwards; ids are not affected");
            }
            Notice::Stepped(offset_ns) => {
                let text = "the wall clock has stepped; it is not followed before a restart";
                tracing::error!(offset_ms = offset_ns / 1_000_000, error_kind = "system", "{text}");
            }
            Notice::StepOver => tracing::info!("the wall clock agrees again"),
        }
    }
}
