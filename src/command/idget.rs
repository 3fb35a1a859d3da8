//! `IDGET tag [STR] [TRACEPARENT value]` and `INCR tag`: one id.
//!
//! Requests that equal the one before them are counted, not carried out: the run is taken from the engine as one demand
//! when something else comes or the read batch ends. Each request of it succeeds or fails as if alone: ids there are go to
//! the first ones, the rest waits for more until the batch's deadline and then fails together. What the rate limits don't let
//! through is refused behind those.

use super::limits::Limits;
use super::session::{Call, Session};
use super::spec::Spec;
use super::{Batch, Context, Error, draw};
use crate::ids::total;
use crate::resp::{IdForm, ids};
use crate::router::{Demand, Entry, Shortage};

/// The options behind the tag, and the count where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) shape: IdForm,
    /// Whether the caller sent the name of a trace: such a request stands for itself.
    pub(super) traced: bool,
}

impl Form {
    pub(super) const INTEGER: Self = Self { shape: IdForm::Integer, traced: false };

    pub(super) fn of_idget(call: &Call<'_>) -> Result<Self, Error> {
        Self::read(call, 2)
    }

    /// Reads `[STR] [TRACEPARENT value]` from the argument at `from` on.
    pub(super) fn read(call: &Call<'_>, from: usize) -> Result<Self, Error> {
        let mut form = Self::INTEGER;
        let mut at = from;
        if call.arg(at).eq_ignore_ascii_case(b"STR") {
            form.shape = IdForm::Bulk;
            at += 1;
        }
        if call.len() == at + 2 && call.arg(at).eq_ignore_ascii_case(b"TRACEPARENT") {
            if !is_traceparent(call.arg(at + 1)) {
                return Err(Error::bad_traceparent(call.arg(at + 1)));
            }
            form.traced = true;
            at += 2;
        }
        if call.len() == at { Ok(form) } else { Err(Error::unexpected(call.spec, call.arg(at))) }
    }
}

/// Whether `text` names a trace as W3C Trace Context does: `00-32 hex-16 hex-2 hex`, in lower case, no id all zero.
fn is_traceparent(text: &[u8]) -> bool {
    let parts: Vec<&[u8]> = text.splitn(5, |&byte| byte == b'-').collect();
    let [version, trace, span, flags] = parts.as_slice() else { return false };
    let hex = |part: &[u8], len| part.len() == len && part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let some = |part: &[u8]| part.iter().any(|&byte| byte != b'0');
    hex(version, 2)
        && *version != b"ff"
        && hex(trace, 32)
        && some(trace)
        && hex(span, 16)
        && some(span)
        && hex(flags, 2)
}

/// Equal requests for one id each, counted and not yet answered. The tag is the session's current entry.
#[derive(Debug, Default)]
pub(super) struct Run {
    count: u64,
    /// The bytes of one of the requests; empty: nothing may join.
    raw: Vec<u8>,
    shape: IdForm,
    silent: bool,
    incr: bool,
}

/// Bytes kept for the requests of the next run; room for a longer one is given back.
const KEPT_BYTES: usize = 256;

impl Run {
    #[inline]
    pub(super) fn joins(&mut self, raw: &[u8]) -> bool {
        // While no run is in progress `raw` is empty, and no request is.
        let joins = self.raw.as_slice() == raw;
        self.count += u64::from(joins);
        joins
    }

    pub(super) const fn in_progress(&self) -> bool {
        self.count > 0
    }
}

impl Session {
    /// Begins a run with the request of `call`.
    pub(super) async fn begin_run(
        &mut self,
        call: &Call<'_>,
        form: Result<Form, Error>,
        silent: bool,
        out: &mut Vec<u8>,
    ) {
        let found = match form {
            Ok(form) => draw::find(self, call.arg(1), call.context, call.batch).await.map(|_| form),
            Err(error) => Err(error),
        };
        match found {
            Ok(form) => {
                self.run.count = 1;
                self.run.shape = form.shape;
                self.run.silent = silent;
                self.run.incr = call.spec.index() == super::table::INCR;
                // A reply that is skipped is skipped alone, and a traced request is answered alone.
                if !form.traced && !silent {
                    self.run.raw.extend_from_slice(call.request.raw());
                }
            }
            Err(error) => {
                self.count_refused(call, &error);
                error.write(out);
            }
        }
    }

