//! One token bucket: governor's arithmetic over a state and a time that are kept here.
//!
//! governor decides whether `n` ids conform and from when on they would. From that time follows by one division how many
//! of them conform now. It can't say what is left without taking it, nor take anything back; both need its state, the
//! *theoretical arrival time*: when the bucket would be full, if nothing were taken any more.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use governor::clock::{Clock, Reference};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{NotKeyed, StateStore};
use governor::{NotUntil, Quota, RateLimiter};

use super::Rate;
use crate::clock::Boot;

const SECOND: Duration = Duration::from_secs(1);

/// The bucket of a rate that is none's.
#[derive(Debug)]
pub(super) struct Bucket {
    rate: Rate,
    /// The time in which one id comes in, in nanoseconds; rounded up, so that the rate is never exceeded.
    interval: u64,
    full_at: FullAt,
    limiter: RateLimiter<NotKeyed, FullAt, Shown, NoOpMiddleware<Reading>>,
}

impl Bucket {
    /// A full bucket; `None` for no limit.
    pub(super) fn new(rate: Rate, now: Boot) -> Option<Self> {
        let burst = NonZeroU32::new(u32::try_from(rate.burst()).unwrap_or(u32::MAX))?;
        let interval = Duration::from_nanos(nanos(SECOND).div_ceil(rate.qps().max(1)));
        let quota = Quota::with_period(interval)?.allow_burst(burst);
        let full_at = FullAt::default();
        let limiter = RateLimiter::new(quota, full_at.clone(), Shown(AtomicU64::new(now.0)));
        Some(Self { rate, interval: nanos(interval), full_at, limiter })
    }

    pub(super) const fn rate(&self) -> Rate {
        self.rate
    }

    /// See [`super::Limit::take_all`].
    pub(super) fn take_all(&mut self, wanted: u64, now: Boot) -> bool {
        wanted <= self.rate.burst() && self.try_take(wanted, now).is_ok()
    }

    /// See [`super::Limit::take_up_to`].
    pub(super) fn take_up_to(&mut self, wanted: u64, now: Boot) -> u64 {
        let most = wanted.min(self.rate.burst());
        let Err(wait) = self.try_take(most, now) else { return most };
        let conform = most.saturating_sub(nanos(wait).div_ceil(self.interval));
        if self.try_take(conform, now).is_ok() { conform } else { 0 }
    }

    /// See [`super::Limit::wait`].
    pub(super) fn wait(&mut self, wanted: u64, now: Boot) -> Duration {
        let before = self.full_at.get();
        let answer = self.try_take(wanted.min(self.rate.burst()), now);
        self.full_at.set(before);
        answer.err().unwrap_or_default()
    }

    /// How many ids there are at `now`. Takes none.
    pub(super) fn left(&mut self, now: Boot) -> u64 {
        let before = self.full_at.get();
        let left = self.take_up_to(self.rate.burst(), now);
        self.full_at.set(before);
        left
    }

    /// Throws away what is more than `left`.
    pub(super) fn keep(&mut self, left: u64, now: Boot) {
        let _ = self.take_all(self.rate.burst().saturating_sub(left), now);
    }

    /// See [`super::Limit::give_back`].
    pub(super) fn give_back(&mut self, unused: u64, taken: Boot) {
        let since = nanos(self.limiter.clock().latest().since(taken));
        let back = unused.min(self.rate.burst()).saturating_sub(since.div_ceil(self.interval));
        self.full_at.set(self.full_at.get().saturating_sub(back.saturating_mul(self.interval)));
    }

    /// Takes `wanted` ids, at most the burst, or says how long it would be until they are there.
    fn try_take(&mut self, wanted: u64, now: Boot) -> Result<(), Duration> {
        let Some(wanted) = NonZeroU32::new(u32::try_from(wanted).unwrap_or(u32::MAX)) else { return Ok(()) };
        let now = self.limiter.clock().show(now);
        match self.limiter.check_n(wanted) {
            Ok(answer) => answer.map_err(|until: NotUntil<Reading>| until.wait_time_from(now)),
            // More than the burst, which no caller asks for.
            Err(_) => Err(SECOND),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A reading of the boot clock in the terms of governor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Reading(Boot);

impl std::ops::Add<Nanos> for Reading {
    type Output = Self;

    fn add(self, by: Nanos) -> Self {
        Self(self.0.plus(by.into()))
    }
}

impl Reference for Reading {
    fn duration_since(&self, earlier: Self) -> Nanos {
        self.0.since(earlier.0).into()
    }

    fn saturating_sub(&self, by: Nanos) -> Self {
        Self(self.0.0.checked_sub(by.as_u64()).map_or(self.0, Boot))
    }
}

/// The latest reading that anybody has shown. Batches of several connections come with readings that are out of order by
/// their waits; time that has passed for one has passed for all.
#[derive(Debug)]
struct Shown(AtomicU64);

impl Shown {
    fn show(&self, now: Boot) -> Reading {
        self.0.fetch_max(now.0, Relaxed);
        self.now()
    }

    fn latest(&self) -> Boot {
        Boot(self.0.load(Relaxed))
    }
}

impl Clock for Shown {
    type Instant = Reading;

    fn now(&self) -> Reading {
        Reading(self.latest())
    }
}

/// When the bucket would be full, in nanoseconds since it was made; 0: it is. Only used under the lock of the limit: it is
/// an atomic to be shared with governor, not with threads.
#[derive(Clone, Debug, Default)]
struct FullAt(Arc<AtomicU64>);

impl FullAt {
    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn set(&self, full_at: u64) {
        self.0.store(full_at, Relaxed);
    }
}

impl StateStore for FullAt {
    type Key = NotKeyed;

    fn measure_and_replace<T, F, E>(&self, _: &NotKeyed, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let (answer, full_at) = decide(Some(Nanos::new(self.get())))?;
        self.set(full_at.as_u64());
        Ok(answer)
    }
}
