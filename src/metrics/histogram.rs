//! A histogram of durations in plain atomics, for observations that come many at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

/// The upper bounds of the buckets, in nanoseconds: from what memory takes to what a client gives up at.
const BOUNDS: [u64; 18] = [
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
];

/// How often durations fell into each of some fixed buckets. Three relaxed additions an observation, of however many.
#[derive(Debug, Default)]
pub struct Histogram(CachePadded<Cells>);

#[derive(Debug, Default)]
struct Cells {
    /// One a bound, not cumulative.
    buckets: [AtomicU64; BOUNDS.len()],
    /// Above the last bound.
    above: AtomicU64,
    sum_nanos: AtomicU64,
}

impl Histogram {
    /// Records that `n` requests took `value` each.
    pub fn observe_n(&self, value: Duration, n: u64) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        let at = BOUNDS.partition_point(|bound| *bound < nanos);
        self.0.buckets.get(at).unwrap_or(&self.0.above).fetch_add(n, Ordering::Relaxed);
        self.0.sum_nanos.fetch_add(nanos.saturating_mul(n), Ordering::Relaxed);
    }

    /// Records that one thing took `value`.
    pub fn observe(&self, value: Duration) {
        self.observe_n(value, 1);
    }

    /// The buckets so far.
    #[must_use]
    pub fn read(&self) -> Reading {
        let mut count = 0;
        let mut cumulative = |cell: &AtomicU64| {
            count += cell.load(Ordering::Relaxed);
            count
        };
        let buckets =
            BOUNDS.iter().zip(&self.0.buckets).map(|(bound, cell)| (seconds(*bound), cumulative(cell))).collect();
        let count = cumulative(&self.0.above);
        Reading { buckets, count, sum_seconds: seconds(self.0.sum_nanos.load(Ordering::Relaxed)) }
    }
}

/// What a histogram held when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Upper bounds in seconds, each with how many observations were at most that.
    pub buckets: Vec<(f64, u64)>,
    /// All observations.
    pub count: u64,
    /// Their sum in seconds.
    pub sum_seconds: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a metric of 53 bits is precise enough")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_fall_into_the_bucket_that_holds_them() {
        let histogram = Histogram::default();
        histogram.observe_n(Duration::from_micros(10), 3);
        histogram.observe_n(Duration::from_nanos(10_001), 2);
        histogram.observe(Duration::from_mins(1));
        let reading = histogram.read();
        assert_eq!(reading.buckets[..3], [(0.000_01, 3), (0.000_025, 5), (0.000_05, 5)]);
        assert_eq!(reading.buckets.last(), Some(&(5.0, 5)));
        assert_eq!(reading.count, 6);
        assert!((reading.sum_seconds - 60.000_050_002).abs() < 1e-9);
    }

    #[test]
    fn bounds_rise() {
        assert!(BOUNDS.is_sorted_by(|a, b| a < b));
    }
}
