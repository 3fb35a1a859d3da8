//! `SLOWLOG`: empty, since slow commands are not logged (`CONFIG GET slowlog-log-slower-than` says -1). Durations are in
//! `LATENCY HISTOGRAM`, `INFO latencystats` and the metrics.

use super::Error;
use super::number::integer;
use super::ping::OK;
use super::session::{Call, Session};
use crate::resp::Value;

pub(super) fn get(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let valid = match call.len() {
        2 => true,
        3 => integer(call.arg(2)).is_some_and(|count| count >= -1),
        _ => return Err(Error::arity(call.spec.name)),
    };
    if valid { Ok(Value::Array(Vec::new())) } else { Err(Error::redis("count should be greater than or equal to -1")) }
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn len(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Integer(0))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn reset(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(OK)
}
