//! The only place where time comes from.
//!
//! Two clocks are read, both through libc's `clock_gettime` so that a test which moves the clocks of the process moves
//! what is read here. The *boot clock* (`CLOCK_BOOTTIME`) orders and measures: it goes on while the machine sleeps and no
//! operator can step it. The *wall clock* (`CLOCK_REALTIME`) says what time it is and is trusted for nothing else.
//! A reading is taken once for a whole read batch, since one costs tens of nanoseconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A reading of the boot clock, in nanoseconds since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Boot(pub u64);

impl Boot {
    /// How long ago `earlier` was; zero when it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The reading `by` later.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A reading of the wall clock, in nanoseconds since 1970-01-01T00:00:00Z; 0 for anything before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Wall(pub u64);

impl Wall {
    /// The reading in whole milliseconds.
    #[must_use]
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// Where the program reads its clocks from.
pub trait Clock: Send + Sync + 'static {
    /// The boot clock.
    fn boot(&self) -> Boot;
    /// The wall clock.
    fn wall(&self) -> Wall;
}

/// The clocks of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> Boot {
        Boot(read(ClockId::CLOCK_BOOTTIME))
    }

    fn wall(&self) -> Wall {
        Wall(read(ClockId::CLOCK_REALTIME))
    }
}

fn read(id: ClockId) -> u64 {
    // Linux knows both clocks since 2.6.39, so this can't fail there; 0 would only make time stand still.
    clock_gettime(id).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(u64::try_from(time.tv_nsec()).unwrap_or(0))
    })
}

/// Clocks that stand still until a test moves them, each by itself.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<(AtomicU64, AtomicU64)>);

impl ManualClock {
    /// Clocks that read `boot` and `wall`.
    #[must_use]
    pub fn new(boot: Boot, wall: Wall) -> Self {
        Self(Arc::new((AtomicU64::new(boot.0), AtomicU64::new(wall.0))))
    }

    /// Moves both clocks forward, as passing time does.
    pub fn advance(&self, by: Duration) {
        self.set_boot(self.boot().plus(by));
        self.set_wall(Wall(self.wall().0 + u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)));
    }

    /// Sets the boot clock alone.
    pub fn set_boot(&self, boot: Boot) {
        self.0.0.store(boot.0, Ordering::SeqCst);
    }

    /// Sets the wall clock alone: an operator's or NTP's step.
    pub fn set_wall(&self, wall: Wall) {
        self.0.1.store(wall.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn boot(&self) -> Boot {
        Boot(self.0.0.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Wall {
        Wall(self.0.1.load(Ordering::SeqCst))
    }
}

/// `millis` since 1970 as RFC 3339 text in UTC with milliseconds, such as `2020-01-01T00:00:00.000Z`.
#[must_use]
pub fn rfc3339(millis: u64) -> String {
    let time = std::time::UNIX_EPOCH + Duration::from_millis(millis);
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clocks_run_and_know_the_date() {
        let clock = SystemClock;
        let (first, wall) = (clock.boot(), clock.wall());
        assert!(first > Boot(0));
        assert!(clock.boot() >= first);
        assert!(wall.millis() > 1_577_808_000_000, "the wall clock is before 2020");
    }

    #[test]
    fn manual_clocks_move_apart() {
        let clock = ManualClock::new(Boot(5), Wall(7_000_000));
        clock.advance(Duration::from_millis(1));
        clock.set_wall(Wall(3_000_000));
        assert_eq!((clock.boot(), clock.wall().millis()), (Boot(1_000_005), 3));
        assert_eq!(Boot(3).since(Boot(5)), Duration::ZERO);
    }

    #[test]
    fn times_are_written_in_utc() {
        assert_eq!(rfc3339(1_577_808_000_000), "2019-12-31T16:00:00.000Z");
    }
}
