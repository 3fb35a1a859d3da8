//! The double buffer of one tag: which ids are handed out, when more are wanted, and what is dropped.
//!
//! Guaranteed: ids leave in increasing order, each once, none at or below the floor, none after the tag was closed; a
//! batch leaves whole or not at all. How: one cursor in `current`; the ranges behind it are kept in the order of their
//! lower bound; a range that starts below the highest end ever received is dropped where it is installed, and checked
//! again where it becomes `current`. At most one refill is in flight, and what is asked for meanwhile is added up, so
//! that the next one covers it. Pure: time comes in, and asking the store is the caller's business.
//! Rejected: joining ranges (a late one could bring the past back), a flag that a failed refill has to remember to clear.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Boot;
use crate::engine::{Demand, Refusal};
use crate::ids::{IdRange, push_range};
use crate::store::Grant;

mod end;

/// How many ranges wait behind `current` at most: `next`, and one refill for a request that needs more than both. Where
/// ever larger requests give up before their refill is there, the oldest range goes when another one comes.
const MAX_QUEUED: usize = 2;

/// A segment that lasts less than so many refills has the next one fetched as soon as it starts.
const FAST_REFILLS: u32 = 10;

/// Where requests wait for ids that are not there, how many of them are expected to come for each that is known: those
/// who come right after the statement was sent must not have to wait for the next one.
const CROWD: u64 = 3;

/// Bugs to plant, for tests that show that they would be found. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// B17: a range below what was received before is accepted.
    pub accept_lower: bool,
    /// B12: a range that arrives late takes the place of those that wait.
    pub late_replaces: bool,
}

/// What a request got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All it asked for.
    All,
    /// Too few: wait for the refill in flight, which may be the one that [`Buffer::start_refill`] starts now.
    Wait,
    /// Too few, and waiting does not help.
    Refused(Refusal),
}

/// Requests that had to wait for a refill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Starved {
    /// How many ids they lacked.
    pub waited: u64,
    /// Whether the tag never had an id before.
    pub cold: bool,
}

#[derive(Clone, Debug)]
struct Trouble {
    refusal: Refusal,
    retry_at: Boot,
}

/// The ranges of one tag.
#[derive(Debug)]
pub struct Buffer {
    /// The next id of `current`.
    cursor: u64,
    /// The id after the last one of `current`.
    end: u64,
    /// From this cursor on a preload is due; `u64::MAX` while none can be.
    trigger: u64,
    /// Where the preload of `current` is due when nothing else is there.
    threshold: u64,
    queue: VecDeque<IdRange>,
    queued: u64,
    /// The highest end ever received, or where the fence was set: no later range may start below it.
    highest: u64,
    floor: u64,
    /// The nonce of the last grant, while its end is the end of the last range here.
    nonce: Option<u128>,
    /// When `current` became current.
    started: Boot,
    /// The first id of `current`, and how many ids were used before it.
    first: u64,
    used_before: u64,
    /// Whether `current` has started since [`Self::take_started`] was called.
    fresh: bool,
    /// When the use is to be judged next.
    review_at: Boot,
    /// What requests waited for since [`Self::take_starved`] was called.
    starved: Option<Starved>,
    /// How long the last refill took.
    refill_time: Duration,
    /// When the refill in flight was asked for.
    in_flight: Option<Boot>,
    /// What the refill in flight has to cover, as far as it was known when it was asked for.
    ordered: u64,
    /// Ids asked for in vain since the last refill ended, apart from `whole`.
    waiting: u64,
    /// The same for requests of consecutive ids.
    whole: u64,
    /// The largest request among them.
    largest: u64,
    trouble: Option<Trouble>,
    closed: Option<Refusal>,
    lost: Vec<(&'static str, u64)>,
    preload_permille: u64,
    rules: Rules,
}

impl Buffer {
    /// An empty buffer whose later ids are above `floor`. `preload_permille` of a segment are used when the next one is
    /// asked for.
    #[must_use]
    pub fn new(floor: u64, preload_permille: u64, rules: Rules) -> Self {
        Self {
            cursor: 0,
            end: 0,
            trigger: 0,
            threshold: 0,
            queue: VecDeque::new(),
            queued: 0,
            highest: 0,
            floor,
            nonce: None,
            started: Boot(0),
            first: 0,
            used_before: 0,
            fresh: false,
            review_at: Boot(u64::MAX),
            starved: None,
            refill_time: Duration::ZERO,
            in_flight: None,
            ordered: 0,
            waiting: 0,
            whole: 0,
            largest: 0,
            trouble: None,
            closed: None,
            lost: Vec::new(),
            preload_permille: preload_permille.min(1000),
            rules,
        }
    }

