//! `HELLO [2|3 [AUTH user token] [SETNAME name]]`: the version of the protocol. All or nothing: an error leaves protocol,
//! user and name as they were (a login that succeeded before a bad name stays, as in Redis). The reply is already in the
//! new version, as is everything behind it in the same read.

use super::idinfo::map;
use super::number::{integer, value};
use super::session::{Call, Session};
use super::{Error, REDIS_VERSION, auth, client};
use crate::resp::{Protocol, Value};

pub(super) fn hello(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let protocol = match call.request.arg(1).map(integer) {
        None => None,
        Some(Some(2)) => Some(Protocol::Resp2),
        Some(Some(3)) => Some(Protocol::Resp3),
        Some(Some(_)) => return Err(Error::no_proto()),
        Some(None) => return Err(Error::redis("Protocol version is not an integer or out of range")),
    };
    let (login, name) = options(call)?;
    if let Some((user, token)) = login {
        auth::log_in(session, call.context, user, token)?;
    }
    if !session.authenticated() {
        return Err(Error::no_auth_hello());
    }
    if let Some(name) = name {
        session.client.profile().name = client::name(name)?;
    }
    session.protocol = protocol.unwrap_or(session.protocol);
    let version = if session.protocol == Protocol::Resp3 { 3 } else { 2 };
    Ok(map(vec![
        ("server", Value::bulk("redis")),
        ("version", Value::bulk(REDIS_VERSION)),
        ("proto", Value::Integer(version)),
        ("id", value(session.client.id)),
        ("mode", Value::bulk("standalone")),
        ("role", Value::bulk("master")),
        ("modules", Value::Array(Vec::new())),
    ]))
}

type Options<'c> = (Option<(&'c [u8], &'c [u8])>, Option<&'c [u8]>);

fn options<'c>(call: &Call<'c>) -> Result<Options<'c>, Error> {
    let (mut login, mut name, mut at) = (None, None, 2);
    while let Some(option) = call.request.arg(at) {
        let after = call.len() - at - 1;
        if option.eq_ignore_ascii_case(b"AUTH") && after >= 2 {
            login = Some((call.arg(at + 1), call.arg(at + 2)));
            at += 3;
        } else if option.eq_ignore_ascii_case(b"SETNAME") && after >= 1 {
            name = Some(call.arg(at + 1));
            at += 2;
        } else {
            return Err(Error::redis_about("Syntax error in HELLO option '{}'", option));
        }
    }
    Ok((login, name))
}
