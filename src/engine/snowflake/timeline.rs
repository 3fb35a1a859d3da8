//! Logical time: the wall clock's date at the start, carried on by the boot clock. It never goes back and never steps.
//!
//! An offset of the wall clock of at most a second is worked off at 1 % of the passing time; a larger one is told and
//! not adopted before a restart, so no step of the wall clock, in either direction, can move a timestamp. When a worker
//! id may only be used from a moment ahead, time is *led* there in one forward step; that lead is our own doing and is
//! worked off at 1 %, too. Rejected: following the wall clock (rolls back), stopping while it catches up (an outage).
//! Pure.

use crate::clock::{Boot, Wall};

const MILLI: i64 = 1_000_000;
/// Offsets up to this are worked off, in nanoseconds.
const WORKED_OFF_MAX: i64 = 1_000 * MILLI;
/// Offsets are worked off by this fraction of the passing time.
const RATE: u64 = 100;
/// Two clocks can't be read at the same instant: changes below this are not looked at.
const NOISE: i64 = MILLI;

/// A stretch of logical time: pure arithmetic on a boot reading, cheap enough for every take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Logical time without the lead at `base_boot`, in Unix nanoseconds.
    base: u64,
    base_boot: u64,
    /// What remained to be worked off at `base_boot`.
    slew: i64,
    /// By how much time was led forward at `base_boot`.
    lead: u64,
}

impl Line {
    /// Logical time at a boot reading, in Unix nanoseconds. A reading older than the line gives its beginning.
    #[inline]
    pub fn at(self, boot: Boot) -> u64 {
        if self.slew == 0 && self.lead == 0 {
            // Nothing to work off is the usual state, and this is the hot path.
            return self.base + boot.0.saturating_sub(self.base_boot);
        }
        self.natural(boot) + self.lead_at(boot)
    }

    /// Logical time without the lead.
    #[inline]
    pub fn natural(self, boot: Boot) -> u64 {
        let passed = boot.0.saturating_sub(self.base_boot);
        let worked = self.slew.unsigned_abs().min(passed / RATE);
        let time = self.base + passed;
        if self.slew < 0 { time - worked } else { time + worked }
    }

    /// How far time is still led, in nanoseconds.
    #[inline]
    pub fn lead_at(self, boot: Boot) -> u64 {
        self.lead.saturating_sub(boot.0.saturating_sub(self.base_boot) / RATE)
    }

    fn slew_left(self, boot: Boot) -> i64 {
        let passed = boot.0.saturating_sub(self.base_boot);
        let worked = i64::try_from(self.slew.unsigned_abs().min(passed / RATE)).unwrap_or(i64::MAX);
        if self.slew < 0 { self.slew + worked } else { self.slew - worked }
    }
}

/// What a look at both clocks has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The line is another one now.
    pub changed: bool,
    /// The wall clock, or the boot clock itself, has moved backwards.
    pub rollback: bool,
    /// The offset has just become too large to work off (`true`) or is small again (`false`).
    pub stepped: Option<bool>,
}

/// Logical time and what has been seen of the clocks.
#[derive(Clone, Debug)]
pub struct Timeline {
    line: Line,
    /// The wall clock minus the boot clock, at the last look.
    difference: i64,
    boot: Boot,
    offset: i64,
    stepped: bool,
}

impl Timeline {
    /// Time starts with what the wall clock says.
    pub fn start(boot: Boot, wall: Wall) -> Self {
        let line = Line { base: wall.0, base_boot: boot.0, slew: 0, lead: 0 };
        Self { line, difference: difference(wall.0, boot.0), boot, offset: 0, stepped: false }
    }

    /// The line to read the time from.
    pub fn line(&self) -> Line {
        self.line
    }

    /// The wall clock minus logical time without its lead, at the last look, in nanoseconds.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Takes readings of both clocks, made together, into account.
    pub fn observe(&mut self, boot: Boot, wall: Wall) -> Observation {
        let mut seen = Observation::default();
        let difference = difference(wall.0, boot.0);
        seen.rollback = boot < self.boot || difference < self.difference.saturating_sub(NOISE);
        self.difference = difference;
        let back = boot < self.boot;
        self.boot = boot;
        if back {
            // The time stands until the boot clock has passed where it was.
            return seen;
        }
        self.offset = self::difference(wall.0, self.line.natural(boot));
        let stepped = self.offset.abs() > WORKED_OFF_MAX;
        if stepped != self.stepped {
            self.stepped = stepped;
            seen.stepped = Some(stepped);
        }
        let slew = if stepped { 0 } else { self.offset };
        if (slew - self.line.slew_left(boot)).abs() >= NOISE && boot.0 >= self.line.base_boot {
            self.restart_line(boot, slew, self.line.lead_at(boot));
            seen.changed = true;
        }
        seen
    }

