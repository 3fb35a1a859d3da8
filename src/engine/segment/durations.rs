//! How long grants took: a histogram in plain atomics that the metrics room can read.

use std::time::Duration;

use crate::metrics::Counter;

/// The upper bounds of the buckets, in microseconds: from a fast disk to the largest statement timeout.
const BOUNDS_MICROS: [u64; 14] =
    [250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 10_000_000];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [Counter; BOUNDS_MICROS.len()],
    count: Counter,
    sum_nanos: Counter,
}

/// What a histogram holds at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Upper bound in seconds, and how many durations were at or below it.
    pub buckets: Vec<(f64, u64)>,
    /// How many durations there were.
    pub count: u64,
    /// Their sum in seconds.
    pub sum: f64,
}

impl Durations {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let micros = duration.as_micros();
        if let Some(bucket) = BOUNDS_MICROS.iter().zip(&self.buckets).find(|(bound, _)| micros <= u128::from(**bound)) {
            bucket.1.add(1);
        }
        self.count.add(1);
        self.sum_nanos.add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// The cumulated buckets, the count and the sum.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut below = 0;
        let cumulate = |(bound, bucket): (&u64, &Counter)| {
            below += bucket.get();
            (Duration::from_micros(*bound).as_secs_f64(), below)
        };
        Snapshot {
            buckets: BOUNDS_MICROS.iter().zip(&self.buckets).map(cumulate).collect(),
            count: self.count.get(),
            sum: Duration::from_nanos(self.sum_nanos.get()).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulated_and_what_is_beyond_them_counts_in_all() {
        let durations = Durations::default();
        for millis in [0, 1, 7, 60_000] {
            durations.record(Duration::from_millis(millis));
        }
        let Snapshot { buckets, count, sum } = durations.snapshot();
        assert_eq!(count, 4);
        assert!((sum - 60.008).abs() < 1e-9);
        let below = |bound: f64| buckets.iter().find(|(b, _)| (b - bound).abs() < 1e-9).map(|(_, n)| *n);
        assert_eq!((below(0.000_25), below(0.001), below(0.01), below(10.0)), (Some(1), Some(2), Some(3), Some(3)));
    }
}
