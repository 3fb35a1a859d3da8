//! Numbers as clients write them.

use super::Error;
use crate::resp::Value;

/// A decimal integer as Redis accepts it: no blanks, no plus sign, no leading zeros, no `-0`.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !canonical || text.len() > 20 {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The same, where Redis has a text for anything else.
pub(super) fn redis_integer(text: &[u8]) -> Result<i64, Error> {
    integer(text).ok_or_else(Error::not_an_integer)
}

/// A number of ids from 1 to `most`.
pub(super) fn count(text: &[u8], most: u64) -> Result<u64, Error> {
    match integer(text).and_then(|number| u64::try_from(number).ok()) {
        Some(number) if number > most => Err(Error::too_many_ids(most)),
        Some(number) if number > 0 => Ok(number),
        _ => Err(Error::bad_count(most)),
    }
}

/// A number in a reply; ids and counters here are all below 2^63.
pub(super) fn value(number: u64) -> Value {
    Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_strictly_as_redis_reads_them() {
        let good =
            [("0", 0), ("7", 7), ("-7", -7), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)];
        for (text, expected) in good {
            assert_eq!(integer(text.as_bytes()), Some(expected), "{text}");
        }
        let bad = ["", "-", "+1", "01", "-0", "00", " 1", "1 ", "1.0", "1e3", "0x1", "abc", "9223372036854775808", "١"];
        for text in bad {
            assert_eq!(integer(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_count_is_from_one_to_the_limit() {
        assert_eq!((count(b"1", 10), count(b"10", 10)), (Ok(1), Ok(10)));
        for bad in ["0", "-1", "abc", "", "9223372036854775808"] {
            assert_eq!(count(bad.as_bytes(), 10), Err(Error::bad_count(10)), "{bad}");
        }
        for many in ["11", "9223372036854775807"] {
            assert_eq!(count(many.as_bytes(), 10), Err(Error::too_many_ids(10)), "{many}");
        }
    }
}
