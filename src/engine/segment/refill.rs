//! Asking the store for a tag's next range, on a task that no client can cancel.
//!
//! A refill ends in exactly one of two ways, [`Buffer::install`](super::buffer::Buffer::install) or
//! [`Buffer::fail`](super::buffer::Buffer::fail), also when the task dies: the guard that runs it sees to that, so a tag
//! is never stuck. Then all that wait are woken.

use std::sync::Arc;
use std::time::Duration;

use super::{Segment, State, Supply};
use crate::clock::Boot;
use crate::engine::Refusal;
use crate::health::{self, Change, Part};
use crate::ids::random_u128;
use crate::store::{Grant, Kind, StoreError};

/// The pause before the first retry of a refill and after the first refill that failed; later ones double it.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest such pause: how often a store that is down is asked for each tag in use.
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// A tag without ids, for whose ids requests wait: how long its statement is held back as long as more and more of them
/// come, and how often that is looked at. One statement covers all who came before it was sent, and who comes just after
/// that waits for two: on a store that takes 200 ms for one, longer than `server.wait_max`.
const GATHER_ROUNDS: u32 = 20;
const GATHER_ROUND: Duration = Duration::from_millis(1);

/// The refill of one tag, from when it was started until all who wait for it were told.
pub(super) struct InFlight {
    segment: Arc<Segment>,
    done: bool,
}

impl InFlight {
    pub(super) fn new(segment: Arc<Segment>) -> Self {
        Self { segment, done: false }
    }

    /// Refills until nobody who waits lacks ids.
    pub(super) async fn run(mut self) {
        self.segment.gather().await;
        loop {
            let again = self.segment.refill_once().await;
            self.done = !again;
            self.segment.wake();
            if !again {
                return;
            }
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.done {
            let refusal = Refusal::Backend("the refill was broken off; ask again".into());
            let retry_at = self.segment.supply.clock.boot().plus(FIRST_PAUSE);
            self.segment.change(|state| state.buffer.fail(refusal, retry_at));
            self.segment.wake();
        }
    }
}

impl Segment {
    /// Lets those who come at the same moment come before the statement is sent.
    async fn gather(&self) {
        let mut known = 0;
        for _ in 0..GATHER_ROUNDS {
            let need = self.lock().buffer.need();
            if need <= known {
                return;
            }
            known = need;
            tokio::time::sleep(GATHER_ROUND).await;
        }
    }

