//! `TIME`, `ROLE`, `WAIT`, `LOLWUT`, `MODULE LIST`, `MEMORY STATS`: small truths about the server.

use super::idinfo::map;
use super::number::{redis_integer, value};
use super::session::{Call, Session};
use super::{Error, VERSION};
use crate::resp::Value;

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn time(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let micros = call.context.clock.wall().0 / 1000;
    let part = |number: u64| Value::bulk(number.to_string());
    Ok(Value::Array(vec![part(micros / 1_000_000), part(micros % 1_000_000)]))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn role(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(vec![Value::bulk("master"), Value::Integer(0), Value::Array(Vec::new())]))
}

pub(super) fn wait(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    redis_integer(call.arg(1))?;
    redis_integer(call.arg(2))?;
    Ok(Value::Integer(0))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn lolwut(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::bulk(format!("idgen ver. {VERSION}: ids that go up and never come twice\n")))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn module_list(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(Vec::new()))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn memory_stats(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let memory = Memory::read();
    Ok(map(vec![
        ("peak.allocated", value(memory.peak)),
        ("total.allocated", value(memory.resident)),
        ("keys.count", value(call.context.router.len() as u64)),
    ]))
}

/// Memory of the process, in bytes.
pub(super) struct Memory {
    /// What is in memory now.
    pub(super) resident: u64,
    /// The most that ever was.
    pub(super) peak: u64,
}

impl Memory {
    /// What the kernel says; 0 where it says nothing.
    pub(super) fn read() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let kilobytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let bytes = |name: &str| kilobytes(name).unwrap_or(0) * 1024;
        Self { resident: bytes("VmRSS:"), peak: bytes("VmHWM:") }
    }
}
