//! `CONFIG GET | SET | RESETSTAT`. Settings come from the configuration at start: those of this server by their own names
//! (`server.max_count`), and the few that Redis clients and tools ask for by Redis' names, with what is true here.

use super::ping::OK;
use super::session::{Call, Session};
use super::{Context, DATABASES, Error};
use crate::glob::{MAX_PATTERN_LEN, glob};
use crate::resp::Value;

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn get(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let patterns: Vec<Vec<u8>> =
        call.rest(2).filter(|one| one.len() <= MAX_PATTERN_LEN).map(<[u8]>::to_ascii_lowercase).collect();
    let wanted = |name: &str| patterns.iter().any(|pattern| glob(pattern, name.as_bytes()));
    let settings = settings(call.context).into_iter().filter(|(name, _)| wanted(name));
    Ok(Value::Map(settings.map(|(name, value)| (Value::bulk(name), Value::bulk(value))).collect()))
}

fn settings(context: &Context) -> Vec<(String, String)> {
    let settings = &context.settings;
    let redis: [(&str, String); 17] = [
        ("appendonly", "no".into()),
        ("bind", settings.bind.clone()),
        ("cluster-enabled", "no".into()),
        ("databases", DATABASES.to_string()),
        ("latency-monitor-threshold", "0".into()),
        ("maxclients", settings.max_clients.to_string()),
        ("maxmemory", "0".into()),
        ("maxmemory-policy", "noeviction".into()),
        ("notify-keyspace-events", String::new()),
        ("port", settings.tcp_port.to_string()),
        ("proto-max-bulk-len", crate::resp::Limits::AFTER_LOGIN.max_bulk.to_string()),
        ("save", String::new()),
        ("slowlog-log-slower-than", "-1".into()),
        ("slowlog-max-len", "0".into()),
        ("timeout", settings.idle_timeout.as_secs().to_string()),
        ("tls-port", "0".into()),
        ("unixsocket", settings.unix_socket.clone()),
    ];
    let own = settings.shown.iter().map(|(name, value)| (name.clone(), value.clone()));
    redis.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(own).collect()
}

/// Nothing can be set while the server runs; the two texts are those of Redis for such settings and for unknown ones.
pub(super) fn set(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    if call.len() % 2 == 1 {
        return Err(Error::arity(call.spec.name));
    }
    let known = settings(call.context);
    let sent: Vec<&[u8]> = call.rest(2).step_by(2).collect();
    let unknown = sent.iter().find(|name| !known.iter().any(|(other, _)| name.eq_ignore_ascii_case(other.as_bytes())));
    Err(match unknown {
        Some(name) => Error::redis_about("Unknown option or number of arguments for CONFIG SET - '{}'", name),
        None => Error::redis_about(
            "CONFIG SET failed (possibly related to argument '{}') - can't set immutable config: change the configuration \
             and restart",
            sent.first().copied().unwrap_or_default(),
        ),
    })
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn resetstat(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    call.context.stats.reset();
    call.context.clients.forget_counts();
    Ok(OK)
}
