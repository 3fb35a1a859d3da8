//! What is counted, and how Prometheus reads it.
//!
//! Rooms count in plain atomics that they hold directly, never through a label look-up; one collector turns the atomics
//! into metric families when somebody scrapes. Only tags of the catalogue become label values.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::ids::TagName;

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
}
