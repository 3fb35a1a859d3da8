//! What is counted per tag, with a limit on how many tags get a label value of their own.
//!
//! The first [`MAX_NAMED`] tags are told apart; the others are summed as `_other`. Sums of counters never go down: what a
//! tag counted stays in `_other` when the tag goes. A name that is free again goes to the next new tag, never to one that
//! is in `_other` already, for the same reason.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::TagMetrics;
use super::families::Families;
use crate::ids::TagName;

/// How many tags become label values: each costs about ten time series in Prometheus.
pub const MAX_NAMED: usize = 200;

const REQUESTS: (&str, &str) =
    ("idgen_requests_total", "Requests for ids, by how they ended: ok or the prefix of the error.");

type Entry = (&'static str, Arc<TagMetrics>);

/// The tags that are counted.
#[derive(Debug, Default)]
pub struct Tags {
    named: BTreeMap<TagName, Entry>,
    other: BTreeMap<TagName, Entry>,
    /// What tags of `other` had counted when they went, by engine.
    gone: BTreeMap<&'static str, Sums>,
}

impl Tags {
    /// The counters of `tag`, new ones where it has none.
    pub fn tag(&mut self, tag: &TagName, engine: &'static str) -> Arc<TagMetrics> {
        if let Some((_, metrics)) = self.named.get(tag).or_else(|| self.other.get(tag)) {
            return Arc::clone(metrics);
        }
        let metrics = Arc::new(TagMetrics::default());
        let map = if self.named.len() < MAX_NAMED { &mut self.named } else { &mut self.other };
        map.insert(tag.clone(), (engine, Arc::clone(&metrics)));
        metrics
    }

    /// Forgets `tag`, which is retired.
    pub fn retire(&mut self, tag: &TagName) {
        self.named.remove(tag);
        if let Some((engine, metrics)) = self.other.remove(tag) {
            let gone = self.gone.entry(engine).or_default();
            gone.add(&metrics);
            (gone.remaining, gone.headroom, gone.rate_limit) = (0, None, 0);
        }
    }

    /// Adds the families of all tags; `unknown` counts requests for tags that don't exist.
    pub fn collect(&self, unknown: &TagMetrics, families: &mut Families) {
        for (tag, (engine, metrics)) in &self.named {
            let mut sums = Sums::default();
            sums.add(metrics);
            sums.collect(tag.as_str(), engine, Some(metrics.step.get()), families);
            collect_rate_limit("tag", tag.as_str(), sums.rate_limit, families);
        }
        let mut other = self.gone.clone();
        for (engine, metrics) in self.other.values() {
            other.entry(engine).or_default().add(metrics);
        }
        for (engine, sums) in &other {
            sums.collect("_other", engine, None, families);
        }
        let least = other.values().map(|sums| sums.rate_limit).filter(|&limit| limit > 0).min();
        collect_rate_limit("tag", "_other", least.unwrap_or(0), families);
        let mut sums = Sums::default();
        sums.add(unknown);
        sums.collect_failed("_unknown", "none", families);
    }
}

/// Adds the limit of a node, a user or a tag, if there is one.
pub fn collect_rate_limit(scope: &'static str, tag: &str, ids_per_second: i64, families: &mut Families) {
    if ids_per_second > 0 {
        let help = "Ids per second that are allowed on this node; of several users or tags the least.";
        let labels = [("scope", scope), ("biz_tag", tag)];
        families.gauge_i64("idgen_rate_limit_ids_per_second", help, &labels, ids_per_second);
    }
}

/// The numbers of one tag or of many together.
#[derive(Clone, Debug, Default)]
struct Sums {
    ok: u64,
    failed: BTreeMap<&'static str, u64>,
    issued: u64,
    fetches: u64,
    fetch_failures: BTreeMap<&'static str, u64>,
    step_changes: BTreeMap<&'static str, u64>,
    buffer_waits: u64,
    remaining: i64,
    /// The least of all: a sum would hide the tag that runs out.
    headroom: Option<i64>,
    rate_limited: BTreeMap<&'static str, u64>,
    /// The least of all that have one; 0: none has.
    rate_limit: i64,
}

impl Sums {
    fn add(&mut self, metrics: &TagMetrics) {
        self.ok += metrics.requests_ok.get();
        self.issued += metrics.issued.get();
        self.fetches += metrics.fetches.get();
        self.buffer_waits += metrics.buffer_waits.get();
        self.remaining = self.remaining.saturating_add(metrics.remaining.get());
        let headroom = metrics.headroom.get();
        self.headroom = Some(self.headroom.map_or(headroom, |least| least.min(headroom)));
        let limits = [self.rate_limit, metrics.rate_limit.get()];
        self.rate_limit = limits.into_iter().filter(|&limit| limit > 0).min().unwrap_or(0);
        for (sum, counts) in [
            (&mut self.failed, &metrics.requests_failed),
            (&mut self.fetch_failures, &metrics.fetch_failures),
            (&mut self.step_changes, &metrics.step_changes),
            (&mut self.rate_limited, &metrics.rate_limited),
        ] {
            for (label, n) in counts.get() {
                *sum.entry(label).or_default() += n;
            }
        }
    }

    fn collect(&self, tag: &str, engine: &str, step: Option<i64>, families: &mut Families) {
        let labels = [("biz_tag", tag), ("engine", engine), ("status", "ok")];
        families.counter(REQUESTS.0, REQUESTS.1, &labels, self.ok);
        self.collect_failed(tag, engine, families);
        let labels = [("biz_tag", tag), ("engine", engine)];
        families.counter("idgen_ids_issued_total", "Ids written to clients.", &labels, self.issued);
        for (scope, n) in &self.rate_limited {
            let labels = [("scope", *scope), ("biz_tag", tag)];
            families.counter_sum(
                "idgen_rate_limited_total",
                "Ids that a rate limit has refused, by whose it was: node, user or tag.",
                &labels,
                *n,
            );
        }
        if engine == "segment" {
            self.collect_segment(tag, step, families);
        }
    }

    fn collect_failed(&self, tag: &str, engine: &str, families: &mut Families) {
        for (status, n) in &self.failed {
            let labels = [("biz_tag", tag), ("engine", engine), ("status", status)];
            families.counter(REQUESTS.0, REQUESTS.1, &labels, *n);
        }
    }

    fn collect_segment(&self, tag: &str, step: Option<i64>, families: &mut Families) {
        let labels = [("biz_tag", tag)];
        families.counter("idgen_segment_fetch_total", "Grants asked of the store.", &labels, self.fetches);
        let help = "Requests that had to wait for a refill.";
        families.counter("idgen_segment_buffer_wait_total", help, &labels, self.buffer_waits);
        families.gauge_i64("idgen_segment_remaining_ids", "Ids in memory.", &labels, self.remaining);
        if let Some(headroom) = self.headroom {
            let help = "Ids left below the limit of the tag; of several tags the least.";
            families.gauge_i64("idgen_segment_headroom_ids", help, &labels, headroom);
        }
        if let Some(step) = step {
            families.gauge_i64("idgen_segment_step", "How many ids the next grant asks for.", &labels, step);
        }
        for (name, help, counts) in [
            ("idgen_segment_fetch_fail_total", "Grants that failed, by reason.", &self.fetch_failures),
            (
                "idgen_segment_step_change_total",
                "Changes of the step, by reason: defined, doubled, halved or starved.",
                &self.step_changes,
            ),
        ] {
            for (reason, n) in counts {
                families.counter(name, help, &[("biz_tag", tag), ("reason", reason)], *n);
            }
        }
    }
}
