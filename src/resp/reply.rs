//! The replies that are written often, and the ids: straight into the connection's write buffer.
//!
//! Guaranteed: whatever text goes in, a reply is one whole RESP element; a text of one line never breaks into two.
//! How: runs of ids are decimal lines that are counted up in place. Of ten ids in a row nine differ in their last digit
//! alone, so a line is copied as a whole (a fixed number of bytes, the surplus overwritten by the next one) and that
//! digit is set in the copy; changing the line itself would make each copy wait for the byte just stored.
//! Rejected: a division for each digit, which costs twice as much.

use std::borrow::Cow;

use super::Protocol;

/// The longest text of an error or status, in bytes; what is longer is cut.
const MAX_LINE_TEXT: usize = 512;

/// Bytes copied for each id of a run. The longest line is `$20\r\n`, 20 digits and `\r\n`.
const SLOT: usize = 32;

/// The shape in which ids are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdForm {
    /// An integer reply: `:7\r\n`.
    #[default]
    Integer,
    /// A bulk string, exact where integers are floating-point numbers: `$1\r\n7\r\n`.
    Bulk,
}

/// Writes a status such as `+OK`. Control characters become spaces, and a text above 512 bytes is cut.
#[inline]
pub fn simple(out: &mut Vec<u8>, text: &str) {
    write_line(out, b'+', &one_line(text));
}

/// Writes an error. `text` is the prefix, a space and the rest; without a space it gets the prefix `ERR`. Control
/// characters become spaces, so that no text a client has sent can begin a reply of its own; above 512 bytes it is cut.
#[inline]
pub fn error(out: &mut Vec<u8>, text: &str) {
    write_line(out, b'-', &error_line(text));
}

/// Writes an integer.
#[inline]
pub fn integer(out: &mut Vec<u8>, value: i64) {
    header(out, b':', value.unsigned_abs(), value < 0);
}

/// Writes a bulk string.
#[inline]
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    header(out, b'$', bytes.len() as u64, false);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Writes the absence of a value.
#[inline]
pub fn null(out: &mut Vec<u8>, protocol: Protocol) {
    out.extend_from_slice(match protocol {
        Protocol::Resp2 => b"$-1\r\n",
        Protocol::Resp3 => b"_\r\n",
    });
}

/// Writes the head of an array; the caller writes `len` elements behind it.
#[inline]
pub fn array_header(out: &mut Vec<u8>, len: usize) {
    header(out, b'*', len as u64, false);
}

/// Writes one id.
#[inline]
pub fn id(out: &mut Vec<u8>, form: IdForm, id: u64) {
    out.extend_from_slice(Tail::of_id(form, id).bytes());
}

/// Writes the ids `start .. end`, each as an element of its own: the elements of an array, or the replies to that many
/// requests. The caller bounds how many there are; each takes at most 27 bytes.
pub fn ids(out: &mut Vec<u8>, form: IdForm, start: u64, end: u64) {
    let mut next = start;
    while next < end {
        // Ids with the same number of digits have lines of the same length.
        let longer = 10_u64.checked_pow(next.checked_ilog10().unwrap_or(0) + 1).unwrap_or(u64::MAX);
        let stop = longer.min(end);
        if stop - next == 1 {
            id(out, form, next);
        } else {
            same_length(out, Line::new(form, next), next, stop);
        }
        next = stop;
    }
}

/// Writes the lines of `start .. end`, which all have as many bytes as `line`, the one of `start`.
fn same_length(out: &mut Vec<u8>, mut line: Line, start: u64, end: u64) {
    let old_len = out.len();
    let count = usize::try_from(end - start).unwrap_or(usize::MAX);
    let new_len = old_len.saturating_add(count.saturating_mul(line.len));
    out.resize(new_len.saturating_add(SLOT), 0);
    let mut rest = out.get_mut(old_len..).unwrap_or_default();
    let last = line.len.saturating_sub(3).min(SLOT - 1);
    let mut left = count;
    while left > 0 {
        let first_digit = line.bytes.get(last).copied().unwrap_or(b'0');
        let decade = usize::from(b'9'.saturating_sub(first_digit)) + 1;
        for digit in (first_digit..=b'9').take(left) {
            let Some(slot) = rest.first_chunk_mut::<SLOT>() else { break };
            *slot = line.bytes;
            if let Some(byte) = slot.get_mut(last) {
                *byte = digit;
            }
            rest = rest.get_mut(line.len..).unwrap_or_default();
        }
        left = left.saturating_sub(decade);
        line.next_decade(last);
    }
    out.truncate(new_len);
}