    /// Answers the run in progress.
    pub(super) async fn answer_run(&mut self, context: &Context, batch: &Batch, out: &mut Vec<u8>) {
        let count = std::mem::take(&mut self.run.count);
        self.run.raw.clear();
        self.run.raw.shrink_to(KEPT_BYTES);
        let before = out.len();
        let Some(entry) = self.entry.take() else { return };
        let limits = Limits::of(self.user.as_ref(), &entry, context, batch.now);
        let (passed, limited) = limits.as_ref().map_or((count, None), |limits| limits.singles(count));
        let (left, failed) = self.draw(&entry, passed, context, batch, out).await;
        if let Some(limits) = &limits {
            limits.give_back(left);
        }
        entry.metrics().issued.add(passed - left);
        if let Some(error) = &failed {
            write_times(error, left, out);
        }
        let spec = run_spec(self.run.incr);
        if passed > 0 {
            self.count(context, spec, Some(&entry), passed, failed.as_ref().map(|error| (error, left)));
        }
        if let Some(error) = &limited {
            write_times(error, count - passed, out);
            self.ranges.clear();
            self.count(context, spec, Some(&entry), count - passed, Some((error, count - passed)));
        }
        if self.run.silent {
            out.truncate(before);
        }
        self.entry = Some(entry);
    }

    /// Draws `count` single ids and writes them; how many could not be drawn, and why.
    async fn draw(
        &mut self,
        entry: &Entry,
        count: u64,
        context: &Context,
        batch: &Batch,
        out: &mut Vec<u8>,
    ) -> (u64, Option<Error>) {
        let mut left = count;
        let mut now = batch.now;
        while left > 0 {
            self.ranges.clear();
            let answer = entry.take(Demand::Singles(left), now, &mut self.ranges);
            for range in &self.ranges {
                ids(out, self.run.shape, range.start(), range.end());
            }
            left = left.saturating_sub(total(&self.ranges));
            match answer {
                _ if left == 0 => break,
                Ok(()) => return (left, Some(Error::short_of_ids(entry.name().as_str()))),
                Err(Shortage::Refused(refusal)) => {
                    return (left, Some(Error::refused(entry.name().as_str(), &refusal)));
                }
                Err(Shortage::Later(later)) => match self.waiting.wait(later, entry, context, batch).await {
                    Err(error) => return (left, Some(error)),
                    Ok(came) => {
                        if let Some(range) = came {
                            ids(out, self.run.shape, range.start(), range.end());
                            left = left.saturating_sub(range.len());
                        }
                        now = context.clock.boot();
                    }
                },
            }
        }
        (left, None)
    }
}

fn run_spec(incr: bool) -> &'static Spec {
    let place = if incr { super::table::INCR } else { super::table::IDGET };
    &super::table::TABLE[place]
}

fn write_times(error: &Error, times: u64, out: &mut Vec<u8>) {
    let before = out.len();
    error.write(out);
    let line = out.get(before..).unwrap_or_default().to_vec();
    for _ in 1..times {
        out.extend_from_slice(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_bytes_join_a_run() {
        let mut run = Run::default();
        assert!(!run.joins(b"*2\r\n$5\r\nIDGET\r\n$1\r\na\r\n"), "no run is in progress");
        run.count = 1;
        run.raw.extend_from_slice(b"*2\r\n$5\r\nIDGET\r\n$1\r\na\r\n");
        assert!(run.joins(b"*2\r\n$5\r\nIDGET\r\n$1\r\na\r\n"));
        assert!(!run.joins(b"*2\r\n$5\r\nIDGET\r\n$1\r\nb\r\n"));
        assert!(!run.joins(b"*2\r\n$4\r\nINCR\r\n$1\r\na\r\n"));
        assert_eq!(run.count, 2);
    }

    #[test]
    fn a_traceparent_has_the_shape_of_the_standard() {
        assert!(is_traceparent(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert!(!is_traceparent(bad.as_bytes()), "{bad}");
        }
    }
}
