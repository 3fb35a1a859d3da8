//! One grant from the question to a range that may be used: the breaker, the statement, the witness.
//!
//! What comes out of [`Supply::obtain`] was confirmed by the store and, where there is a witness, published there; what
//! does not come out is never used, and counted. The fence against ranges below what this process has received stands
//! behind it, where ranges are installed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Supply;
use super::breaker::Asker;
use super::circuit::OPEN;
use super::mark::{Blame, blame, next_mark};
use super::outcome::{self, Asked};
use crate::engine::Refusal;
use crate::ids::{TagName, random_u128};
use crate::metrics::{Counter, TagMetrics};
use crate::store::{Grant, Kind, StoreError, Tail, Witness};

/// The pause before the first retry of a refill and after the first refill that failed; later ones double it.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest such pause: how often a store that is down is asked for each tag in use.
pub(super) const LAST_PAUSE: Duration = Duration::from_secs(1);

/// How often a grant is asked for again at once because another node was faster at the witness: each time one of them
/// gets on, so this many are lost in a row only when as many nodes use the tag.
const MOST_RACES: u32 = 100;

/// How often raising a mark is tried while others move it.
const MARK_ATTEMPTS: u32 = 10;

/// The word for the cause where another node was faster.
const RACE: &str = "race";

/// The word for the cause where the store has lost commits.
const REGRESSION: &str = "regression";

/// What a grant is asked for.
pub(super) struct Ask<'a> {
    pub(super) tag: &'a TagName,
    pub(super) metrics: &'a TagMetrics,
    /// How many ids.
    pub(super) count: u64,
    /// The last id known to be given away.
    pub(super) last: u64,
    /// Whether the tag may probe a store whose breaker is open.
    pub(super) critical: bool,
}

/// The witness as the engines use it.
pub(super) struct Witnessed {
    witness: Arc<dyn Witness>,
    required: bool,
    /// Whether it could not be asked the last time.
    down: AtomicBool,
    /// Ranges that were published without it.
    skipped: Arc<Counter>,
}

impl Witnessed {
    pub(super) fn new(witness: Arc<dyn Witness>, required: bool, skipped: Arc<Counter>) -> Self {
        Self { witness, required, down: AtomicBool::new(false), skipped }
    }

    fn works(&self) {
        if self.down.swap(false, Ordering::Relaxed) {
            tracing::info!(witness = self.witness.name(), "the witness works again");
        }
    }

    /// It could not be asked, and surely did nothing: goes on without it where it is only preferred.
    fn missing(&self, error: StoreError) -> Result<(), StoreError> {
        let (name, text) = (self.witness.name(), error.text);
        if !self.down.swap(true, Ordering::Relaxed) {
            let then = if self.required { "no ids are fetched" } else { "ids are fetched without it" };
            tracing::warn!(witness = name, error_kind = "system", "the witness can't be asked, {then}: {text}");
        }
        if self.required {
            let text = format!("the witness in {name} can't be asked, and segment.witness requires it: {text}");
            return Err(StoreError::new(Kind::Transient, text).because("witness"));
        }
        self.skipped.add(1);
        Ok(())
    }
}

/// How often an attempt has failed, and what to do about it.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    failed: u32,
    races: u32,
}

impl Attempts {
    /// How long to wait before the next attempt, a new statement; `None`: there is none.
    pub(super) fn pause_after(&mut self, error: &StoreError, max_retry: u32) -> Option<Duration> {
        if error.reason == RACE && self.races < MOST_RACES {
            self.races += 1;
            return Some(Duration::ZERO);
        }
        let retry = matches!(error.kind, Kind::Transient | Kind::Unknown) && self.failed < max_retry;
        self.failed += 1;
        retry.then(|| pause(self.failed - 1))
    }
}

impl Supply {
    /// One grant of `ask.count` ids.
    ///
    /// # Errors
    /// Why there is no range that may be used; ids that the store gave, or may have given, are counted as discarded.
    pub(super) async fn obtain(&self, ask: &Ask<'_>) -> Result<Grant, StoreError> {
        let answer = self.ask(ask).await;
        if let Err(error) = &answer
            && error.reason != OPEN
        {
            ask.metrics.fetch_failures.add(error.reason, 1);
        }
        answer
    }

    async fn ask(&self, ask: &Ask<'_>) -> Result<Grant, StoreError> {
        self.await_witness(ask.tag).await?;
        let leave = self.admit(if ask.critical { Asker::Prober } else { Asker::Ordinary })?;
        ask.metrics.fetches.add(1);
        let asked = Asked { last: ask.last, count: ask.count };
        if let Some(grant) = outcome::before_the_answer(asked, self.rules.outcome) {
            let (store, tag, count) = (Arc::clone(&self.store), ask.tag.clone(), ask.count);
            self.runtime.spawn(async move { store.grant(&tag, count).await });
            return Ok(grant);
        }
        let sent = self.clock.boot();
        let answer = self.store.grant(ask.tag, ask.count).await;
        self.counts.fetch_duration.observe(self.clock.boot().since(sent));
        leave.report(answer.as_ref().err());
        match outcome::after(asked, answer, self.rules.outcome) {
            Ok(grant) => self.publish(ask, grant).await,
            Err(error) => {
                if error.kind == Kind::Unknown {
                    self.discarded.add("unknown", ask.count);
                }
                Err(error)
            }
        }
    }

    /// Asks a witness that is required and was down whether it is back, so that no ids are fetched that could not be
    /// published.
    async fn await_witness(&self, tag: &TagName) -> Result<(), StoreError> {
        match &self.witness {
            Some(witnessed) if witnessed.required && witnessed.down.load(Ordering::Relaxed) => {
                witnessed.witness.read(tag).await.map(drop).or_else(|error| witnessed.missing(error))
            }
            _ => Ok(()),
        }
    }

