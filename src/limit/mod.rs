//! How many ids somebody may have: rates with a burst, counted in ids and not in requests.
//!
//! A [`Limit`] is a token bucket (governor's GCRA) that stands for the node, a user or a tag. Time comes in with every call,
//! as the reading of the caller's read batch, so nothing here reads a clock; where no limit is set, asking costs one load.
//! Every answer takes constant time, whatever is asked for. What a bucket gave and nobody used can go back to it, which
//! governor does not offer: the state is kept here, under a short lock (`bucket.rs`). Over any time `t` a limit lets at
//! most `burst + qps * t` ids through, changes of the limit and ids given back included.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Boot;

mod bucket;

use bucket::Bucket;

/// The most ids per second that a limit may say: the time between two ids is kept in whole nanoseconds, so that a rate
/// above this one would be off by more than a hundredth.
pub const MAX_QPS: u64 = 10_000_000;

/// The most ids at once that a limit may say: 100 seconds' worth of the largest rate.
pub const MAX_BURST: u64 = 1_000_000_000;

/// Section `rate_limit` of the configuration: the limit of this node, over all tags and users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Ids per second, 0 to [`MAX_QPS`]. Default 0: no limit.
    pub qps: u64,
    /// Ids at once after a pause, 0 to [`MAX_BURST`]. Default 0: as many as one second's.
    pub burst: u64,
}

impl Config {
    /// Checks both keys.
    ///
    /// # Errors
    /// In words, naming the key and the fix.
    pub fn validate(&self) -> Result<(), String> {
        check(self.qps, self.burst, ["rate_limit.qps", "rate_limit.burst"])
    }

    /// What the section says.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        Rate::new(self.qps, self.burst)
    }
}

/// Checks a rate as people write it; `names` are those of its two numbers where they stand.
///
/// # Errors
/// In words, beginning with the name of the number that is wrong.
pub fn check(qps: u64, burst: u64, names: [&str; 2]) -> Result<(), String> {
    let [qps_name, burst_name] = names;
    if qps > MAX_QPS {
        return Err(format!("{qps_name} must be 0 to {MAX_QPS} ids per second, and is {qps}"));
    }
    if burst > MAX_BURST {
        return Err(format!("{burst_name} must be 0 to {MAX_BURST} ids, and is {burst}"));
    }
    if qps == 0 && burst > 0 {
        return Err(format!("{burst_name} is {burst} without {qps_name}, so it limits nothing: set both or none"));
    }
    Ok(())
}

/// A rate: ids per second, and ids at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    qps: u64,
    burst: u64,
}

impl Rate {
    /// `qps` ids per second, 0 for no limit, and `burst` ids at once, 0 for one second's worth. Numbers above the bounds
    /// that [`check`] knows become those.
    #[must_use]
    pub const fn new(qps: u64, burst: u64) -> Self {
        let qps = if qps > MAX_QPS { MAX_QPS } else { qps };
        let burst = if burst == 0 || qps == 0 { qps } else { burst };
        Self { qps, burst: if burst > MAX_BURST { MAX_BURST } else { burst } }
    }

    /// Ids per second; 0: no limit.
    #[must_use]
    pub const fn qps(self) -> u64 {
        self.qps
    }

    /// Ids at once after a pause, and so the most that one request can have; 0 only where there is no limit.
    #[must_use]
    pub const fn burst(self) -> u64 {
        self.burst
    }
}

/// The limit of a node, a user or a tag, or none.
#[derive(Debug)]
pub struct Limit {
    /// Whether there is a bucket: what everybody who is not limited pays.
    set: AtomicBool,
    bucket: Mutex<Option<Bucket>>,
}

impl Limit {
    /// A limit of `rate`, with its burst still to be had. `now` is a reading of the time, not after any later one.
    #[must_use]
    pub fn new(rate: Rate, now: Boot) -> Self {
        let bucket = Bucket::new(rate, now);
        Self { set: AtomicBool::new(bucket.is_some()), bucket: Mutex::new(bucket) }
    }

    /// Whether anything is limited.
    #[inline]
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::Relaxed)
    }

    /// The rate as it is in force.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.lock().as_ref().map_or_else(Rate::default, Bucket::rate)
    }

    /// Takes as many ids as there are at `now`, at most `wanted`, and says how many.
    #[must_use]
    pub fn take_up_to(&self, wanted: u64, now: Boot) -> u64 {
        self.lock().as_mut().map_or(wanted, |bucket| bucket.take_up_to(wanted, now))
    }

    /// Takes `wanted` ids at `now`, or none, and says whether.
    #[must_use]
    pub fn take_all(&self, wanted: u64, now: Boot) -> bool {
        self.lock().as_mut().is_none_or(|bucket| bucket.take_all(wanted, now))
    }

    /// How long after `now` somebody who is alone could take `wanted` ids, of which more than the burst counts as the
    /// burst; zero: now. Takes nothing.
    #[must_use]
    pub fn wait(&self, wanted: u64, now: Boot) -> Duration {
        self.lock().as_mut().map_or(Duration::ZERO, |bucket| bucket.wait(wanted, now))
    }

    /// Gives back `unused` ids that were taken at `taken`. What has come in by itself since then is kept: the bucket may
    /// have been full, so that others had those already.
    pub fn give_back(&self, unused: u64, taken: Boot) {
        if let Some(bucket) = self.lock().as_mut() {
            bucket.give_back(unused, taken);
        }
    }

    /// Makes `rate` the limit from `now` on. What was left goes over, at most the new burst: a change never gives a fresh
    /// burst, except where there was no limit before.
    pub fn change(&self, rate: Rate, now: Boot) {
        let mut bucket = self.lock();
        if bucket.as_ref().map_or_else(Rate::default, Bucket::rate) == rate {
            return;
        }
        let left = bucket.as_mut().map(|bucket| bucket.left(now));
        *bucket = Bucket::new(rate, now);
        if let (Some(bucket), Some(left)) = (bucket.as_mut(), left) {
            bucket.keep(left, now);
        }
        self.set.store(bucket.is_some(), Ordering::Relaxed);
    }

    // No code that can panic runs under this lock, so a poisoned one still holds a whole bucket.
    fn lock(&self) -> MutexGuard<'_, Option<Bucket>> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