    /// One refill; whether the next one has been started because this one was not enough.
    async fn refill_once(&self) -> bool {
        // Both are fair, so that ten thousand cold tags take turns, and a tag in use waits for a few of them at most.
        let cold = self.lock().buffer.is_cold();
        let turn = if cold { Some(self.supply.cold.acquire().await) } else { None };
        let permit = self.supply.permits.acquire().await;
        let mut attempt = 0;
        let outcome = loop {
            match self.attempt().await {
                Ok(again) => break Ok(again),
                Err(error) => {
                    let retry = matches!(error.kind, Kind::Transient | Kind::Unknown);
                    if !retry || attempt >= self.supply.max_retry || self.lock().buffer.is_closed() {
                        break Err(error);
                    }
                    tokio::time::sleep(pause(attempt)).await;
                    attempt += 1;
                }
            }
        };
        drop((permit, turn));
        match outcome {
            Ok(again) => again,
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    /// One statement, and what came of it.
    async fn attempt(&self) -> Result<bool, StoreError> {
        let count = {
            let state = self.lock();
            state.buffer.refill_count(state.step.next_step(), state.step.most())
        };
        self.metrics.fetches.add(1);
        let asked = self.supply.clock.boot();
        let answer = self.supply.store.grant(&self.tag, count).await;
        self.supply.counts.fetch_duration.observe(self.supply.clock.boot().since(asked));
        let error = match answer {
            Ok(grant) => match self.install(grant) {
                Ok(again) => return Ok(again),
                Err(highest) => self.repair(highest).await,
            },
            Err(error) => error,
        };
        self.metrics.fetch_failures.add(error.reason, 1);
        if error.kind == Kind::Unknown {
            self.supply.discarded.add("unknown", count);
        }
        Err(error)
    }

    fn install(&self, grant: Grant) -> Result<bool, u64> {
        let result = self.change(|state| {
            let result = state.buffer.install(grant, self.supply.clock.boot());
            if result.is_ok() {
                (state.failures, state.vanished) = (0, false);
            }
            result
        });
        if result.is_ok() {
            self.supply.tell(health::State::Up);
        }
        result
    }

    /// The store has lost commits: raises the row above everything this node was given, and gives the error that makes
    /// the refill try again.
    async fn repair(&self, highest: u64) -> StoreError {
        tracing::error!(
            biz_tag = %self.tag, error_kind = "system",
            "the store granted ids below what it had granted before: it has lost commits; the row is raised"
        );
        self.supply.counts.regressions.add(1);
        match self.supply.store.raise_floor(&self.tag, highest.saturating_sub(1)).await {
            Ok(_) => StoreError::new(Kind::Transient, "the store had lost commits").because("regression"),
            Err(error) => error,
        }
    }

    fn fail(&self, error: &StoreError) {
        let now = self.supply.clock.boot();
        let down = self.change(|state| match error.kind {
            Kind::Missing => {
                let (refusal, retry_at) = self.vanished(state);
                state.buffer.fail(refusal, retry_at);
                false
            }
            Kind::Retired => {
                state.buffer.close(Refusal::Retired);
                state.buffer.clear("stop");
                state.buffer.fail(Refusal::Retired, now);
                false
            }
            Kind::Exhausted => {
                state.buffer.fail(Refusal::AtMax { max: state.id_limit, left: 0 }, now.plus(LAST_PAUSE));
                false
            }
            Kind::Conflict | Kind::TooMany | Kind::Transient | Kind::Unknown | Kind::Permanent => {
                let retry_at = now.plus(pause(state.failures));
                state.failures = state.failures.saturating_add(1);
                state.buffer.fail(Refusal::Backend(error.text.clone()), retry_at);
                true
            }
        });
        self.supply.tell(if down { health::State::Down(error.text.clone()) } else { health::State::Up });
    }

    /// Drops everything, since the row is gone: what requests are told, and until when without asking again.
    pub(super) fn vanished(&self, state: &mut State) -> (Refusal, Boot) {
        let store = self.supply.store.name();
        let highest = state.buffer.highest().max(state.buffer.floor()).max(state.loaded);
        if !std::mem::replace(&mut state.vanished, true) {
            // Without the number, which is an id: only the reply has it.
            tracing::error!(
                biz_tag = %self.tag, error_kind = "system",
                "the row of the tag has vanished from {store}: the tag is closed until the row is restored"
            );
        }
        let text = format!(
            "its row has vanished from {store}; restore it with a max_id of {highest} or more, or use another tag"
        );
        state.buffer.clear("stop");
        (Refusal::Backend(text), self.supply.clock.boot().plus(LAST_PAUSE))
    }
}

impl Supply {
    /// Asks a store that is down whether a grant could be made now, so that a node without requests notices when it can.
    pub async fn probe(&self) {
        if self.health.is_down(Part::Store) {
            let answer = self.store.probe().await;
            self.tell(answer.map_or_else(|error| health::State::Down(error.text), |()| health::State::Up));
        }
    }

    /// Tells the node's health how the store is, and the log when that is news.
    fn tell(&self, now: health::State) {
        let reason = if let health::State::Down(reason) = &now { reason.clone() } else { String::new() };
        match self.health.report(Part::Store, now) {
            Change::None => {}
            Change::Failed => {
                tracing::warn!(store = self.store.name(), error_kind = "system", "grants fail: {reason}");
            }
            Change::Recovered => tracing::info!(store = self.store.name(), "grants work again"),
        }
    }
}

/// How long to wait after failure number `attempt`, from 0: doubled each time, and between half of it and all, so that
/// nodes and tags don't ask in step.
fn pause(attempt: u32) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << attempt.min(10)).min(LAST_PAUSE);
    let random = random_u128().unwrap_or(0) % 1024;
    whole / 2 + whole / 2 * u32::try_from(random).unwrap_or(0) / 1024
}