    /// Moves the witness's mark over the range that was granted.
    async fn publish(&self, ask: &Ask<'_>, grant: Grant) -> Result<Grant, StoreError> {
        let Some(witnessed) = &self.witness else { return Ok(grant) };
        let mark = match witnessed.witness.read(ask.tag).await {
            Ok(mark) => mark,
            Err(error) => return self.without(witnessed, error, grant),
        };
        let to = match next_mark(grant.range, mark) {
            Ok(to) => to,
            Err(mark) => return Err(self.below(ask.tag, grant, mark).await),
        };
        match witnessed.witness.compare_and_set(ask.tag, mark, to).await {
            Ok(true) => {
                witnessed.works();
                Ok(grant)
            }
            Ok(false) => Err(self.lost_race(grant)),
            Err(error) if error.kind == Kind::Unknown => {
                // Also when the mark is found at its end later: somebody else may have put it there.
                self.discarded.add("unknown", grant.range.len());
                Err(error.because("witness"))
            }
            Err(error) => self.without(witnessed, error, grant),
        }
    }

    /// The witness surely did nothing.
    fn without(&self, witnessed: &Witnessed, error: StoreError, grant: Grant) -> Result<Grant, StoreError> {
        let answer = witnessed.missing(error);
        if answer.is_err() {
            self.discarded.add("unknown", grant.range.len());
        }
        answer.map(|()| grant)
    }

    fn lost_race(&self, grant: Grant) -> StoreError {
        self.discarded.add(RACE, grant.range.len());
        StoreError::new(Kind::Transient, "other nodes were faster").because(RACE)
    }

    /// A range that does not lie above the mark: why, and what is done about it.
    async fn below(&self, tag: &TagName, grant: Grant, mark: u64) -> StoreError {
        let row = match self.store.find(tag).await {
            Ok(Some(row)) => row,
            Ok(None) => {
                self.discarded.add(REGRESSION, grant.range.len());
                return StoreError::new(Kind::Missing, "there is no row");
            }
            Err(error) => {
                self.discarded.add("unknown", grant.range.len());
                return error;
            }
        };
        match blame(grant.range, mark, row.max_id, row.floor) {
            Blame::Race => self.lost_race(grant),
            Blame::Regression => {
                self.discarded.add(REGRESSION, grant.range.len());
                self.repair(tag, mark).await
            }
        }
    }

    /// The store has lost commits: raises the row to `last`, the last id that was given away before, and gives the error
    /// that makes the refill try again.
    pub(super) async fn repair(&self, tag: &TagName, last: u64) -> StoreError {
        tracing::error!(
            biz_tag = %tag, error_kind = "system",
            "the store granted ids below what it had granted before: it has lost commits; the row is raised"
        );
        self.counts.regressions.add(1);
        match self.store.raise_floor(tag, last).await {
            Ok(_) => StoreError::new(Kind::Transient, "the store had lost commits").because(REGRESSION),
            Err(error) => error,
        }
    }

    /// Raises the witness's mark of `tag` to at least `floor`, below which no range is published from then on.
    ///
    /// # Errors
    /// Why that is not known to have happened; doing it again is fine. Where the witness is only preferred, it is gone
    /// without.
    pub async fn raise_mark(&self, tag: &TagName, floor: u64) -> Result<(), StoreError> {
        let Some(witnessed) = &self.witness else { return Ok(()) };
        let mut unknown = StoreError::new(Kind::Transient, "other nodes kept moving the mark");
        for _ in 0..MARK_ATTEMPTS {
            let mark = match witnessed.witness.read(tag).await {
                Ok(mark) => mark,
                Err(error) => return witnessed.missing(error),
            };
            if mark.is_some_and(|mark| mark >= floor) {
                return Ok(());
            }
            match witnessed.witness.compare_and_set(tag, mark, floor).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // The next look tells.
                Err(error) if error.kind == Kind::Unknown => unknown = error,
                Err(error) => return witnessed.missing(error),
            }
        }
        Err(unknown)
    }

    /// Lowers the witness's mark to the last id that was issued, so that the tail may go back to the store. `false`: it
    /// may not.
    pub async fn lower_mark(&self, tail: &Tail) -> bool {
        let Some(witnessed) = &self.witness else { return true };
        let (end, issued) = (tail.unused.last(), tail.unused.start() - 1);
        witnessed.witness.compare_and_set(&tail.tag, Some(end), issued).await == Ok(true)
    }

    /// What requests are told of a tag whose row has vanished from the store. `highest` is the last id that is known to
    /// be given away; the log, which has no ids, is told if it is `news`.
    pub(super) fn vanished(&self, tag: &TagName, highest: u64, news: bool) -> Refusal {
        let store = self.store.name();
        if news {
            tracing::error!(
                biz_tag = %tag, error_kind = "system",
                "the row of the tag has vanished from {store}: the tag is closed until the row is restored"
            );
        }
        // Each node knows what it was given itself.
        let others = if self.store.shared() { ", and no less than any other node names" } else { "" };
        Refusal::Backend(format!(
            "its row has vanished from {store}; restore it with a max_id of {highest} or more{others}, or use another tag"
        ))
    }
}

/// How long to wait after failure number `attempt`, from 0: doubled each time, and between half of it and all, so that
/// nodes and tags don't ask in step.
pub(super) fn pause(attempt: u32) -> Duration {
    let whole = FIRST_PAUSE.saturating_mul(1 << attempt.min(10)).min(LAST_PAUSE);
    let random = random_u128().unwrap_or(0) % 1024;
    whole / 2 + whole / 2 * u32::try_from(random).unwrap_or(0) / 1024
}

#[cfg(test)]
mod tests;
