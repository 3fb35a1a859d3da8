//! `CLIENT …`: this connection and the others.
//!
//! Tracking is accepted where a client can't do without (`ON OPTIN`, with which nothing is cached until the client asks),
//! and refused where it would make somebody keep the value of a tag, which changes with every id.

use std::sync::Arc;

use super::idinfo::map;
use super::number::{integer, redis_integer, value};
use super::ping::OK;
use super::session::{Call, Replies, Session};
use super::{Client, Error};
use crate::resp::Value;

/// The longest name or library of a connection, in bytes.
const MAX_LABEL_LEN: usize = 128;

/// A name as `CLIENT SETNAME` and `HELLO` take it.
pub(super) fn name(sent: &[u8]) -> Result<String, Error> {
    label(sent).ok_or_else(|| Error::redis("Client names cannot contain spaces, newlines or special characters."))
}

fn label(sent: &[u8]) -> Option<String> {
    let plain = sent.len() <= MAX_LABEL_LEN && sent.iter().all(u8::is_ascii_graphic);
    std::str::from_utf8(sent).ok().filter(|_| plain).map(str::to_owned)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn id(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(value(session.client.id))
}

pub(super) fn setname(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    session.client.profile().name = name(call.arg(2))?;
    Ok(OK)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn getname(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    let name = session.client.profile().name.clone();
    Ok(if name.is_empty() { Value::Null } else { Value::bulk(name) })
}

pub(super) fn setinfo(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let attribute = call.arg(2);
    let sent = label(call.arg(3));
    let bad = |name| Error::redis_about("{} cannot contain spaces, newlines or special characters.", name);
    let mut profile = session.client.profile();
    if attribute.eq_ignore_ascii_case(b"LIB-NAME") {
        profile.library = sent.ok_or_else(|| bad(b"lib-name"))?;
    } else if attribute.eq_ignore_ascii_case(b"LIB-VER") {
        profile.library_version = sent.ok_or_else(|| bad(b"lib-ver"))?;
    } else {
        return Err(Error::redis_about("Unrecognized option '{}'", attribute));
    }
    Ok(OK)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn info(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    session.publish();
    Ok(Value::bulk(session.client.line(call.context.clock.boot()) + "\n"))
}

/// The most bytes of a list of connections: about 16 000 of them.
const MAX_LIST_BYTES: usize = 6 * 1024 * 1024;

pub(super) fn list(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    session.publish();
    let mut clients = call.context.clients.all();
    match (call.len(), call.arg(2).to_ascii_uppercase().as_slice()) {
        (2, _) => {}
        (4, b"TYPE") => {
            let kind = Kind::of(call.arg(3))?;
            clients.retain(|client| kind.is(client));
        }
        (4.., b"ID") => {
            let ids = call.rest(3).map(|id| integer(id).ok_or_else(|| Error::redis("Invalid client ID")));
            let ids = ids.collect::<Result<Vec<_>, _>>()?;
            clients.retain(|client| ids.iter().any(|&id| u64::try_from(id) == Ok(client.id)));
        }
        _ => return Err(Error::syntax()),
    }
    let now = call.context.clock.boot();
    let lines: String = clients.iter().map(|client| client.line(now) + "\n").collect();
    if lines.len() > MAX_LIST_BYTES {
        return Err(Error::too_much("CLIENT LIST", "name the connections with ID"));
    }
    Ok(Value::bulk(lines))
}

/// The types that Redis sorts connections into. There are no replicas and no masters here.
#[derive(Clone, Copy)]
enum Kind {
    Normal,
    Subscribed,
    Replication,
}

impl Kind {
    fn of(sent: &[u8]) -> Result<Self, Error> {
        match sent.to_ascii_lowercase().as_slice() {
            b"normal" => Ok(Self::Normal),
            b"pubsub" => Ok(Self::Subscribed),
            b"replica" | b"slave" | b"master" => Ok(Self::Replication),
            _ => Err(Error::redis_about("Unknown client type '{}'", sent)),
        }
    }

    fn is(self, client: &Client) -> bool {
        match self {
            Self::Normal => !client.subscribed(),
            Self::Subscribed => client.subscribed(),
            Self::Replication => false,
        }
    }
}

/// What `CLIENT KILL` with options looks for: connections that fit all of them.
#[derive(Default)]
struct Filter<'c> {
    id: Option<u64>,
    kind: Option<Kind>,
    user: Option<&'c [u8]>,
    addr: Option<&'c [u8]>,
    local: Option<&'c [u8]>,
    spares_itself: Option<bool>,
}

impl<'c> Filter<'c> {
    fn read(call: &Call<'c>) -> Result<Self, Error> {
        let mut filter = Self::default();
        let options: Vec<&[u8]> = call.rest(2).collect();
        let pairs = options.chunks_exact(2);
        if !pairs.remainder().is_empty() {
            return Err(Error::syntax());
        }
        for pair in pairs {
            let [name, sent] = pair else { continue };
            match name.to_ascii_uppercase().as_slice() {
                b"ID" => {
                    let id = integer(sent).and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0);
                    filter.id = Some(id.ok_or_else(|| Error::redis("client-id should be greater than 0"))?);
                }
                b"TYPE" => filter.kind = Some(Kind::of(sent)?),
                b"USER" => {
                    call.context.users.find(sent).ok_or_else(|| Error::redis_about("No such user '{}'", sent))?;
                    filter.user = Some(sent);
                }
                b"ADDR" => filter.addr = Some(sent),
                b"LADDR" => filter.local = Some(sent),
                b"SKIPME" => filter.spares_itself = Some(yes_or_no(sent)?),
                _ => return Err(Error::syntax()),
            }
        }
        Ok(filter)
    }

    fn fits(&self, client: &Client) -> bool {
        self.id.is_none_or(|id| client.id == id)
            && self.kind.is_none_or(|kind| kind.is(client))
            && self.user.is_none_or(|user| client.profile().user.as_bytes() == user)
            && self.addr.is_none_or(|addr| client.peer().as_bytes() == addr)
            && self.local.is_none_or(|local| client.local().as_bytes() == local)
    }
}

fn yes_or_no(sent: &[u8]) -> Result<bool, Error> {
    match sent.to_ascii_lowercase().as_slice() {
        b"yes" => Ok(true),
        b"no" => Ok(false),
        _ => Err(Error::syntax()),
    }
}

pub(super) fn kill(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    session.publish();
    let clients = call.context.clients.all();
    if call.len() == 3 {
        // The old form names one connection by its address, itself included.
        let victim = clients.iter().find(|client| client.peer().as_bytes() == call.arg(2));
        end(session, victim.ok_or_else(|| Error::redis("No such client"))?);
        return Ok(OK);
    }
    let filter = Filter::read(call)?;
    let spares_itself = filter.spares_itself.unwrap_or(true);
    let own = session.client.id;
    let victims: Vec<_> =
        clients.iter().filter(|client| filter.fits(client) && !(spares_itself && client.id == own)).collect();
    for victim in &victims {
        end(session, victim);
    }
    Ok(value(victims.len() as u64))
}

/// Ends a connection; one's own after the reply.
fn end(session: &mut Session, victim: &Arc<Client>) {
    if victim.id == session.client.id {
        session.closing = true;
    } else {
        victim.kill.cancel();
    }
}

pub(super) fn reply(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    session.replies = match call.arg(2).to_ascii_uppercase().as_slice() {
        b"ON" => Replies::On,
        b"OFF" => Replies::Off,
        b"SKIP" if session.replies == Replies::Off => Replies::Off,
        b"SKIP" => Replies::SkipNext,
        _ => return Err(Error::syntax()),
    };
    Ok(OK)
}

/// No command here blocks a connection, so none is ever woken.
pub(super) fn unblock(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    redis_integer(call.arg(2))?;
    let how = call.arg(3);
    let known = how.eq_ignore_ascii_case(b"TIMEOUT") || how.eq_ignore_ascii_case(b"ERROR");
    match call.len() {
        3 => Ok(Value::Integer(0)),
        4 if known => Ok(Value::Integer(0)),
        4 => Err(Error::redis("CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
        _ => Err(Error::syntax()),
    }
}

pub(super) fn on_or_off(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let sent = call.arg(2);
    let known = sent.eq_ignore_ascii_case(b"ON") || sent.eq_ignore_ascii_case(b"OFF");
    if known { Ok(OK) } else { Err(Error::syntax()) }
}

pub(super) fn tracking(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let options: Vec<Vec<u8>> = call.rest(3).map(<[u8]>::to_ascii_uppercase).collect();
    let has = |name: &[u8]| options.iter().any(|option| option == name);
    session.tracking = match call.arg(2).to_ascii_uppercase().as_slice() {
        b"OFF" if options.is_empty() => false,
        b"ON" if options.iter().all(|option| matches!(option.as_slice(), b"OPTIN" | b"NOLOOP")) && has(b"OPTIN") => {
            true
        }
        b"ON" => return Err(Error::no_tracking()),
        _ => return Err(Error::syntax()),
    };
    Ok(OK)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn trackinginfo(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    let flags: &[&str] = if session.tracking { &["on", "optin"] } else { &["off"] };
    Ok(map(vec![
        ("flags", Value::Set(flags.iter().map(Value::bulk).collect())),
        ("redirect", redirect(session)),
        ("prefixes", Value::Array(Vec::new())),
    ]))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn getredir(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(redirect(session))
}

const fn redirect(session: &Session) -> Value {
    Value::Integer(if session.tracking { 0 } else { -1 })
}

pub(super) fn caching(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    match (yes_or_no(call.arg(2))?, session.tracking) {
        (true, true) => Err(Error::no_tracking()),
        (false, true) => Err(Error::redis("CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.")),
        (_, false) => Err(Error::redis(
            "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled",
        )),
    }
}

/// A client says what it can do; what the server has no use for is ignored, as it is meant to be.
#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn capa(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(OK)
}
