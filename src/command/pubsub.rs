//! `SUBSCRIBE`, `UNSUBSCRIBE`, `PSUBSCRIBE`, `PUNSUBSCRIBE`, `PUBLISH`, `PUBSUB`. Clients subscribe unasked when they
//! connect, so subscriptions are accepted and kept, but nothing is ever published: a message reaches nobody, and the
//! counts of subscribers that one would reach are 0.

use std::collections::BTreeSet;

use super::Error;
use super::session::{Call, Session};
use crate::resp::{Protocol, Value};

/// The most channels, and the most patterns, that one connection may subscribe to.
const MAX_SUBSCRIPTIONS: usize = 1024;

/// The most bytes of their names, channels and patterns each.
const MAX_NAMES_BYTES: usize = 64 * 1024;

/// Which of a connection's two sets.
type Set = fn(&mut Session) -> &mut BTreeSet<Vec<u8>>;

const CHANNELS: Set = |session| &mut session.channels;
const PATTERNS: Set = |session| &mut session.patterns;

pub(super) fn subscribe(session: &mut Session, call: &Call<'_>) -> Result<Vec<Value>, Error> {
    add(session, call, CHANNELS)
}

pub(super) fn psubscribe(session: &mut Session, call: &Call<'_>) -> Result<Vec<Value>, Error> {
    add(session, call, PATTERNS)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn unsubscribe(session: &mut Session, call: &Call<'_>) -> Result<Vec<Value>, Error> {
    Ok(remove(session, call, CHANNELS))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn punsubscribe(session: &mut Session, call: &Call<'_>) -> Result<Vec<Value>, Error> {
    Ok(remove(session, call, PATTERNS))
}

fn add(session: &mut Session, call: &Call<'_>, set: Set) -> Result<Vec<Value>, Error> {
    let new = call.rest(1).filter(|name| !set(session).contains(*name)).count();
    let bytes = set(session).iter().map(Vec::len).chain(call.rest(1).map(<[u8]>::len)).sum::<usize>();
    if set(session).len() + new > MAX_SUBSCRIPTIONS || bytes > MAX_NAMES_BYTES {
        return Err(Error::too_many_channels(MAX_SUBSCRIPTIONS, MAX_NAMES_BYTES));
    }
    let mut messages = Vec::new();
    for name in call.rest(1) {
        set(session).insert(name.to_vec());
        messages.push(message(session, call, Value::bulk(name)));
    }
    Ok(messages)
}

fn remove(session: &mut Session, call: &Call<'_>, set: Set) -> Vec<Value> {
    let names: Vec<Vec<u8>> = match call.len() {
        1 => set(session).iter().cloned().collect(),
        _ => call.rest(1).map(<[u8]>::to_vec).collect(),
    };
    if names.is_empty() {
        return vec![message(session, call, Value::Null)];
    }
    let leave = |name: Vec<u8>| {
        set(session).remove(&name);
        message(session, call, Value::Bulk(name))
    };
    names.into_iter().map(leave).collect()
}

/// The message that confirms one change: in RESP3 a push, since subscribers there go on sending commands.
fn message(session: &Session, call: &Call<'_>, name: Value) -> Value {
    let left = i64::try_from(session.channels.len() + session.patterns.len()).unwrap_or(i64::MAX);
    let parts = vec![Value::bulk(call.spec.name), name, Value::Integer(left)];
    match session.protocol {
        Protocol::Resp2 => Value::Array(parts),
        Protocol::Resp3 => Value::Push(parts),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn publish(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Integer(0))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn channels(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(Vec::new()))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn numsub(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(call.rest(2).flat_map(|name| [Value::bulk(name), Value::Integer(0)]).collect()))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn numpat(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Integer(0))
}
