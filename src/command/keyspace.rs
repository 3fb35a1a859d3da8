//! What a Redis client may ask about keys, answered for tags: `GET`, `MGET`, `STRLEN`, `EXISTS`, `TYPE`, `TTL`, `PTTL`,
//! `SCAN`, `KEYS`, `DBSIZE`, and `IDTAG LIST`. Nothing here draws an id or creates a tag: tools ask such things unasked.

use std::sync::Arc;

use super::number::{redis_integer, value};
use super::session::{Call, Session};
use super::{Context, Error};
use crate::glob::{MAX_PATTERN_LEN, glob};
use crate::ids::TagName;
use crate::resp::Value;
use crate::router::Entry;

/// How many tags one step of a scan looks at when the client does not say.
const DEFAULT_COUNT: usize = 10;

/// The most tags one step of a scan looks at.
const MAX_COUNT: usize = 10_000;

fn known(context: &Context, tag: &[u8]) -> Option<Arc<Entry>> {
    context.router.find(tag).filter(|entry| !entry.retired())
}

fn last_issued(context: &Context, tag: &[u8]) -> Option<u64> {
    context.router.find(tag).and_then(|entry| entry.last_issued())
}

fn last_value(context: &Context, tag: &[u8]) -> Value {
    last_issued(context, tag).map_or(Value::Null, |id| Value::bulk(id.to_string()))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn get(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(last_value(call.context, call.arg(1)))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn mget(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(call.rest(1).map(|tag| last_value(call.context, tag)).collect()))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn strlen(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(value(last_issued(call.context, call.arg(1)).map_or(0, |id| u64::from(id.ilog10()) + 1)))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn exists(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(value(call.rest(1).filter(|tag| known(call.context, tag).is_some()).count() as u64))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn kind(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Simple(if known(call.context, call.arg(1)).is_some() { "string" } else { "none" }.into()))
}

/// -1: it never expires; -2: it is not there.
#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn ttl(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Integer(if known(call.context, call.arg(1)).is_some() { -1 } else { -2 }))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn dbsize(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(value(call.context.router.len() as u64))
}

/// What the options of a scan ask for.
struct Wanted<'c> {
    cursor: u64,
    pattern: Option<&'c [u8]>,
    count: usize,
    /// Whether tags are of the type that is asked for.
    strings: bool,
}

impl Wanted<'_> {
    fn step(&self, context: &Context) -> Value {
        let (next, tags) = context.router.scan(self.cursor, self.count);
        let shown =
            |tag: &TagName| self.strings && self.pattern.is_none_or(|pattern| glob(pattern, tag.as_str().as_bytes()));
        let tags = tags.iter().filter(|tag| shown(tag)).map(|tag| Value::bulk(tag.as_str())).collect();
        Value::Array(vec![Value::bulk(next.to_string()), Value::Array(tags)])
    }
}

pub(super) fn scan(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(wanted(call, cursor(call.arg(1))?, false)?.step(call.context))
}

pub(super) fn idtag_list(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(wanted(call, 0, true)?.step(call.context))
}

fn cursor(text: &[u8]) -> Result<u64, Error> {
    let number = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    number.and_then(|text| text.parse().ok()).ok_or_else(|| Error::redis("invalid cursor"))
}

fn pattern(text: &[u8]) -> Result<&[u8], Error> {
    let long = || Error::redis("pattern is longer than any tag");
    Some(text).filter(|text| text.len() <= MAX_PATTERN_LEN).ok_or_else(long)
}

/// Reads the options, which begin behind the cursor or the subcommand. Only `IDTAG LIST` has the cursor among them, and
/// only `SCAN` has types.
fn wanted<'c>(call: &Call<'c>, start: u64, list: bool) -> Result<Wanted<'c>, Error> {
    let mut wanted = Wanted { cursor: start, pattern: None, count: DEFAULT_COUNT, strings: true };
    let options: Vec<&[u8]> = call.rest(2).collect();
    let unexpected = |near: &[u8]| if list { Error::unexpected(call.spec, near) } else { Error::syntax() };
    let pairs = options.chunks_exact(2);
    if let [alone, ..] = pairs.remainder() {
        return Err(unexpected(alone));
    }
    for pair in pairs {
        let [name, sent] = pair else { continue };
        match name.to_ascii_uppercase().as_slice() {
            b"MATCH" => wanted.pattern = Some(pattern(sent)?),
            b"COUNT" => {
                let count = usize::try_from(redis_integer(sent)?).ok().filter(|&count| count > 0);
                let bad = || if list { Error::bad_option("COUNT", "1 or more") } else { Error::syntax() };
                wanted.count = count.ok_or_else(bad)?.min(MAX_COUNT);
            }
            b"CURSOR" if list => wanted.cursor = cursor(sent)?,
            b"TYPE" if !list => wanted.strings = sent.eq_ignore_ascii_case(b"string"),
            _ => return Err(unexpected(name)),
        }
    }
    Ok(wanted)
}

/// The most bytes of tags that KEYS gives at once: far below what a connection may have unsent.
const MAX_KEYS_BYTES: usize = 4 * 1024 * 1024;

pub(super) fn keys(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let pattern = pattern(call.arg(1))?;
    let mut found = Vec::new();
    let (mut cursor, mut bytes) = (0, 0);
    loop {
        let (next, tags) = call.context.router.scan(cursor, MAX_COUNT);
        for tag in tags.iter().filter(|tag| glob(pattern, tag.as_str().as_bytes())) {
            bytes += tag.as_str().len();
            found.push(Value::bulk(tag.as_str()));
        }
        if bytes > MAX_KEYS_BYTES {
            return Err(Error::too_much("KEYS", "use SCAN, which gives some at a time"));
        }
        cursor = next;
        if cursor == 0 {
            return Ok(Value::Array(found));
        }
    }
}
