//! The request scanner: bounded, resumable, without an allocation a command.
//!
//! Guaranteed: the requests and the error of a stream depend on its bytes and the limits alone, never on how reads cut
//! it; each byte is looked at a constant number of times; no memory is reserved for what has not arrived. How: the
//! scanner keeps where the request's next element begins and how far it has looked for a line end, and reads an element
//! again only from its `$`, at most some twenty bytes. Positions count from the front of the request, so that ignored
//! lines before it can be dropped at once. Rejected: the two bytes behind an argument may be anything in Redis; here
//! they are a line end or the length before them was wrong, since going on would read arguments as commands.

use super::inline::{Words, is_http};
use super::{Limits, ProtocolError, Rules};

/// The largest number of arguments for which the error names the login and not the number.
const MAX_ANNOUNCED_ARGS: u64 = i32::MAX as u64;

/// The longest argument, in bytes, for which the error names the login and not the length.
const MAX_ANNOUNCED_BULK: u64 = 512 * 1024 * 1024;

/// Spans and bytes kept for the next request while a connection waits for one; more is given back.
const KEPT_SPANS: usize = 64;
const KEPT_BYTES: usize = 1024;

/// Where an argument stands: its first byte and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// `None` when a position is above `u32::MAX`.
    pub(super) fn new(start: usize, len: usize) -> Option<Self> {
        Some(Self { start: u32::try_from(start).ok()?, len: u32::try_from(len).ok()? })
    }

    /// The bytes the span marks in `data`.
    pub(super) fn of(self, data: &[u8]) -> Option<&[u8]> {
        let start = self.start as usize;
        data.get(start..start.checked_add(self.len as usize)?)
    }
}

/// What the bytes of a read buffer hold.
#[derive(Debug)]
pub enum Scan<'a> {
    /// A whole request.
    Request(Request<'a>),
    /// No whole request yet: read more bytes and ask again.
    Incomplete,
}

/// One request: a name and arguments, as spans of the read buffer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    raw: &'a [u8],
    data: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Request<'a> {
    /// The command's name as it was sent, in any case.
    #[inline]
    pub fn name(&self) -> &'a [u8] {
        self.arg(0).unwrap_or_default()
    }

    /// How many arguments there are, the name among them: at least 1.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a request has at least its name")]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The argument at `index`, the name being 0.
    #[inline]
    pub fn arg(&self, index: usize) -> Option<&'a [u8]> {
        self.spans.get(index)?.of(self.data)
    }

    /// All arguments, the name first.
    pub fn args(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let data = self.data;
        self.spans.iter().filter_map(move |span| span.of(data))
    }

    /// The request's own bytes as they were sent.
    #[inline]
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// How many bytes [`Self::raw`] has.
    #[inline]
    pub fn raw_len(&self) -> usize {
        self.raw.len()
    }
}

/// What stands at the front of the buffer, between two requests.
enum Opening {
    /// An array begins; its elements are to be read.
    Array,
    /// A whole inline request of so many bytes.
    Inline(usize),
    /// So many bytes that ask for nothing.
    Ignored(usize),
    Incomplete,
}

/// Reads requests from the front of a buffer; one for each connection.
///
/// ```
/// use idgen::resp::{Limits, Scan, Scanner};
///
/// let (buffer, mut cursor, mut scanner) = (b"PING\r\n*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n*1\r\n$4\r\nPI", 0, Scanner::new());
/// let mut names = Vec::new();
/// loop {
///     let scan = scanner.next(&buffer[cursor..], &Limits::AFTER_LOGIN)?;
///     let more = if let Scan::Request(request) = scan { names.push(request.name()[0]); true } else { false };
///     cursor += scanner.consumed();
///     if !more { break }
/// }
/// assert_eq!((names, &buffer[cursor..]), (vec![b'P', b'E'], &b"*1\r\n$4\r\nPI"[..]));
/// # Ok::<(), idgen::resp::ProtocolError>(())
/// ```
#[derive(Debug, Default)]
pub struct Scanner {
    /// Where the element to read next begins; from the front of the request.
    at: usize,
    /// Elements still to be read; 0 between two requests.
    missing: usize,
    /// Up to where the end of the current line has been looked for; from the front of the request.
    looked: usize,
    /// Bytes at the front of the last buffer that are done with.
    consumed: usize,
    spans: Vec<Span>,
    words: Words,
    rules: Rules,
}

