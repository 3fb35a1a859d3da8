//! What is counted about commands, for `INFO`, `LATENCY HISTOGRAM` and the duration metrics.
//!
//! Time is read once a read batch and shared among the requests of that batch, since reading a clock costs more than
//! serving an id. A session gathers a batch in its own [`Tally`] and adds it to the shared counters in one go.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::spec::{Spec, rows};
use crate::clock::Boot;
use crate::metrics::{self, Counter, Labelled, Metrics};
use crate::router::EngineKind;

/// Upper bounds of the buckets of a [`Histogram`] but the last, in microseconds: 1, 2, 4 … about 16 s.
pub const BUCKETS: usize = 25;

/// Different commands of one read batch that are told apart without a search; more are found by one.
const EXPECTED_KINDS: usize = 8;

/// How old a sample must be, at least, for the operations per second to be told from it.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// Durations, sorted into buckets that double.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS + 1],
    nanos: AtomicU64,
}

impl Histogram {
    fn add(&self, each: Duration, calls: u64) {
        let micros = u64::try_from(each.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        let bucket = micros.max(1).next_power_of_two().trailing_zeros() as usize;
        if let Some(bucket) = self.buckets.get(bucket.min(BUCKETS)) {
            bucket.fetch_add(calls, Relaxed);
        }
        let nanos = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX).saturating_mul(calls);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// Each bucket's upper bound in microseconds (`None`: above all others) with the count of that bucket alone.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        self.buckets
            .iter()
            .enumerate()
            .map(|(number, count)| ((number < BUCKETS).then(|| 1 << number), count.load(Relaxed)))
    }

    /// How many durations there are.
    pub fn count(&self) -> u64 {
        self.buckets().map(|(_, count)| count).sum()
    }

    /// The sum of the durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Relaxed))
    }

    /// The upper bound, in microseconds, of the bucket that holds the `per_mille` quantile.
    pub fn percentile(&self, per_mille: u64) -> u64 {
        let wanted = (self.count() * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bound, count) in self.buckets() {
            seen += count;
            if seen >= wanted {
                return bound.unwrap_or(1 << BUCKETS);
            }
        }
        0
    }

    fn clear(&self) {
        for bucket in &self.buckets {
            bucket.store(0, Relaxed);
        }
        self.nanos.store(0, Relaxed);
    }
}

/// What is counted for one command.
#[derive(Debug, Default)]
pub struct CommandStats {
    failed: AtomicU64,
    rejected: AtomicU64,
    /// Durations of the calls.
    pub durations: Histogram,
}

impl CommandStats {
    /// Calls that were answered with an error.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Requests that were refused before they were carried out.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Relaxed)
    }
}

/// What is counted over all connections.
#[derive(Debug)]
pub struct Stats {
    commands: Vec<CommandStats>,
    /// Durations of the commands that draw ids, for Prometheus, from their first use on: segment tags, Snowflake tags.
    engines: [Vec<OnceLock<Arc<metrics::Histogram>>>; 2],
    /// Error replies by their prefix.
    pub errors: Labelled,
    errors_before_reset: Mutex<Vec<(&'static str, u64)>>,
    /// Bytes read from clients.
    pub net_input: Counter,
    /// Bytes written to clients.
    pub net_output: Counter,
    rate: Mutex<Rate>,
}

#[derive(Debug, Default)]
struct Rate {
    older: (Boot, u64),
    newer: (Boot, u64),
}

impl Default for Stats {
    fn default() -> Self {
        let durations = || rows().iter().take_while(|row| row.draws_ids()).map(|_| OnceLock::new()).collect();
        Self {
            commands: rows().iter().map(|_| CommandStats::default()).collect(),
            engines: [durations(), durations()],
            errors: Labelled::default(),
            errors_before_reset: Mutex::default(),
            net_input: Counter::default(),
            net_output: Counter::default(),
            rate: Mutex::default(),
        }
    }
}

impl Stats {
    /// Every command with its counters, in the order of the table.
    pub fn commands(&self) -> impl Iterator<Item = (&'static Spec, &CommandStats)> {
        rows().iter().copied().zip(&self.commands)
    }

    /// How many calls there have been.
    pub fn calls(&self) -> u64 {
        self.commands.iter().map(|command| command.durations.count()).sum()
    }

    /// Error replies since the last reset, by prefix.
    pub(super) fn errors_since_reset(&self) -> Vec<(&'static str, u64)> {
        let before = self.errors_before_reset.lock().unwrap_or_else(PoisonError::into_inner);
        let since = |(prefix, count): (&'static str, u64)| {
            let before = before.iter().find(|(other, _)| *other == prefix).map_or(0, |(_, count)| *count);
            (count > before).then_some((prefix, count - before))
        };
        self.errors.get().into_iter().filter_map(since).collect()
    }

    pub(super) fn reject(&self, spec: &Spec) {
        if let Some(command) = self.commands.get(spec.index()) {
            command.rejected.fetch_add(1, Relaxed);
        }
    }

    /// Calls a second, over the time since a question at least a second ago (at first: since `started`).
    pub(super) fn calls_per_second(&self, now: Boot, started: Boot) -> u64 {
        let calls = self.calls();
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        if rate.newer.0 < started {
            rate.newer = (started, 0);
            rate.older = rate.newer;
        }
        if now.since(rate.newer.0) >= RATE_WINDOW {
            rate.older = rate.newer;
            rate.newer = (now, calls);
        }
        let millis = u64::try_from(now.since(rate.older.0).as_millis()).unwrap_or(u64::MAX);
        calls.saturating_sub(rate.older.1).saturating_mul(1000) / millis.max(1)
    }

