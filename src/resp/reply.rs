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

/// The smallest number of one digit more than the place in the table, up to 20 digits.
const POWERS_OF_TEN: [u64; 20] = {
    let mut powers = [1; 20];
    let mut place = 1;
    while place < powers.len() {
        powers[place] = powers[place - 1] * 10;
        place += 1;
    }
    powers
};

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
    in_place(out, |slot| Line::of_id(slot, form, id).len);
}

/// Writes the ids `start .. end`, each as an element of its own: the elements of an array, or the replies to that many
/// requests. The caller bounds how many there are; each takes at most 27 bytes.
pub fn ids(out: &mut Vec<u8>, form: IdForm, start: u64, end: u64) {
    let mut next = start;
    while next < end {
        if end - next == 1 {
            return id(out, form, next);
        }
        // Ids with the same number of digits have lines of the same length.
        let longer = POWERS_OF_TEN.get(digits(next)).copied().unwrap_or(u64::MAX);
        let stop = longer.min(end);
        same_length(out, form, next, stop);
        next = stop;
    }
}

/// Writes the ids `start .. end`, which all have the same number of digits.
fn same_length(out: &mut Vec<u8>, form: IdForm, start: u64, end: u64) {
    let mut line = [0; SLOT];
    let len = Line::of_id(&mut line, form, start).len;
    let last = len.saturating_sub(3);
    let mut left = usize::try_from(end - start).unwrap_or(usize::MAX);
    let old_len = out.len();
    let new_len = old_len.saturating_add(left.saturating_mul(len));
    out.resize(new_len.saturating_add(SLOT), 0);
    let mut rest = out.get_mut(old_len..).unwrap_or_default();
    while left > 0 {
        let first_digit = line.get(last).copied().unwrap_or(b'9');
        for digit in (first_digit..=b'9').take(left) {
            let Some(slot) = rest.first_chunk_mut::<SLOT>() else { break };
            *slot = line;
            if let Some(byte) = slot.get_mut(last) {
                *byte = digit;
            }
            rest = rest.get_mut(len..).unwrap_or_default();
        }
        left = left.saturating_sub(usize::from(b'9'.saturating_sub(first_digit)) + 1);
        next_decade(&mut line, last);
    }
    out.truncate(new_len);
}

/// The start of an element, being written: a number with what stands around it.
struct Line<'a> {
    slot: &'a mut [u8; SLOT],
    len: usize,
}

impl<'a> Line<'a> {
    /// A type byte, a number and a line end.
    #[inline]
    fn of_number(slot: &'a mut [u8; SLOT], kind: u8, negative: bool, magnitude: u64) -> Self {
        let mut line = Self { slot, len: 0 };
        line.push([kind]);
        if negative {
            line.push(*b"-");
        }
        line.push_number(magnitude);
        line.push(*b"\r\n");
        line
    }

    #[inline]
    fn of_id(slot: &'a mut [u8; SLOT], form: IdForm, id: u64) -> Self {
        match form {
            IdForm::Integer => Self::of_number(slot, b':', false, id),
            IdForm::Bulk => {
                let mut line = Self::of_number(slot, b'$', false, digits(id) as u64);
                line.push_number(id);
                line.push(*b"\r\n");
                line
            }
        }
    }

    #[inline]
    fn push<const N: usize>(&mut self, part: [u8; N]) {
        self.put(self.len, part);
        self.len += N;
    }

    #[inline]
    fn put<const N: usize>(&mut self, place: usize, part: [u8; N]) {
        if let Some(space) = self.slot.get_mut(place..).and_then(|rest| rest.first_chunk_mut()) {
            *space = part;
        }
    }

    /// From the last digit to the first. Four digits a division: only these wait for each other.
    #[inline]
    fn push_number(&mut self, mut value: u64) {
        let first = self.len;
        self.len += digits(value);
        let mut place = self.len;
        while value >= 10_000 {
            place -= 4;
            let four = value % 10_000;
            value /= 10_000;
            self.put(place, [digit(four / 1000), digit(four / 100), digit(four / 10), digit(four)]);
        }
        while place > first {
            place -= 1;
            self.put(place, [digit(value)]);
            value /= 10;
        }
    }
}

/// Lends `write` a slot at the end of `out` and keeps as much of it as it says. Written in place: bytes put together
/// elsewhere would have to be loaded again before they have been stored.
#[inline]
fn in_place(out: &mut Vec<u8>, write: impl FnOnce(&mut [u8; SLOT]) -> usize) {
    let start = out.len();
    out.extend_from_slice(&[0; SLOT]);
    let len = out.get_mut(start..).and_then(|slot| slot.first_chunk_mut()).map_or(0, write);
    out.truncate(start + len);
}

/// Sets the digit of `line` at `last` to 0 and carries one to the digits in front of it. There is always a digit to
/// take it, or the line is not used again: lines that get longer are written anew.
fn next_decade(line: &mut [u8; SLOT], last: usize) {
    let Some((digit, front)) = line.get_mut(..=last).and_then(|line| line.split_last_mut()) else { return };
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

/// How many decimal digits `value` has.
#[inline]
fn digits(value: u64) -> usize {
    value.checked_ilog10().unwrap_or(0) as usize + 1
}

/// The last digit of `value`.
#[inline]
const fn digit(value: u64) -> u8 {
    b'0' + (value % 10) as u8
}

/// Writes a type byte, a number and a line end.
#[inline]
pub(super) fn header(out: &mut Vec<u8>, kind: u8, magnitude: u64, negative: bool) {
    in_place(out, |slot| Line::of_number(slot, kind, negative, magnitude).len);
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