    /// Appends ids to `out`. Follow it with [`Self::start_refill`] when [`Self::refill_due`] says so, and let the use be
    /// judged when [`Self::is_due`] says so.
    #[inline]
    pub fn take(&mut self, demand: Demand, now: Boot, out: &mut Vec<IdRange>) -> Taken {
        if demand.count() <= self.end - self.cursor {
            self.issue(demand.count(), out);
            return Taken::All;
        }
        self.take_across(demand, now, out)
    }

    /// Whether a refill may be due: a hint that costs nothing, [`Self::start_refill`] decides.
    #[inline]
    #[must_use]
    pub const fn refill_due(&self) -> bool {
        self.cursor >= self.trigger
    }

    /// Whether anything is to be done that a take alone does not do: a refill, or judging how the ids are used.
    #[inline]
    #[must_use]
    pub const fn is_due(&self, now: Boot) -> bool {
        self.refill_due() || now.0 >= self.review_at.0
    }

    /// How many ids were used since the start; those that were dropped are not.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used_before + (self.cursor - self.first)
    }

    /// How many ids had been used when `current` started, if it did since the last call. [`Self::is_due`] holds again from
    /// `review_at` on, or when the next segment starts.
    pub fn take_started(&mut self, review_at: Boot) -> Option<u64> {
        self.review_at = if self.is_cold() { Boot(u64::MAX) } else { review_at };
        std::mem::take(&mut self.fresh).then_some(self.used_before)
    }

    /// Whether requests had to wait for a refill that has ended well since the last call.
    pub const fn take_starved(&mut self) -> Option<Starved> {
        self.starved.take()
    }

    fn issue(&mut self, n: u64, out: &mut Vec<IdRange>) {
        if let Some(range) = IdRange::new(self.cursor, self.cursor + n) {
            push_range(out, range);
            self.cursor += n;
        }
    }

    fn take_across(&mut self, demand: Demand, now: Boot, out: &mut Vec<IdRange>) -> Taken {
        if let Some(refusal) = &self.closed {
            return Taken::Refused(refusal.clone());
        }
        let missing = match demand {
            Demand::Singles(n) => self.take_some(n, now, out),
            Demand::Batch(n) if n <= self.remaining() => self.take_some(n, now, out),
            Demand::Consecutive(n) if self.skip_to(n, now) => self.take_some(n, now, out),
            Demand::Batch(n) | Demand::Consecutive(n) => n,
        };
        if missing == 0 {
            return Taken::All;
        }
        match &self.trouble {
            Some(trouble) if self.in_flight.is_none() && now < trouble.retry_at => {
                Taken::Refused(self.told(&trouble.refusal, demand))
            }
            _ => {
                let sum = if matches!(demand, Demand::Consecutive(_)) { &mut self.whole } else { &mut self.waiting };
                *sum = sum.saturating_add(missing);
                self.largest = self.largest.max(missing);
                // Asks for a refill whatever the cursor is.
                self.trigger = if self.in_flight.is_none() { 0 } else { u64::MAX };
                Taken::Wait
            }
        }
    }

    /// What a request is told: `refusal`, with what is here for such a request.
    fn told(&self, refusal: &Refusal, demand: Demand) -> Refusal {
        let whole = matches!(demand, Demand::Consecutive(_));
        match refusal {
            Refusal::AtMax { max, .. } => {
                Refusal::AtMax { max: *max, left: if whole { self.longest() } else { self.remaining() } }
            }
            other => other.clone(),
        }
    }

    /// Issues up to `n` ids from the ranges in their order; gives how many it lacked.
    fn take_some(&mut self, mut n: u64, now: Boot, out: &mut Vec<IdRange>) -> u64 {
        loop {
            let part = n.min(self.end - self.cursor);
            self.issue(part, out);
            n -= part;
            if n == 0 || !self.promote(now) {
                return n;
            }
        }
    }