/// One id as it stands on the wire, and what is behind it in the slot.
#[derive(Clone, Copy)]
struct Line {
    bytes: [u8; SLOT],
    len: usize,
}

impl Line {
    fn new(form: IdForm, id: u64) -> Self {
        let mut line = Self { bytes: [0; SLOT], len: 0 };
        let tail = Tail::of_id(form, id);
        if let Some(space) = line.bytes.get_mut(..tail.bytes().len()) {
            space.copy_from_slice(tail.bytes());
            line.len = tail.bytes().len();
        }
        line
    }

    /// Sets the digit at `last` to 0 and carries one to the digits in front of it. There is always a digit to take it,
    /// or the line is not used again: lines that get longer are built anew.
    fn next_decade(&mut self, last: usize) {
        let Some((digit, front)) = self.bytes.get_mut(..=last).and_then(|line| line.split_last_mut()) else { return };
        *digit = b'0';
        for digit in front.iter_mut().rev() {
            match *digit {
                b'9' => *digit = b'0',
                b'0'..=b'8' => {
                    *digit += 1;
                    return;
                }
                _ => return,
            }
        }
    }
}

/// The end of an element, put together from its last byte to its first.
struct Tail {
    bytes: [u8; SLOT],
    from: usize,
}

impl Tail {
    /// A type byte, a number and a line end.
    #[inline]
    fn of_number(kind: u8, negative: bool, magnitude: u64) -> Self {
        let mut tail = Self { bytes: [0; SLOT], from: SLOT };
        tail.push_pair(*b"\r\n");
        tail.push_number(magnitude);
        if negative {
            tail.push(b'-');
        }
        tail.push(kind);
        tail
    }

    #[inline]
    fn of_id(form: IdForm, id: u64) -> Self {
        match form {
            IdForm::Integer => Self::of_number(b':', false, id),
            IdForm::Bulk => {
                let mut tail = Self { bytes: [0; SLOT], from: SLOT };
                tail.push_pair(*b"\r\n");
                tail.push_number(id);
                let digits = SLOT - 2 - tail.from;
                tail.push_pair(*b"\r\n");
                tail.push_number(digits as u64);
                tail.push(b'$');
                tail
            }
        }
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        self.from = self.from.saturating_sub(1);
        if let Some(place) = self.bytes.get_mut(self.from) {
            *place = byte;
        }
    }

    #[inline]
    fn push_pair(&mut self, pair: [u8; 2]) {
        self.from = self.from.saturating_sub(2);
        if let Some(place) = self.bytes.get_mut(self.from..).and_then(|rest| rest.first_chunk_mut()) {
            *place = pair;
        }
    }

    /// Two digits a division.
    #[inline]
    fn push_number(&mut self, mut value: u64) {
        while value >= 100 {
            self.push_pair(two_digits(value % 100));
            value /= 100;
        }
        if value >= 10 {
            self.push_pair(two_digits(value));
        } else {
            self.push(digit(value));
        }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.bytes.get(self.from..).unwrap_or_default()
    }
}

#[inline]
const fn two_digits(value: u64) -> [u8; 2] {
    [digit(value / 10), digit(value)]
}

/// The last digit of `value`.
#[inline]
const fn digit(value: u64) -> u8 {
    b'0' + (value % 10) as u8
}

/// Writes a type byte, a number and a line end.
#[inline]
pub(super) fn header(out: &mut Vec<u8>, kind: u8, magnitude: u64, negative: bool) {
    out.extend_from_slice(Tail::of_number(kind, negative, magnitude).bytes());
}

fn write_line(out: &mut Vec<u8>, kind: u8, text: &str) {
    out.push(kind);
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// `text` without control characters, cut to [`MAX_LINE_TEXT`] at a character's end.
pub(super) fn one_line(text: &str) -> Cow<'_, str> {
    let text = text.get(..text.floor_char_boundary(MAX_LINE_TEXT)).unwrap_or_default();
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        text.replace(|letter: char| letter.is_ascii_control(), " ").into()
    } else {
        text.into()
    }
}

/// The same for an error, which clients split at its first space.
pub(super) fn error_line(text: &str) -> Cow<'_, str> {
    let line = one_line(text);
    if line.contains(' ') { line } else { format!("ERR {line}").into() }
}
