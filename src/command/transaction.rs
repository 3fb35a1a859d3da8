//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`. Requests are queued as bytes, in bounded memory, and carried out one by
//! one after `EXEC` as if they had just been read: ids are drawn then, in order, and equal requests form runs.

use super::ping::OK;
use super::session::{Call, Session};
use super::{Batch, Context, Error, Flow};
use crate::ids::MAX_TAG_LEN;
use crate::resp::{Limits, Request, Scan, Scanner, Value, array_header, bulk, null};

/// The most requests one transaction may hold: more than clients put into one pipeline.
const MAX_QUEUED: usize = 65_536;

/// The most bytes of requests one transaction may hold.
const MAX_QUEUED_BYTES: usize = 256 * 1024;

/// The most tags one connection may watch.
const MAX_WATCHED: usize = 1024;

/// The requests that were queued since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    bytes: Vec<u8>,
    count: usize,
    spoilt: bool,
}

impl Transaction {
    /// How many requests and bytes there are.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.count, self.bytes.len())
    }

    /// Notes that a request was refused: `EXEC` will carry none out.
    pub(super) fn spoil(&mut self) {
        self.spoilt = true;
        self.bytes = Vec::new();
    }

    pub(super) fn push(&mut self, request: &Request<'_>) -> Result<(), Error> {
        if self.spoilt {
            return Ok(());
        }
        if self.count >= MAX_QUEUED || self.bytes.len() + request.raw_len() > MAX_QUEUED_BYTES {
            self.spoil();
            return Err(Error::too_many_queued(MAX_QUEUED, MAX_QUEUED_BYTES));
        }
        // Inline requests become arrays as well: one way to read them back.
        array_header(&mut self.bytes, request.len());
        request.args().for_each(|arg| bulk(&mut self.bytes, arg));
        self.count += 1;
        Ok(())
    }
}

/// A tag that must not give ids until `EXEC`, and the last one it had given.
#[derive(Debug)]
pub(super) struct Watched {
    tag: Vec<u8>,
    last: Option<u64>,
}

/// What `EXEC` still has to carry out.
#[derive(Debug)]
pub(super) struct Replay {
    bytes: Vec<u8>,
    done: usize,
    /// Whether the reply to `EXEC` as a whole is not written.
    pub(super) silent: bool,
}

pub(super) fn multi(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    if session.transaction.is_some() {
        return Err(Error::redis("MULTI calls can not be nested"));
    }
    session.transaction = Some(Transaction::default());
    Ok(OK)
}

pub(super) fn discard(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    session.transaction.take().ok_or_else(|| Error::redis("DISCARD without MULTI"))?;
    session.watched.clear();
    Ok(OK)
}

pub(super) fn watch(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    if session.transaction.is_some() {
        return Err(Error::redis("WATCH inside MULTI is not allowed"));
    }
    for tag in call.rest(1) {
        if session.watched.iter().any(|watched| watched.tag == tag) {
            continue;
        }
        if tag.len() > MAX_TAG_LEN {
            return Err(Error::bad_tag());
        }
        if session.watched.len() >= MAX_WATCHED {
            return Err(Error::too_many_watched(MAX_WATCHED));
        }
        session.watched.push(Watched { tag: tag.to_vec(), last: last_issued(call.context, tag) });
    }
    Ok(OK)
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn unwatch(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    session.watched.clear();
    Ok(OK)
}

fn last_issued(context: &Context, tag: &[u8]) -> Option<u64> {
    context.router.find(tag).and_then(|entry| entry.last_issued())
}

/// Writes the head of the reply and makes the queued requests ready to be [replayed](replay).
pub(super) fn exec(session: &mut Session, call: &Call<'_>, out: &mut Vec<u8>) -> Result<Option<Value>, Error> {
    let transaction = session.transaction.take().ok_or_else(|| Error::redis("EXEC without MULTI"))?;
    let watched = std::mem::take(&mut session.watched);
    if transaction.spoilt {
        return Err(Error::exec_abort());
    }
    if watched.iter().any(|watched| last_issued(call.context, &watched.tag) != watched.last) {
        match session.protocol {
            // A missing array, unlike other missing values.
            crate::resp::Protocol::Resp2 => out.extend_from_slice(b"*-1\r\n"),
            protocol @ crate::resp::Protocol::Resp3 => null(out, protocol),
        }
        return Ok(None);
    }
    array_header(out, transaction.count);
    if transaction.count > 0 {
        session.replay = Some(Replay { bytes: transaction.bytes, done: 0, silent: false });
    }
    Ok(None)
}

/// Carries the next queued request out; `false` when there is none left.
pub(super) async fn replay(session: &mut Session, context: &Context, batch: &Batch, out: &mut Vec<u8>) -> bool {
    let Some(replay) = &mut session.replay else { return false };
    let (bytes, done) = (std::mem::take(&mut replay.bytes), replay.done);
    let mut scanner = Scanner::new();
    let next = scanner.next(bytes.get(done..).unwrap_or_default(), &Limits::AFTER_LOGIN);
    // The bytes were written by `push`; anything but a request is their end.
    let Ok(Scan::Request(request)) = next else {
        session.replay = None;
        return false;
    };
    let size = request.raw_len();
    let flow =
        if session.joins(&request) { Flow::Continue } else { session.execute(&request, context, batch, out).await };
    match &mut session.replay {
        Some(replay) if flow == Flow::Continue => {
            replay.bytes = bytes;
            replay.done = done + size;
            true
        }
        _ => {
            session.replay = None;
            false
        }
    }
}
