//! Asking the store only while that makes sense, and telling how it is.
//!
//! The [`breaker`](super::breaker) decides; here its leave to ask is a value that reports back whatever happens to the
//! task that holds it, and a task asks an open breaker's store until it works again, so that no request need come for that.

use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use super::Supply;
use super::breaker::{Asker, Breaker, Circuit, PROBE_EVERY, Pass, THRESHOLD};
use crate::health::{self, Change, Part};
use crate::store::{Kind, StoreError};

/// The word for the cause where the store was not asked at all.
pub(super) const OPEN: &str = "circuit";

/// The breaker with what people are told of it.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    breaker: Breaker,
    /// What the last failure said.
    cause: String,
    /// Whether the task that asks an open breaker's store runs.
    watched: bool,
}

/// The leave to ask the store once. Dropped without [`Leave::report`], it decided nothing.
pub(super) struct Leave<'s> {
    supply: &'s Supply,
    pass: Option<Pass>,
}

impl Leave<'_> {
    /// Hands the leave back with what the store's answer said was wrong.
    pub(super) fn report(mut self, error: Option<&StoreError>) {
        let (Some(pass), now) = (self.pass.take(), self.supply.clock.boot()) else { return };
        self.supply.change_circuit(|guarded| match error {
            Some(error) if error.held_up() => guarded.breaker.undecided(pass, now),
            Some(error) if matches!(error.kind, Kind::Transient | Kind::Unknown | Kind::Permanent) => {
                guarded.cause.clone_from(&error.text);
                guarded.breaker.failed(pass, now);
            }
            // It has answered, if only that there is no such row.
            Some(_) | None => guarded.breaker.succeeded(pass),
        });
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            let now = self.supply.clock.boot();
            self.supply.change_circuit(|guarded| guarded.breaker.undecided(pass, now));
        }
    }
}

impl Supply {
    /// The leave to ask the store once.
    ///
    /// # Errors
    /// [`OPEN`] with the last failure, while the breaker is open and the asker may not be the probe.
    pub(super) fn admit(&self, asker: Asker) -> Result<Leave<'_>, StoreError> {
        let now = self.clock.boot();
        let pass = self.change_circuit(|guarded| {
            guarded.breaker.admit(asker, now).ok_or_else(|| {
                let (store, cause) = (self.store.name(), &guarded.cause);
                let text = format!("{store} keeps failing and is asked about once a second whether it works: {cause}");
                StoreError::new(Kind::Permanent, text).because(OPEN)
            })
        })?;
        Ok(Leave { supply: self, pass: Some(pass) })
    }

    /// Whether the store is asked.
    pub(super) fn circuit(&self) -> Circuit {
        self.guarded().breaker.circuit()
    }

    fn guarded(&self) -> MutexGuard<'_, Guarded> {
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the breaker; what that means for others is told once.
    fn change_circuit<T>(&self, make: impl FnOnce(&mut Guarded) -> T) -> T {
        let mut guarded = self.guarded();
        let before = guarded.breaker.circuit();
        let result = make(&mut guarded);
        let after = guarded.breaker.circuit();
        // Under the lock, so that the gauge ends with what holds.
        self.counts.circuit.set(after as i64);
        let cause = guarded.cause.clone();
        let watch = after != Circuit::Closed && !std::mem::replace(&mut guarded.watched, after != Circuit::Closed);
        drop(guarded);
        let store = self.store.name();
        match (before, after) {
            (Circuit::Closed, Circuit::Open | Circuit::HalfOpen) => tracing::warn!(
                store,
                error_kind = "system",
                "{THRESHOLD} failures in a row: tags with ids left go on, the store is asked about once a second: {cause}"
            ),
            (Circuit::Open | Circuit::HalfOpen, Circuit::Closed) => tracing::info!(store, "the store is asked again"),
            _ => {}
        }
        if watch {
            self.runtime.spawn(watch_over(Weak::clone(&self.this)));
        }
        result
    }

    /// Asks a store that is down whether a grant could be made now, so that a node without requests notices when it can.
    pub async fn probe(&self) {
        if self.circuit() == Circuit::Closed && !self.health.is_down(Part::Store) {
            return;
        }
        // Refused: another probe is out, or was a moment ago.
        let Ok(leave) = self.admit(Asker::Prober) else { return };
        let answer = self.store.probe().await;
        leave.report(answer.as_ref().err());
        self.tell(answer.map_or_else(|error| health::State::Down(error.text), |()| health::State::Up));
    }

    /// Tells the node's health how the store is, and the log when that is news.
    pub(super) fn tell(&self, now: health::State) {
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

/// Asks the store of an open breaker until it is closed.
async fn watch_over(supply: Weak<Supply>) {
    loop {
        tokio::time::sleep(PROBE_EVERY).await;
        let Some(supply) = Weak::upgrade(&supply) else { return };
        let supply: Arc<Supply> = supply;
        supply.probe().await;
        let mut guarded = supply.guarded();
        if guarded.breaker.circuit() == Circuit::Closed {
            guarded.watched = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests;
