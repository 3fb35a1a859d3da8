//! How many ids the next grant asks for: enough for about a minute or two of the load there is.
//!
//! Guaranteed: between the row's own bounds always, so that a row edited by hand can neither make a refill empty nor ask
//! for the whole id space. How: the step doubles when 80 % of it are used within one minute, halves for every ten minutes
//! in which less than 20 % of it are used, and rises at once when requests had to wait. So a burst raises it for as long
//! as the burst lasts and about an hour more, and under a steady load it settles where a segment lasts one to fifty
//! minutes, or at a bound. It is this node's own and dies with it: what a crash skips are the two segments in memory, each
//! as long as the step was when it was granted. Pure: time and the number of ids used come in.
//! Rejected: the average since the last grant (an idle weekend would hide a rush), a timer for each tag (most are idle;
//! what idle time does to the step is made up for when somebody asks).

use std::time::Duration;

use super::buffer::{Buffer, Starved};
use crate::clock::Boot;
use crate::store::Definition;

/// What is used fast and slowly, in permille of the step.
const FAST_PERMILLE: u64 = 800;
const SLOW_PERMILLE: u64 = 200;

/// Within which time [`FAST_PERMILLE`] of a step are to be used for it to double.
const FAST_WITHIN: Duration = Duration::from_mins(1);

/// In which time less than [`SLOW_PERMILLE`] of a step are to be used for it to halve.
const SLOW_WITHIN: Duration = Duration::from_mins(10);

/// How long a tag in use may go without being judged.
const REVIEW: Duration = FAST_WITHIN;

/// Why a step changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The row says so: the start, or a changed definition.
    Defined,
    /// The ids were used fast.
    Doubled,
    /// The ids were used slowly.
    Halved,
    /// Requests had to wait for a refill.
    Starved,
}

impl Reason {
    /// The word for it in `IDINFO` and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Defined => "defined",
            Self::Doubled => "doubled",
            Self::Halved => "halved",
            Self::Starved => "starved",
        }
    }
}

/// From when on ids are counted, and how many were used before.
#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Boot,
    used: u64,
}

/// The step of one tag.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    next: u64,
    min: u64,
    max: u64,
    /// The step of the row, whose change starts all anew.
    defined: u64,
    reason: Reason,
    /// Where the segment started, or the minute that is judged.
    fast: Mark,
    /// Where the ten minutes started that are judged.
    slow: Mark,
}

impl Step {
    /// The step that `definition` asks for, within its bounds.
    #[must_use]
    pub fn new(definition: &Definition, now: Boot) -> Self {
        let (min, max) = bounds(definition);
        let (next, mark) = (definition.step.clamp(min, max), Mark { at: now, used: 0 });
        Self { next, min, max, defined: definition.step, reason: Reason::Defined, fast: mark, slow: mark }
    }

    /// Follows a changed definition: another step starts from there, other bounds hold the step as it is. `used` as in
    /// [`Self::judge`].
    pub fn redefine(&mut self, definition: &Definition, used: u64, now: Boot) -> Option<Reason> {
        let before = self.next;
        (self.min, self.max) = bounds(definition);
        if definition.step != self.defined {
            self.defined = definition.step;
            self.next = definition.step;
            (self.fast, self.slow) = (Mark { at: now, used }, Mark { at: now, used });
            self.reason = Reason::Defined;
        }
        self.next = self.next.clamp(self.min, self.max);
        self.changed(before, Reason::Defined)
    }

    /// Judges what has happened in `buffer` up to `now`; gives the changes in their order.
    pub fn follow(&mut self, buffer: &mut Buffer, now: Boot) -> [Option<Reason>; 2] {
        let raised = buffer.take_starved().and_then(|starved| self.starved(starved));
        let started = buffer.take_started(now.plus(REVIEW));
        [raised, self.judge(buffer.used(), started, now)]
    }

    /// Judges the use up to `now`: `used` ids in all since the start. `started`: how many they were when the segment
    /// started, if one did since the last call. A tag that had no segment yet is not judged.
    pub fn judge(&mut self, used: u64, started: Option<u64>, now: Boot) -> Option<Reason> {
        if used == 0 {
            (self.fast, self.slow) = (Mark { at: now, used }, Mark { at: now, used });
            return None;
        }
        let before = self.next;
        let recent = u128::from(used.saturating_sub(self.fast.used)) * 1000;
        let elapsed = now.since(self.fast.at);
        if elapsed <= FAST_WITHIN {
            // More than once where the segment was longer than the step is now, after a lull.
            while self.next < self.max && u128::from(self.next) * u128::from(FAST_PERMILLE) <= recent {
                self.next = self.next.saturating_mul(2).min(self.max);
            }
        }
        if let Some(used) = started {
            self.fast = Mark { at: now, used };
        } else if elapsed > FAST_WITHIN {
            self.fast = Mark { at: now, used };
        }
        if self.next != before {
            self.slow = Mark { at: now, used };
            return self.changed(before, Reason::Doubled);
        }
        self.judge_slow(used, now);
        self.changed(before, Reason::Halved)
    }

    fn judge_slow(&mut self, used: u64, now: Boot) {
        let elapsed = now.since(self.slow.at);
        let lulls = elapsed.as_nanos() / SLOW_WITHIN.as_nanos();
        // Of the step in ten minutes, on average: `used / elapsed * SLOW_WITHIN`, without the divisions.
        let recent = u128::from(used.saturating_sub(self.slow.used)) * 1000 * SLOW_WITHIN.as_nanos();
        for _ in 0..lulls {
            let slow = (u128::from(self.next) * u128::from(SLOW_PERMILLE)).saturating_mul(elapsed.as_nanos());
            if self.next == self.min || recent >= slow {
                break;
            }
            self.next = (self.next / 2).max(self.min);
        }
        if lulls > 0 {
            self.slow = Mark { at: now, used };
        }
    }

    /// Requests had to wait: the step rises at once, at least to what they waited for. That the first requests of a tag wait
    /// says nothing, unless they wanted more than a step.
    pub fn starved(&mut self, Starved { waited, cold }: Starved) -> Option<Reason> {
        let before = self.next;
        if !cold || waited > self.next {
            self.next = self.next.saturating_mul(2).max(waited).min(self.max);
        }
        self.changed(before, Reason::Starved)
    }

    fn changed(&mut self, before: u64, reason: Reason) -> Option<Reason> {
        if self.next == before {
            return None;
        }
        self.reason = reason;
        Some(reason)
    }

    /// How many ids the next grant asks for, 1 or more.
    #[must_use]
    pub const fn next_step(&self) -> u64 {
        self.next
    }

    /// The most that one grant asks for, unless a single request needs more.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.max
    }

    /// Why the step is what it is: `floor` or `ceiling` where a bound holds it, else why it changed last.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        if self.next == self.max && self.next != self.min {
            "ceiling"
        } else if self.next == self.min && self.next != self.max {
            "floor"
        } else {
            self.reason.name()
        }
    }
}

/// The bounds of `definition`, made to make sense.
fn bounds(definition: &Definition) -> (u64, u64) {
    let min = definition.min_step.max(1);
    (min, definition.max_step.max(min))
}

#[cfg(test)]
mod tests;