    /// Leads time forward so that it is at least `unix_ms` at `boot`; says whether that changed the line.
    pub fn lead_to(&mut self, boot: Boot, unix_ms: u64) -> bool {
        let target = unix_ms.saturating_mul(MILLI.unsigned_abs());
        if self.line.at(boot) >= target {
            return false;
        }
        let lead = target - self.line.natural(boot);
        self.restart_line(boot, self.line.slew_left(boot), lead);
        true
    }

    fn restart_line(&mut self, boot: Boot, slew: i64, lead: u64) {
        // A boot reading behind the line's beginning must not take the beginning back with it.
        let base_boot = boot.0.max(self.line.base_boot);
        self.line = Line { base: self.line.natural(Boot(base_boot)), base_boot, slew, lead };
    }
}

fn difference(left: u64, right: u64) -> i64 {
    let apart = i64::try_from(left.abs_diff(right)).unwrap_or(i64::MAX);
    if left < right { -apart } else { apart }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const WALL: u64 = 1_700_000_000 * SECOND;

    #[test]
    fn a_small_offset_is_worked_off_at_one_percent() {
        let mut time = Timeline::start(Boot(0), Wall(WALL));
        let seen = time.observe(Boot(SECOND), Wall(WALL + SECOND - SECOND / 2));
        assert_eq!(seen, Observation { changed: true, rollback: true, stepped: None });
        let line = time.line();
        assert_eq!(line.at(Boot(SECOND)), WALL + SECOND);
        assert_eq!(line.at(Boot(11 * SECOND)), WALL + 11 * SECOND - SECOND / 10);
        assert_eq!(line.at(Boot(101 * SECOND)), WALL + 101 * SECOND - SECOND / 2, "half a second after 50 s");
        assert!(!time.observe(Boot(101 * SECOND), Wall(WALL + 101 * SECOND - SECOND / 2)).changed);
    }

    #[test]
    fn a_large_step_is_told_once_and_not_adopted() {
        let hour = 3600 * SECOND;
        for wall in [WALL + SECOND + hour, WALL + SECOND - hour] {
            let mut time = Timeline::start(Boot(0), Wall(WALL));
            assert_eq!(time.observe(Boot(SECOND), Wall(wall)).stepped, Some(true));
            assert_eq!(time.observe(Boot(2 * SECOND), Wall(wall + SECOND)).stepped, None);
            assert_eq!(time.line().at(Boot(2 * SECOND)), WALL + 2 * SECOND);
            assert_eq!(time.observe(Boot(3 * SECOND), Wall(WALL + 3 * SECOND)).stepped, Some(false));
        }
    }

    #[test]
    fn a_step_back_that_is_shorter_than_the_time_between_looks_is_counted() {
        let mut time = Timeline::start(Boot(0), Wall(WALL));
        assert!(time.observe(Boot(SECOND), Wall(WALL + SECOND - 2_000_000)).rollback);
        assert!(!time.observe(Boot(2 * SECOND), Wall(WALL + 2 * SECOND - 2_000_000)).rollback);
    }

    #[test]
    fn a_lead_is_worked_off_and_never_steps_back() {
        let mut time = Timeline::start(Boot(0), Wall(WALL));
        assert!(time.lead_to(Boot(0), (WALL + 10 * SECOND) / 1_000_000));
        assert!(!time.lead_to(Boot(0), WALL / 1_000_000));
        assert_eq!(time.line().at(Boot(0)), WALL + 10 * SECOND);
        assert_eq!(time.line().at(Boot(2000 * SECOND)), WALL + 2000 * SECOND);
        assert_eq!(time.observe(Boot(SECOND), Wall(WALL + SECOND)).stepped, None, "its own lead is no step");
    }

    proptest! {
        #[test]
        fn time_never_goes_back(steps in prop::collection::vec(
            (0_u64..5 * SECOND, -4_000_000_000_i64..4_000_000_000, prop::option::of(0_u64..100_000)), 1..60,
        )) {
            let (mut boot, mut wall) = (0, WALL);
            let mut time = Timeline::start(Boot(boot), Wall(wall));
            let mut last = time.line().at(Boot(boot));
            for (passed, step, lead) in steps {
                boot += passed;
                wall = (wall + passed).saturating_add_signed(step);
                let before = time.line().at(Boot(boot));
                prop_assert!(before >= last);
                time.observe(Boot(boot), Wall(wall));
                if let Some(lead) = lead {
                    time.lead_to(Boot(boot), WALL / 1_000_000 + lead);
                }
                last = time.line().at(Boot(boot));
                prop_assert!(last >= before);
            }
        }
    }
}
