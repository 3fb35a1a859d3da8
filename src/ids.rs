//! Ids, ranges of ids and the names they are counted under.
//!
//! An id is an integer in `1 ..= 2^63 - 1`: positive in every language that has a signed 64-bit integer. Inside the
//! program runs of ids are half-open ranges; they become single integers only where a reply is written.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The largest id: the largest value of a signed 64-bit integer.
pub const MAX_ID: u64 = i64::MAX as u64;

/// The longest tag, in bytes.
pub const MAX_TAG_LEN: usize = 128;

/// A run of consecutive ids, half-open: `start` is in it, `end` is not. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IdRange {
    start: u64,
    end: u64,
}

impl IdRange {
    /// The ids `start .. end`; `None` when that is empty, contains 0 or reaches beyond [`MAX_ID`].
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if start == 0 || start >= end || end > MAX_ID + 1 { None } else { Some(Self { start, end }) }
    }

    /// The first id of the range.
    #[must_use]
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The id after the last one of the range, at most 2^63.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// The last id of the range.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.end - 1
    }

    /// How many ids the range holds, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// The first `n` ids and what is left behind them. `n` of 0 or above [`Self::len`] gives one side only.
    #[must_use]
    pub const fn split(self, n: u64) -> (Option<Self>, Option<Self>) {
        let cut = if n >= self.len() { self.end } else { self.start + n };
        (Self::new(self.start, cut), Self::new(cut, self.end))
    }
}

/// Appends `range` to `ranges`, joined with the last one where they touch, so that few runs are written.
pub fn push_range(ranges: &mut Vec<IdRange>, range: IdRange) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// How many ids `ranges` hold.
#[must_use]
pub fn total(ranges: &[IdRange]) -> u64 {
    ranges.iter().map(|range| range.len()).sum()
}

/// The name under which a caller's ids are counted: 1 to 128 bytes of printable ASCII without space, quotes and
/// backslash, case-sensitive. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TagName(Arc<str>);

impl TagName {
    /// Checks the bytes of a tag; `None` when they break the rule above.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > MAX_TAG_LEN || !bytes.iter().all(|&byte| is_tag_byte(byte)) {
            return None;
        }
        std::str::from_utf8(bytes).ok().map(|text| Self(Arc::from(text)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether `byte` may stand in a tag.
#[must_use]
pub const fn is_tag_byte(byte: u8) -> bool {
    byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\')
}

impl AsRef<str> for TagName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

// As its bytes hash: a map of names is looked up with the bytes of a request.
impl Hash for TagName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_bytes().hash(state);
    }
}

impl fmt::Display for TagName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<[u8]> for TagName {
    fn borrow(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// One start of one process: a random 128-bit number. It owns worker ids and marks grants; a host name never does.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u128);

impl Incarnation {
    /// A fresh random incarnation.
    ///
    /// # Errors
    /// When the operating system has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        random_u128().map(Self)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// 128 random bits of the operating system.
///
/// # Errors
/// When the operating system has no randomness to give.
pub fn random_u128() -> Result<u128, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_never_empty_and_never_leaves_the_id_space() {
        assert_eq!(IdRange::new(0, 5), None);
        assert_eq!(IdRange::new(5, 5), None);
        assert_eq!(IdRange::new(6, 5), None);
        assert_eq!(IdRange::new(1, MAX_ID + 2), None);
        let whole = IdRange::new(1, MAX_ID + 1).expect("the whole id space");
        assert_eq!((whole.last(), whole.len()), (MAX_ID, MAX_ID));
    }

    #[test]
    fn split_keeps_every_id_once() {
        let range = IdRange::new(10, 20).expect("ten ids");
        for n in 0..12 {
            let (head, tail) = range.split(n);
            let mut joined = Vec::new();
            for part in [head, tail].into_iter().flatten() {
                push_range(&mut joined, part);
            }
            assert_eq!(joined, [range], "split at {n}");
            assert_eq!(head.map_or(0, IdRange::len), n.min(10));
        }
    }

    #[test]
    fn a_name_is_found_by_its_bytes() {
        let order = TagName::new(b"order").expect("valid");
        let names = std::collections::HashSet::from([order.clone()]);
        assert_eq!(names.get(b"order".as_slice()), Some(&order));
    }

    #[test]
    fn a_tag_is_short_printable_ascii_without_quotes() {
        for good in ["order", "a", "{team}.order:2026", &"x".repeat(128)] {
            assert_eq!(TagName::new(good.as_bytes()).expect("valid").as_str(), good);
        }
        let long = "x".repeat(129);
        for bad in ["", "a b", "a\n", "a\"", "it's", "a\\b", "\u{e9}", "\u{7f}", &long] {
            assert_eq!(TagName::new(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