impl Scanner {
    /// A scanner at the beginning of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A scanner that works by `rules`.
    #[must_use]
    pub fn with_rules(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// How many bytes at the front of the buffer last given to [`Self::next`] are done with, the request it returned
    /// among them. The next buffer has to begin behind these; it may have moved, and have grown at its end.
    #[inline]
    #[must_use]
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Bytes of memory the scanner holds: at most twice what [`Limits`] let one request need.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.words.bytes.capacity()
    }

    /// Looks for a request at the front of `buf`: all bytes read so far behind those that are [consumed](Self::consumed).
    ///
    /// # Errors
    /// When the bytes break the protocol or the limits. The connection has to be closed then; the scanner stays in front
    /// of what is wrong and would give the same error again.
    #[inline]
    pub fn next<'a>(&'a mut self, buf: &'a [u8], limits: &Limits) -> Result<Scan<'a>, ProtocolError> {
        self.consumed = 0;
        let mut buf = buf;
        if self.missing == 0 {
            self.spans.clear();
            loop {
                match self.open(buf, limits)? {
                    Opening::Array => break,
                    Opening::Inline(len) => {
                        self.consumed += len;
                        self.looked = 0;
                        let raw = buf.get(..len).unwrap_or_default();
                        return Ok(Scan::Request(Request { raw, data: &self.words.bytes, spans: &self.spans }));
                    }
                    Opening::Ignored(len) => {
                        self.consumed += len;
                        self.looked = 0;
                        buf = buf.get(len..).unwrap_or_default();
                    }
                    Opening::Incomplete => {
                        self.give_back();
                        return Ok(Scan::Incomplete);
                    }
                }
            }
        }
        if !self.elements(buf, limits)? {
            return Ok(Scan::Incomplete);
        }
        let len = self.at;
        self.consumed += len;
        self.looked = 0;
        let raw = buf.get(..len).unwrap_or_default();
        Ok(Scan::Request(Request { raw, data: raw, spans: &self.spans }))
    }

    /// Reads what begins at the front of `buf`, between two requests.
    #[inline]
    fn open(&mut self, buf: &[u8], limits: &Limits) -> Result<Opening, ProtocolError> {
        if let [b'*', digit @ b'1'..=b'9', b'\r', b'\n', ..] = *buf {
            let count = usize::from(digit - b'0');
            if count <= limits.max_args {
                self.at = 4;
                self.missing = count;
                return Ok(Opening::Array);
            }
        }
        self.open_any(buf, limits)
    }

    /// The same without haste.
    #[cold]
    #[inline(never)]
    fn open_any(&mut self, buf: &[u8], limits: &Limits) -> Result<Opening, ProtocolError> {
        match buf {
            [] | [0x16] => Ok(Opening::Incomplete),
            [b'*', ..] => self.open_array(buf, limits),
            [0x16, 0x03, ..] => Err(ProtocolError::Tls),
            _ => self.open_inline(buf, limits),
        }
    }