    /// Forgets the counts of commands and errors: `CONFIG RESETSTAT`. What Prometheus reads beside them stays.
    pub(super) fn reset(&self) {
        for command in &self.commands {
            command.failed.store(0, Relaxed);
            command.rejected.store(0, Relaxed);
            command.durations.clear();
        }
        *self.errors_before_reset.lock().unwrap_or_else(PoisonError::into_inner) = self.errors.get();
        *self.rate.lock().unwrap_or_else(PoisonError::into_inner) = Rate::default();
    }

    pub(super) fn command(&self, index: usize) -> Option<&CommandStats> {
        self.commands.get(index)
    }
}

/// The requests of one read batch, by command and engine.
#[derive(Debug)]
pub(super) struct Tally {
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    row: usize,
    engine: Option<EngineKind>,
    calls: u64,
    failed: u64,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self { lines: Vec::with_capacity(1) }
    }

    pub(super) fn add(&mut self, spec: &Spec, engine: Option<EngineKind>, calls: u64, failed: u64) {
        let row = spec.index();
        let same = |line: &&mut Line| line.row == row && line.engine == engine;
        // Nearly always the command of the request before.
        if let Some(line) = self.lines.iter_mut().rev().find(same) {
            line.calls += calls;
            line.failed += failed;
        } else {
            self.lines.push(Line { row, engine, calls, failed });
        }
    }

    /// Adds the batch, which took `elapsed`, to the shared counters; the durations of commands that draw ids go to
    /// `metrics` as well.
    pub(super) fn flush(&mut self, stats: &Stats, metrics: &Metrics, elapsed: Duration) {
        let calls: u64 = self.lines.iter().map(|line| line.calls).sum();
        let each = Duration::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX) / calls.max(1));
        for line in self.lines.drain(..) {
            if let Some(command) = stats.commands.get(line.row) {
                command.durations.add(each, line.calls);
                if line.failed > 0 {
                    command.failed.fetch_add(line.failed, Relaxed);
                }
            }
            let Some(engine) = line.engine else { continue };
            let [segment, snowflake] = &stats.engines;
            let histograms = if engine == EngineKind::Segment { segment } else { snowflake };
            if let (Some(histogram), Some(row)) = (histograms.get(line.row), rows().get(line.row)) {
                let histogram = histogram.get_or_init(|| metrics.request_duration(engine.name(), row.name));
                histogram.observe_n(each, line.calls);
            }
        }
        self.lines.shrink_to(EXPECTED_KINDS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::spec::find;

    #[test]
    fn a_batch_shares_its_time_among_its_requests() {
        let metrics = Metrics::default();
        let stats = Stats::default();
        assert!(!metrics.render().contains("idgen_request_duration_seconds_count"), "no line of zeros");
        let (idget, ping) = (find(b"idget").expect("idget"), find(b"PING").expect("ping"));
        let mut tally = Tally::new();
        tally.add(idget, Some(EngineKind::Snowflake), 2, 1);
        tally.add(ping, None, 1, 0);
        tally.add(idget, Some(EngineKind::Snowflake), 1, 0);
        tally.flush(&stats, &metrics, Duration::from_micros(40));
        let counted = stats.command(idget.index()).expect("counters");
        assert_eq!((counted.durations.count(), counted.failed()), (3, 1));
        assert_eq!(counted.durations.sum(), Duration::from_micros(30));
        assert_eq!(stats.calls(), 4);
        assert_eq!(metrics.request_duration("snowflake", "idget").read().count, 3);
        assert_eq!(metrics.request_duration("segment", "idget").read().count, 0);
        tally.flush(&stats, &metrics, Duration::from_secs(1));
        assert_eq!(stats.calls(), 4, "a batch counts once");
    }

    #[test]
    fn percentiles_are_the_upper_bounds_of_their_buckets() {
        let histogram = Histogram::default();
        assert_eq!(histogram.percentile(500), 0);
        histogram.add(Duration::from_nanos(30), 98);
        histogram.add(Duration::from_micros(3), 1);
        histogram.add(Duration::from_hours(1), 1);
        assert_eq!([500, 990, 999].map(|quantile| histogram.percentile(quantile)), [1, 4, 1 << BUCKETS]);
        assert_eq!(histogram.buckets().last(), Some((None, 1)));
    }

    #[test]
    fn a_reset_forgets_commands_and_errors_but_not_what_prometheus_reads() {
        let metrics = Metrics::default();
        let stats = Stats::default();
        stats.errors.add("ERR", 2);
        let mut tally = Tally::new();
        tally.add(find(b"incr").expect("incr"), Some(EngineKind::Segment), 5, 2);
        tally.flush(&stats, &metrics, Duration::from_micros(5));
        stats.reset();
        stats.errors.add("ERR", 1);
        assert_eq!(
            (stats.calls(), stats.errors_since_reset(), stats.errors.get()),
            (0, vec![("ERR", 1)], vec![("ERR", 3)])
        );
        assert_eq!(metrics.request_duration("segment", "incr").read().count, 5);
    }

    #[test]
    fn the_rate_is_told_over_the_time_since_a_question_a_second_ago() {
        let (stats, metrics) = (Stats::default(), Metrics::default());
        let mut tally = Tally::new();
        let mut call = |calls| {
            tally.add(find(b"incr").expect("incr"), None, calls, 0);
            tally.flush(&stats, &metrics, Duration::ZERO);
        };
        let second = |n: u64| Boot(n * 1_000_000_000);
        call(100);
        assert_eq!(stats.calls_per_second(second(20), second(10)), 10);
        call(300);
        assert_eq!(stats.calls_per_second(second(22), second(10)), 150);
    }
}
