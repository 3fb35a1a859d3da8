//! Numbers on their way to Prometheus: names with their help, and samples with their labels.

use std::collections::BTreeMap;

use prometheus::proto::{self, MetricType};

use super::histogram::Reading;

/// Labels of a sample.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// The metric families of one scrape. Samples of one name join in one family.
#[derive(Debug, Default)]
pub struct Families(BTreeMap<&'static str, proto::MetricFamily>);

impl Families {
    /// A number that only grows; its name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: u64) {
        self.counter_f64(name, help, labels, precise(value));
    }

    /// A number with a fraction that only grows.
    pub fn counter_f64(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: f64) {
        let mut counter = proto::Counter::default();
        counter.set_value(value);
        self.sample(name, help, MetricType::COUNTER, labels).set_counter(counter);
    }

    /// A number that only grows and that several sources may give: those with the same labels add up in one sample.
    pub fn counter_sum(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: u64) {
        let same = |metric: &&mut proto::Metric| {
            let given = metric.get_label().iter().map(|pair| (pair.name(), pair.value()));
            given.eq(labels.iter().copied())
        };
        let there = self.0.get_mut(name).and_then(|family| family.mut_metric().iter_mut().find(same));
        let Some(metric) = there else { return self.counter(name, help, labels, value) };
        let mut counter = proto::Counter::default();
        counter.set_value(metric.get_counter().get_value() + precise(value));
        metric.set_counter(counter);
    }

    /// A number that goes up and down.
    pub fn gauge(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: f64) {
        let mut gauge = proto::Gauge::default();
        gauge.set_value(value);
        self.sample(name, help, MetricType::GAUGE, labels).set_gauge(gauge);
    }

    /// A whole number that goes up and down.
    pub fn gauge_i64(&mut self, name: &'static str, help: &str, labels: Labels<'_>, value: i64) {
        #[expect(clippy::cast_precision_loss, reason = "a metric of 53 bits is precise enough")]
        self.gauge(name, help, labels, value as f64);
    }

    /// A histogram of durations in seconds.
    pub fn histogram(&mut self, name: &'static str, help: &str, labels: Labels<'_>, reading: &Reading) {
        let bucket = |(bound, count): &(f64, u64)| {
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(*count);
            bucket
        };
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(reading.buckets.iter().map(bucket).collect());
        histogram.set_sample_count(reading.count);
        histogram.set_sample_sum(reading.sum_seconds);
        self.sample(name, help, MetricType::HISTOGRAM, labels).set_histogram(histogram);
    }

    /// All families, by name.
    #[must_use]
    pub fn into_vec(self) -> Vec<proto::MetricFamily> {
        self.0.into_values().collect()
    }

    fn sample(&mut self, name: &'static str, help: &str, kind: MetricType, labels: Labels<'_>) -> &mut proto::Metric {
        let family = self.0.entry(name).or_insert_with(|| {
            let mut family = proto::MetricFamily::default();
            family.set_name(name.to_owned());
            family.set_help(help.to_owned());
            family.set_field_type(kind);
            family
        });
        let pair = |(name, value): &(&'static str, &str)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        };
        let metrics = family.mut_metric();
        metrics.push(proto::Metric::from_label(labels.iter().map(pair).collect()));
        let last = metrics.len() - 1;
        &mut metrics[last]
    }
}

#[expect(clippy::cast_precision_loss, reason = "a metric of 53 bits is precise enough")]
pub fn precise(value: u64) -> f64 {
    value as f64
}
