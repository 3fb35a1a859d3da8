//! Numbers that rooms above give at a scrape, with the names they get.

use std::time::Duration;

use super::families::{Families, precise};

/// Counted for stores of tags and for the registry of worker ids: one family.
pub(super) const STORE_REGRESSION: &str = "idgen_store_regression_total";
pub(super) const STORE_REGRESSION_HELP: &str = "How often a store showed that it has lost what it had confirmed.";

/// What the Snowflake engine says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SnowflakeReading {
    /// How often the wall clock or the boot clock was seen to have moved backwards.
    pub rollbacks: u64,
    /// The wall clock minus the time that ids are made with, in seconds.
    pub clock_offset_seconds: f64,
    /// How often a tick had no sequence left.
    pub sequence_exhausted: u64,
    /// When the timestamp bits end, in seconds since 1970.
    pub exhaustion_seconds: f64,
    /// The worker id, when there is one.
    pub worker_id: Option<u32>,
    /// How much reserved time is left, in seconds; 0 without a worker id.
    pub window_remaining_seconds: f64,
    /// How often a worker id was lost.
    pub workers_lost: u64,
    /// How often claiming a worker id failed.
    pub register_failures: u64,
    /// The name of the registry of worker ids, which may be a store's too.
    pub registry: &'static str,
    /// How often the registry had gone back behind what it had confirmed.
    pub regressions: u64,
}

impl SnowflakeReading {
    /// Adds the numbers to a scrape.
    pub fn collect(&self, families: &mut Families) {
        let mut gauge = |name, help, value| families.gauge(name, help, &[], value);
        gauge(
            "idgen_clock_offset_seconds",
            "The wall clock minus the time that ids are made with, in seconds.",
            self.clock_offset_seconds,
        );
        gauge(
            "idgen_snowflake_exhaustion_timestamp_seconds",
            "When the timestamp bits end, in seconds since 1970.",
            self.exhaustion_seconds,
        );
        gauge(
            "idgen_worker_window_remaining_seconds",
            "How much time is reserved for the worker id from now on, in seconds.",
            self.window_remaining_seconds,
        );
        if let Some(worker) = self.worker_id {
            gauge("idgen_worker_id", "The worker id of this node.", f64::from(worker));
        }
        for (name, help, value) in [
            (
                "idgen_clock_rollback_total",
                "How often the wall clock or the boot clock was seen to have moved backwards.",
                self.rollbacks,
            ),
            (
                "idgen_snowflake_sequence_exhausted_total",
                "How often a tick had no sequence left.",
                self.sequence_exhausted,
            ),
            ("idgen_worker_lost_total", "How often a worker id was lost.", self.workers_lost),
            ("idgen_worker_register_fail_total", "How often claiming a worker id failed.", self.register_failures),
        ] {
            families.counter(name, help, &[], value);
        }
        families.counter_sum(STORE_REGRESSION, STORE_REGRESSION_HELP, &[("store", self.registry)], self.regressions);
    }
}

/// What the node as a whole says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeReading {
    /// How old what the node knows of the tags is; `None` before the first look.
    pub catalogue_age: Option<Duration>,
    /// Panics so far.
    pub panics: u64,
    /// Log lines that the sink did not take.
    pub log_dropped: u64,
}

impl NodeReading {
    /// Adds the numbers to a scrape.
    pub fn collect(&self, families: &mut Families) {
        if let Some(age) = self.catalogue_age {
            let help = "How old what this node knows of the tags is, in seconds.";
            families.gauge("idgen_tag_catalogue_age_seconds", help, &[], age.as_secs_f64());
        }
        let mut counter = |name, help, value| families.counter_f64(name, help, &[], precise(value));
        counter("idgen_panics_total", "Panics: each is a defect of the program.", self.panics);
        counter(
            "idgen_log_dropped_total",
            "Log lines that were dropped since their sink was blocked.",
            self.log_dropped,
        );
    }
}