    fn open_array(&mut self, buf: &[u8], limits: &Limits) -> Result<Opening, ProtocolError> {
        let end = limits.max_inline.saturating_add(1);
        let Some((line, next)) = self.line(buf, 1, end, ProtocolError::TooBigMbulkCount)? else {
            return Ok(Opening::Incomplete);
        };
        let count = line.and_then(number).ok_or(ProtocolError::InvalidMultibulkLength)?;
        let Ok(count) = u64::try_from(count) else { return Ok(Opening::Ignored(next)) };
        if count == 0 {
            return Ok(Opening::Ignored(next));
        }
        if count > MAX_ANNOUNCED_ARGS {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        match usize::try_from(count) {
            Ok(count) if count <= limits.max_args => {
                self.at = next;
                self.missing = count;
                Ok(Opening::Array)
            }
            _ => Err(too_many_args(limits)),
        }
    }

    fn open_inline(&mut self, buf: &[u8], limits: &Limits) -> Result<Opening, ProtocolError> {
        let window = buf.get(..limits.max_inline.saturating_add(1)).unwrap_or(buf);
        let unseen = window.get(self.looked..).unwrap_or_default();
        let Some(offset) = unseen.iter().position(|&byte| byte == b'\n') else {
            if buf.len() > limits.max_inline {
                return Err(ProtocolError::TooBigInline);
            }
            self.looked = buf.len();
            return Ok(Opening::Incomplete);
        };
        let end = self.looked + offset;
        let line = window.get(..end).unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.words.split(line, &mut self.spans, limits)?;
        if self.spans.is_empty() {
            return Ok(Opening::Ignored(end + 1));
        }
        if is_http(self.spans.iter().filter_map(|span| span.of(&self.words.bytes))) {
            return Err(ProtocolError::CrossProtocol);
        }
        Ok(Opening::Inline(end + 1))
    }

    /// Reads the elements still missing; false when they are not all there.
    #[inline]
    fn elements(&mut self, buf: &[u8], limits: &Limits) -> Result<bool, ProtocolError> {
        let (mut at, mut missing) = (self.at, self.missing);
        let outcome = loop {
            if missing == 0 {
                break Ok(true);
            }
            match self.element(buf, at, limits) {
                Ok(Some(next)) => {
                    at = next;
                    missing -= 1;
                }
                Ok(None) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        self.at = at;
        self.missing = missing;
        outcome
    }

    /// Reads the element at `at` and returns where the next one begins; `None` when it is not all there.
    #[inline]
    fn element(&mut self, buf: &[u8], at: usize, limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let tail = buf.get(at..).unwrap_or_default();
        let (len, head) = match *tail {
            [b'$', ones @ b'0'..=b'9', b'\r', b'\n', ..] => (usize::from(ones - b'0'), 4),
            [b'$', tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', ..] => {
                (usize::from(tens - b'0') * 10 + usize::from(ones - b'0'), 5)
            }
            _ => match self.bulk_length(buf, at, limits)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        // No sum here can overflow: `at` and `head` are within a slice, and `len` is at most 2^29.
        if len > limits.max_bulk {
            let header_fits = at + head <= limits.max_total;
            return Err(if header_fits { too_long_bulk(limits) } else { ProtocolError::TooBigRequest });
        }
        let whole = head + len + 2;
        if at + whole > limits.max_total {
            return Err(ProtocolError::TooBigRequest);
        }
        let Some(element) = tail.get(..whole) else { return Ok(None) };
        if !element.ends_with(b"\r\n") {
            return Err(ProtocolError::InvalidBulkLength);
        }
        self.spans.push(Span::new(at + head, len).ok_or(ProtocolError::TooBigRequest)?);
        Ok(Some(at + whole))
    }

    /// The length of the bulk string at `at` and the bytes in front of its content; `None` when they are not there.
    #[cold]
    #[inline(never)]
    fn bulk_length(&mut self, buf: &[u8], at: usize, limits: &Limits) -> Result<Option<(usize, usize)>, ProtocolError> {
        match buf.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&other) => return Err(ProtocolError::ExpectedBulk(other)),
        }
        let from = at + 1;
        let end = from.saturating_add(limits.max_inline);
        let (end, unending) = if end <= limits.max_total {
            (end, ProtocolError::TooBigBulkCount)
        } else {
            (limits.max_total, ProtocolError::TooBigRequest)
        };
        let Some((line, next)) = self.line(buf, from, end, unending)? else { return Ok(None) };
        let len = line.and_then(number).and_then(|len| u64::try_from(len).ok());
        let len = len.filter(|&len| len <= MAX_ANNOUNCED_BULK).ok_or(ProtocolError::InvalidBulkLength)?;
        let len = usize::try_from(len).map_err(|_| ProtocolError::InvalidBulkLength)?;
        if self.rules.trust_bulk_length {
            self.words.bytes.reserve(len);
        }
        Ok(Some((len, next - at)))
    }

    /// The line that begins at `from` and the position behind it. The line is `None` when its carriage return is not
    /// followed by a line feed. No carriage return before `end` is the error `unending`.
    #[expect(clippy::type_complexity, reason = "not there yet, or a line that may be broken, with its end")]
    fn line<'b>(
        &mut self,
        buf: &'b [u8],
        from: usize,
        end: usize,
        unending: ProtocolError,
    ) -> Result<Option<(Option<&'b [u8]>, usize)>, ProtocolError> {
        let window = buf.get(..end).unwrap_or(buf);
        let unseen_from = self.looked.max(from);
        let unseen = window.get(unseen_from..).unwrap_or_default();
        let Some(offset) = unseen.iter().position(|&byte| byte == b'\r') else {
            if buf.len() >= end {
                return Err(unending);
            }
            self.looked = window.len();
            return Ok(None);
        };
        let stop = unseen_from + offset;
        self.looked = stop;
        let line = window.get(from..stop);
        Ok(buf.get(stop + 1).map(|&byte| (line.filter(|_| byte == b'\n'), stop + 2)))
    }

    /// Gives back what an unusually large request has made the scanner hold, before the connection waits.
    fn give_back(&mut self) {
        if self.spans.capacity() > KEPT_SPANS {
            self.spans.shrink_to(KEPT_SPANS);
        }
        if self.words.bytes.capacity() > KEPT_BYTES {
            self.words.bytes = Vec::new();
        }
    }
}

/// The error for more arguments than the limits allow.
pub(super) const fn too_many_args(limits: &Limits) -> ProtocolError {
    if limits.authenticated {
        ProtocolError::InvalidMultibulkLength
    } else {
        ProtocolError::UnauthenticatedMultibulkLength
    }
}

/// The error for a longer argument than the limits allow.
pub(super) const fn too_long_bulk(limits: &Limits) -> ProtocolError {
    if limits.authenticated { ProtocolError::InvalidBulkLength } else { ProtocolError::UnauthenticatedBulkLength }
}

/// A decimal number as Redis writes it: no sign but `-`, no leading zero, no blank.
fn number(digits: &[u8]) -> Option<i64> {
    let (negative, magnitude) = match digits {
        b"0" => return Some(0),
        [b'-', rest @ ..] => (true, rest),
        _ => (false, digits),
    };
    if !matches!(magnitude, [b'1'..=b'9', ..]) {
        return None;
    }
    magnitude.iter().try_fold(0_i64, |value, &digit| {
        let digit = i64::from(digit.checked_sub(b'0').filter(|&digit| digit <= 9)?);
        let value = value.checked_mul(10)?;
        if negative { value.checked_sub(digit) } else { value.checked_add(digit) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_redis_reads_them() {
        let cases =
            [("0", 0), ("7", 7), ("-7", -7), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)];
        for (text, value) in cases {
            assert_eq!(number(text.as_bytes()), Some(value));
        }
        for text in
            ["", "-", "-0", "00", "01", "-01", "+1", " 1", "1 ", "1a", "9223372036854775808", "-9223372036854775809"]
        {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_line_is_never_looked_through_twice() {
        for start in ["a", "*1", "*1\r\n$1"] {
            let mut scanner = Scanner::new();
            let mut stream = start.as_bytes().to_vec();
            for _ in 0..1000 {
                assert!(matches!(scanner.next(&stream, &Limits::AFTER_LOGIN), Ok(Scan::Incomplete)));
                // A line end put where the scanner has been is not found: it doesn't go there again.
                if let Some(seen) = stream.get_mut(start.len()..) {
                    seen.fill(if start == "a" { b'\n' } else { b'\r' });
                }
                stream.push(b'1');
            }
        }
    }

    #[test]
    fn an_argument_is_never_read_twice() {
        let mut scanner = Scanner::new();
        let stream = [&b"*3\r\n"[..], &b"$1000\r\n"[..], &[b'x'; 1000], b"\r\n$5\r\norder\r\n$"].concat();
        let mut seen = std::collections::BTreeSet::new();
        for len in 0..=stream.len() {
            assert!(matches!(scanner.next(&stream[..len], &Limits::AFTER_LOGIN), Ok(Scan::Incomplete)));
            seen.insert((scanner.at, scanner.missing));
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(0, 0), (4, 3), (1013, 2), (1024, 1)]);
    }
}