    /// Makes the first range that holds `n` ids current and drops those before it; `false`, and nothing is dropped, when
    /// there is none.
    fn skip_to(&mut self, n: u64, now: Boot) -> bool {
        let Some(index) = self.queue.iter().position(|range| range.len() >= n) else { return false };
        for _ in 0..=index {
            self.skip("incrby", self.end);
            self.promote(now);
        }
        n <= self.end - self.cursor
    }

    /// Makes the next range current, in place of one that is used up.
    fn promote(&mut self, now: Boot) -> bool {
        while let Some(range) = self.queue.pop_front() {
            self.queued -= range.len();
            // The second look: what was installed wrongly is not handed out.
            if range.start() < self.end && !self.rules.accept_lower && !self.rules.late_replaces {
                self.lose("regression", range.len());
                continue;
            }
            let fast = !self.is_cold() && now.since(self.started) < self.refill_time * FAST_REFILLS;
            let used = u128::from(range.len()) * u128::from(self.preload_permille) / 1000;
            let used = if fast { 0 } else { u64::try_from(used).unwrap_or(0) };
            self.used_before = self.used();
            (self.cursor, self.end, self.first) = (range.start(), range.end(), range.start());
            (self.fresh, self.review_at) = (true, Boot(0));
            self.threshold = range.start() + used;
            self.started = now;
            self.arm();
            return true;
        }
        false
    }

    fn arm(&mut self) {
        let can = self.in_flight.is_none() && self.queue.is_empty() && self.closed.is_none();
        self.trigger = if can { self.threshold } else { u64::MAX };
    }

    /// Whether the caller must ask the store now: the refill counts as in flight from then on, until
    /// [`Self::install`] or [`Self::fail`].
    pub fn start_refill(&mut self, now: Boot) -> bool {
        let wait = self.trouble.as_ref().is_some_and(|trouble| now < trouble.retry_at);
        if !self.refill_due() || self.in_flight.is_some() || self.closed.is_some() || wait {
            return false;
        }
        self.order(now, self.need());
        true
    }

    fn order(&mut self, now: Boot, need: u64) {
        (self.in_flight, self.ordered) = (Some(now), need);
        self.trigger = u64::MAX;
    }

    /// How many ids the refill in flight asks the store for: `step`, or what waits and is not covered, up to `most`
    /// unless one request alone needs more. To be asked right before the statement, so that it covers the latest.
    #[must_use]
    pub fn refill_count(&self, step: u64, most: u64) -> u64 {
        let need = self.ordered.max(self.need());
        // One large request is no crowd.
        let crowd = need.saturating_sub(self.largest).saturating_mul(CROWD);
        step.max(need.saturating_add(crowd).min(most.max(self.largest))).max(1)
    }

    /// How many ids the requests that wait lack.
    #[must_use]
    pub fn need(&self) -> u64 {
        let current = self.end - self.cursor;
        let whole = if self.whole > self.longest() { self.whole } else { 0 };
        if self.waiting <= self.remaining() && whole == 0 {
            return 0;
        }
        // What has to make room for the refill can't serve them.
        let kept = self.queued + if self.queue.len() < MAX_QUEUED { current } else { 0 };
        whole.saturating_add(self.waiting.saturating_sub(kept))
    }

    /// How many consecutive ids there are.
    fn longest(&self) -> u64 {
        self.queue.iter().map(|range| range.len()).max().unwrap_or(0).max(self.end - self.cursor)
    }

    /// Installs what the store granted and ends the refill. `Ok(true)` when the next refill starts at once, because
    /// more waits than this one brought.
    ///
    /// # Errors
    /// The end below which the range starts, though all of the tag's ids below it were given away before: it is
    /// dropped, the store has lost something, and the refill stays in flight for another attempt.
    pub fn install(&mut self, grant: Grant, now: Boot) -> Result<bool, u64> {
        self.refill_time = self.in_flight.take().map_or(self.refill_time, |asked| now.since(asked));
        self.trouble = None;
        let (cold, waited) = (self.is_cold(), self.waiting.saturating_add(self.whole).max(self.ordered));
        let result = self.accept(grant, now);
        if result.is_err() {
            self.in_flight = Some(now);
            return result.map(|()| false);
        }
        if self.cursor == self.end && self.closed.is_none() {
            self.promote(now);
        }
        self.arm();
        if waited > 0 {
            self.starved = Some(Starved { waited, cold });
        }
        let (need, largest) = (self.need(), self.largest);
        self.forget_waiting();
        if need == 0 || self.closed.is_some() {
            return Ok(false);
        }
        self.order(now, need);
        self.largest = largest;
        Ok(true)
    }

