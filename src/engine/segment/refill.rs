//! Asking the store for a tag's next range, on a task that no client can cancel.
//!
//! A refill ends in exactly one of two ways, [`Buffer::install`](super::buffer::Buffer::install) or
//! [`Buffer::fail`](super::buffer::Buffer::fail), also when the task dies: the guard that runs it sees to that, so a tag
//! is never stuck. Then all that wait are woken.

use std::sync::Arc;
use std::time::Duration;

use super::circuit::OPEN;
use super::grants::{Ask, Attempts, FIRST_PAUSE, LAST_PAUSE, pause};
use super::{Segment, State};
use crate::clock::Boot;
use crate::engine::Refusal;
use crate::health;
use crate::store::{Grant, Kind, StoreError};

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
            self.segment.change(|state| {
                state.cause = None;
                state.buffer.fail(refusal, retry_at);
            });
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
        let mut attempts = Attempts::default();
        loop {
            // Both are fair, so that ten thousand cold tags take turns, and a tag in use waits for a few of them at most;
            // and given up in the pauses, so that a tag in trouble keeps no other from its turn.
            let cold = self.lock().buffer.is_cold();
            let turn = if cold { Some(self.supply.cold.acquire().await) } else { None };
            let permit = self.supply.permits.acquire().await;
            let outcome = self.attempt().await;
            drop((permit, turn));
            let error = match outcome {
                Ok(again) => return again,
                Err(error) => error,
            };
            match attempts.pause_after(&error, self.supply.max_retry) {
                Some(pause) if !self.lock().buffer.is_closed() => {
                    self.lock().cause = Some(Refusal::Backend(error.text));
                    tokio::time::sleep(pause).await;
                }
                _ => {
                    self.fail(&error);
                    return false;
                }
            }
        }
    }

    /// One statement, and what came of it.
    async fn attempt(&self) -> Result<bool, StoreError> {
        let (count, last, critical) = {
            let state = self.lock();
            let count = state.buffer.refill_count(state.step.next_step(), state.step.most());
            (count, state.buffer.highest().max(state.loaded), state.critical)
        };
        let ask = Ask { tag: &self.tag, metrics: &self.metrics, count, last, critical };
        let grant = self.supply.obtain(&ask).await?;
        match self.install(grant) {
            Ok(again) => Ok(again),
            Err(highest) => {
                let error = self.supply.repair(&self.tag, highest.saturating_sub(1)).await;
                self.metrics.fetch_failures.add(error.reason, 1);
                Err(error)
            }
        }
    }

    fn install(&self, grant: Grant) -> Result<bool, u64> {
        let result = self.change(|state| {
            let result = state.buffer.install(grant, self.supply.clock.boot());
            if result.is_ok() {
                (state.failures, state.vanished, state.cause) = (0, false, None);
            }
            result
        });
        if result.is_ok() {
            self.supply.tell(health::State::Up);
        }
        result
    }

    fn fail(&self, error: &StoreError) {
        let now = self.supply.clock.boot();
        let down = self.change(|state| {
            state.cause = None;
            match error.kind {
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
                    // Asking a breaker costs the store nothing, and it may close at any moment.
                    let open = error.reason == OPEN;
                    let retry_at = now.plus(if open { FIRST_PAUSE } else { pause(state.failures) });
                    state.failures = state.failures.saturating_add(u32::from(!open));
                    state.buffer.fail(Refusal::Backend(error.text.clone()), retry_at);
                    true
                }
            }
        });
        if error.reason != OPEN {
            self.supply.tell(if down { health::State::Down(error.text.clone()) } else { health::State::Up });
        }
    }

    /// Drops everything, since the row is gone: what requests are told, and until when without asking again.
    pub(super) fn vanished(&self, state: &mut State) -> (Refusal, Boot) {
        let highest = state.buffer.highest().max(state.buffer.floor()).max(state.loaded);
        let news = !std::mem::replace(&mut state.vanished, true);
        state.buffer.clear("stop");
        (self.supply.vanished(&self.tag, highest, news), self.supply.clock.boot().plus(LAST_PAUSE))
    }
}
