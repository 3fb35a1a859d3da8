//! `LATENCY`: durations of commands as a histogram. Events are not monitored (`latency-monitor-threshold` is 0).

use super::idinfo::map;
use super::number::value;
use super::session::{Call, Session};
use super::spec::{find, rows};
use super::{BUCKETS, Error, Histogram, Spec};
use crate::resp::Value;

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn histogram(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let wanted: Vec<&'static Spec> = match call.len() {
        2 => rows().to_vec(),
        _ => call.rest(2).filter_map(find).flat_map(|row| std::iter::once(row).chain(row.subcommands())).collect(),
    };
    let told = wanted.into_iter().filter_map(|row| {
        let durations = &call.context.stats.command(row.index())?.durations;
        (durations.count() > 0).then(|| (Value::bulk(row.name), describe(durations)))
    });
    Ok(Value::Map(told.collect()))
}

/// Cumulative counts at the buckets that hold something, as in Redis.
fn describe(durations: &Histogram) -> Value {
    let mut seen = 0;
    let mut buckets = Vec::new();
    for (bound, count) in durations.buckets() {
        seen += count;
        if count > 0 {
            buckets.push((value(bound.unwrap_or(1 << BUCKETS)), value(seen)));
        }
    }
    map(vec![("calls", value(durations.count())), ("histogram_usec", Value::Map(buckets))])
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn none(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(Vec::new()))
}

/// How many events were forgotten: none are kept.
#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn reset(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Integer(0))
}
