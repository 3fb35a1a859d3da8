//! `IDNODE`: the state of this node, the same that readiness and `INFO` tell.

use super::idinfo::map;
use super::number::value;
use super::session::{Call, Session};
use super::{Error, VERSION};
use crate::health::{Phase, STOPPING};
use crate::resp::Value;

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn idnode(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let context = call.context;
    let node = context.router.snowflake().view();
    let phase = context.health.phase();
    let stopping = (phase == Phase::Draining).then(|| Value::bulk(STOPPING));
    let reasons = stopping.into_iter().chain(context.health.missing().iter().map(Value::bulk)).collect();
    Ok(map(vec![
        ("id", Value::bulk(&context.settings.run_id)),
        ("version", Value::bulk(VERSION)),
        ("worker", node.worker.map_or(Value::Null, |worker| value(worker.into()))),
        ("datacenter", value(node.datacenter.into())),
        ("window_remaining_ms", value(node.window_remaining_ms)),
        ("clock_offset_ms", Value::Integer(node.clock_offset_ns / 1_000_000)),
        ("store", Value::bulk(context.router.store_name())),
        ("tags", value(context.router.len() as u64)),
        ("phase", Value::bulk(phase_name(phase))),
        ("ready", Value::Boolean(phase == Phase::Serving)),
        ("reasons", Value::Array(reasons)),
    ]))
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Loading => "loading",
        Phase::Serving => "serving",
        Phase::Draining => "draining",
    }
}
