//! What is counted, and how Prometheus reads it.
//!
//! Rooms count in plain atomics that they hold directly, never through a label look-up; one collector turns the atomics
//! into metric families when somebody scrapes. Only tags of the catalogue become label values. Names and help of all
//! metrics are in this module and its parts; rooms above give numbers (`Source`), never names.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, TextEncoder};

use crate::ids::TagName;

mod families;
mod histogram;
mod process;
mod readings;
mod tags;

pub use families::Families;
pub use histogram::Histogram;
pub use readings::{NodeReading, SnowflakeReading};
pub use tags::MAX_NAMED;

/// The media type of what [`Metrics::render`] gives.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Gauge {
    /// Sets the value; one beyond `i64` is cut to its limit.
    pub fn set(&self, value: impl TryInto<i64>) {
        self.0.store(value.try_into().unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// Adds `n`, which may be negative.
    pub fn add(&self, n: i64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters told apart by one label whose values are words of the program, for paths that are not hot.
#[derive(Debug, Default)]
pub struct Labelled(Mutex<BTreeMap<&'static str, u64>>);

impl Labelled {
    /// Adds `n` under `label`.
    pub fn add(&self, label: &'static str, n: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(label).or_default() += n;
    }

    /// All labels with their counts.
    #[must_use]
    pub fn get(&self) -> Vec<(&'static str, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(label, n)| (*label, *n)).collect()
    }
}

/// What is counted for one tag.
#[derive(Debug, Default)]
pub struct TagMetrics {
    /// Requests that got their ids (`idgen_requests_total{status="ok"}`).
    pub requests_ok: Counter,
    /// Requests that got an error, by its prefix in lower case.
    pub requests_failed: Labelled,
    /// Ids written to clients.
    pub issued: Counter,
    /// Grants asked of the store.
    pub fetches: Counter,
    /// Grants that failed, by reason.
    pub fetch_failures: Labelled,
    /// Ids in memory.
    pub remaining: Gauge,
    /// The step of the next grant.
    pub step: Gauge,
    /// Changes of the step, by reason.
    pub step_changes: Labelled,
    /// Requests that had to wait for a refill.
    pub buffer_waits: Counter,
    /// Ids left below the tag's limit.
    pub headroom: Gauge,
    /// Ids that a rate limit has refused, by whose it was: `node`, `user` or `tag`.
    pub rate_limited: Labelled,
    /// Ids per second that the tag may give on this node; 0: no limit.
    pub rate_limit: Gauge,
}

/// What is counted for one store.
#[derive(Debug, Default)]
pub struct StoreMetrics {
    /// How long grants took, failed ones included.
    pub fetch_duration: Histogram,
    /// Grants that showed that the store has lost commits.
    pub regressions: Counter,
    /// 1 while tags can be read and ids granted, else 0.
    pub up: Gauge,
    /// 1 when its settings keep what it has confirmed, else 0.
    pub durable: Gauge,
    /// Its circuit breaker: 0 closed, 1 half-open, 2 open.
    pub circuit: Gauge,
}

/// Asked at every scrape for numbers that nobody counts, such as an age.
pub type Source = Box<dyn Fn(&mut Families) + Send + Sync>;

/// Everything that is counted on this node.
#[derive(Default)]
pub struct Metrics {
    /// Requests for tags that don't exist (`biz_tag="_unknown"`).
    pub unknown: TagMetrics,
    /// Ids that were reserved and will never be issued, by reason.
    pub discarded: Arc<Labelled>,
    /// Ranges that were published without the witness, which could not be asked.
    pub witness_skipped: Arc<Counter>,
    /// Connections of clients that are open.
    pub connections: Gauge,
    /// Connections that were refused, by reason.
    pub connections_rejected: Labelled,
    /// Bytes that are no request, by kind.
    pub protocol_errors: Labelled,
    /// Ids per second that this node may give; 0: no limit.
    pub node_rate_limit: Gauge,
    /// Ids per second that a user may draw, of several limited users the least; 0: none is limited.
    pub user_rate_limit: Gauge,
    tags: Mutex<tags::Tags>,
    durations: Mutex<BTreeMap<(&'static str, &'static str), Arc<Histogram>>>,
    stores: Mutex<BTreeMap<&'static str, Arc<StoreMetrics>>>,
    sources: Mutex<Vec<Source>>,
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("tags", &self.tags).finish_non_exhaustive()
    }
}

impl Metrics {
    /// The counters of `tag`, whose ids come from `engine` (`segment` or `snowflake`): to be kept beside the tag.
    pub fn tag(&self, tag: &TagName, engine: &'static str) -> Arc<TagMetrics> {
        lock(&self.tags).tag(tag, engine)
    }

    /// Ends the time series of `tag`, which is retired.
    pub fn retire(&self, tag: &TagName) {
        lock(&self.tags).retire(tag);
    }

    /// How long requests of `command` (lower case) to `engine` take: to be resolved once and kept.
    pub fn request_duration(&self, engine: &'static str, command: &'static str) -> Arc<Histogram> {
        Arc::clone(lock(&self.durations).entry((engine, command)).or_default())
    }

    /// The counters of the store `name`: to be resolved once and kept.
    pub fn store(&self, name: &'static str) -> Arc<StoreMetrics> {
        Arc::clone(lock(&self.stores).entry(name).or_default())
    }

    /// Asks `source` at every scrape from now on.
    pub fn add_source(&self, source: impl Fn(&mut Families) + Send + Sync + 'static) {
        lock(&self.sources).push(Box::new(source));
    }

    /// All metrics in Prometheus' text format; its type is [`CONTENT_TYPE`].
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        // It fails on a family without samples only, and none is made without one.
        let _ = TextEncoder::new().encode(&self.collect(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    fn collect_node(&self, families: &mut Families) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        families.gauge("idgen_build_info", "Always 1; the labels tell the build.", &version, 1.0);
        families.gauge_i64("idgen_connections", "Connections of clients.", &[], self.connections.get());
        let help = "Segments that were fetched without the witness, which could not be asked.";
        families.counter("idgen_witness_skipped_total", help, &[], self.witness_skipped.get());
        for (name, help, label, counts) in [
            (
                "idgen_ids_discarded_total",
                "Ids that were reserved and will never be issued, by reason.",
                "reason",
                &*self.discarded,
            ),
            (
                "idgen_connections_rejected_total",
                "Connections that were refused, by reason.",
                "reason",
                &self.connections_rejected,
            ),
            ("idgen_protocol_errors_total", "Bytes that are no request, by kind.", "kind", &self.protocol_errors),
        ] {
            for (value, n) in counts.get() {
                families.counter(name, help, &[(label, value)], n);
            }
        }
        for (scope, limit) in [("node", &self.node_rate_limit), ("user", &self.user_rate_limit)] {
            tags::collect_rate_limit(scope, "", limit.get(), families);
        }
        for ((engine, command), histogram) in &*lock(&self.durations) {
            let help = "How long requests for ids took, from reading to the reply, in seconds.";
            let labels = [("engine", *engine), ("command", *command)];
            families.histogram("idgen_request_duration_seconds", help, &labels, &histogram.read());
        }
    }

    fn collect_stores(&self, families: &mut Families) {
        for (name, store) in &*lock(&self.stores) {
            let labels = [("store", *name)];
            let help = "How long grants took, failed ones included, in seconds.";
            families.histogram("idgen_segment_fetch_duration_seconds", help, &labels, &store.fetch_duration.read());
            let (name, help) = (readings::STORE_REGRESSION, readings::STORE_REGRESSION_HELP);
            families.counter_sum(name, help, &labels, store.regressions.get());
            families.gauge_i64(
                "idgen_store_up",
                "1 while tags can be read and ids granted, else 0.",
                &labels,
                store.up.get(),
            );
            let help = "1 when the settings of the store keep what it has confirmed, else 0.";
            families.gauge_i64("idgen_store_durable", help, &labels, store.durable.get());
            let help =
                "The circuit breaker: 0 closed, 1 half-open (one probe is out), 2 open (the store is not asked).";
            families.gauge_i64("idgen_circuit_state", help, &labels, store.circuit.get());
        }
    }
}

impl Collector for Metrics {
    fn desc(&self) -> Vec<&Desc> {
        // Which families there are is known when they are read.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Families::default();
        // First, since a source may also set what is counted here.
        for source in &*lock(&self.sources) {
            source(&mut families);
        }
        self.collect_node(&mut families);
        self.collect_stores(&mut families);
        lock(&self.tags).collect(&self.unknown, &mut families);
        process::collect(&mut families);
        families.into_vec()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
