//! `PING`, `ECHO`, `SELECT`, `QUIT`, `RESET`: the connection itself.

use super::session::{Call, Session};
use super::{DATABASES, Error, number};
use crate::health::Phase;
use crate::resp::{Protocol, Value};

pub(super) const OK: Value = Value::Simple(std::borrow::Cow::Borrowed("OK"));

pub(super) fn ping(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    if call.len() > 2 {
        return Err(Error::arity(call.spec.name));
    }
    if call.context.health.phase() == Phase::Draining {
        return Err(Error::draining());
    }
    let subscribed = !session.channels.is_empty() || !session.patterns.is_empty();
    Ok(if subscribed && session.protocol == Protocol::Resp2 {
        Value::Array(vec![Value::bulk("pong"), Value::bulk(call.arg(1))])
    } else if call.len() == 2 {
        Value::bulk(call.arg(1))
    } else {
        Value::Simple("PONG".into())
    })
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn echo(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::bulk(call.arg(1)))
}

pub(super) fn select(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let index = number::redis_integer(call.arg(1))?;
    let index = u8::try_from(index).ok().filter(|&index| index < DATABASES);
    session.db = index.ok_or_else(|| Error::redis("DB index is out of range"))?;
    Ok(OK)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn quit(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    session.closing = true;
    Ok(OK)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn reset(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    session.reset(call.context);
    Ok(Value::Simple("RESET".into()))
}