    fn accept(&mut self, Grant { range, nonce }: Grant, now: Boot) -> Result<(), u64> {
        if range.start() < self.highest && !self.rules.accept_lower && !self.rules.late_replaces {
            self.nonce = None;
            self.lose("regression", range.len());
            return Err(self.highest);
        }
        self.nonce = Some(nonce);
        self.highest = self.highest.max(range.end());
        if self.rules.late_replaces {
            self.queue.clear();
            self.queued = 0;
        }
        let above = IdRange::new(range.start().max(self.floor.saturating_add(1)), range.end());
        self.lose("floor", range.len() - above.map_or(0, IdRange::len));
        if let Some(range) = above {
            self.queue.push_back(range);
            self.queued += range.len();
        }
        // What a closed buffer has is for the tail.
        while self.queue.len() > MAX_QUEUED && self.closed.is_none() {
            self.skip("stale", self.end);
            self.promote(now);
        }
        Ok(())
    }

    /// Ends the refill without ids. Until `retry_at` requests that can't be served get `refusal` at once.
    pub fn fail(&mut self, refusal: Refusal, retry_at: Boot) {
        self.in_flight = None;
        self.refuse(refusal, retry_at);
        self.forget_waiting();
        self.arm();
    }

    /// Until `retry_at`, or until the refill in flight has ended, requests that can't be served get `refusal`.
    pub fn refuse(&mut self, refusal: Refusal, retry_at: Boot) {
        self.trouble = Some(Trouble { refusal, retry_at });
    }

    fn forget_waiting(&mut self) {
        (self.waiting, self.whole, self.largest, self.ordered) = (0, 0, 0, 0);
    }

    /// Takes `last` for the last id ever given away: no later range may start at or below it.
    pub fn fence(&mut self, last: u64) {
        self.highest = self.highest.max(last.saturating_add(1));
    }

    /// Lets the next request ask the store whatever went wrong before: the definition has changed.
    pub fn forgive(&mut self) {
        self.trouble = None;
    }

    /// Later ids are above `floor`: drops what is not.
    pub fn raise_floor(&mut self, floor: u64) {
        if floor <= self.floor {
            return;
        }
        self.floor = floor;
        let first = self.end.min(floor.saturating_add(1)).max(self.cursor);
        self.skip("floor", first);
        let (before, lost) = (std::mem::take(&mut self.queue), std::mem::take(&mut self.queued));
        for range in before {
            if let Some(range) = IdRange::new(range.start().max(floor.saturating_add(1)), range.end()) {
                self.queue.push_back(range);
                self.queued += range.len();
            }
        }
        self.lose("floor", lost - self.queued);
        self.arm();
    }

    /// Drops the ids of `current` below `to`, which counts as no use.
    fn skip(&mut self, reason: &'static str, to: u64) {
        self.lose(reason, to - self.cursor);
        self.first += to - self.cursor;
        self.cursor = to;
    }

    fn lose(&mut self, reason: &'static str, n: u64) {
        if n > 0 {
            self.lost.push((reason, n));
        }
    }

    /// How many ids were dropped since the last call, by reason.
    pub fn drain_lost(&mut self) -> Vec<(&'static str, u64)> {
        std::mem::take(&mut self.lost)
    }

    /// Ids in memory.
    #[inline]
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.end - self.cursor + self.queued
    }

    /// Whether a range waits behind `current`.
    #[must_use]
    pub fn next_ready(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The last id that is known to be given away, by a grant or by [`Self::fence`]; 0: none.
    #[must_use]
    pub const fn highest(&self) -> u64 {
        self.highest.saturating_sub(1)
    }

    /// The floor that is known here.
    #[must_use]
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    /// Whether the buffer was closed.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Whether there never was an id here.
    #[must_use]
    pub const fn is_cold(&self) -> bool {
        self.end == 0
    }

    /// Whether a refill is in flight.
    #[must_use]
    pub const fn is_refilling(&self) -> bool {
        self.in_flight.is_some()
    }
}

#[cfg(test)]
mod tests;
