//! Inline requests: a line of words, as people type it and as some clients send their very first command.
//!
//! Guaranteed: the same words Redis reads, never more bytes than the line has, never more words than the limits allow.
//! How: words are copied into the scanner's own bytes, since quoting changes them; each becomes a span of these.

use super::request::Span;
use super::{Limits, ProtocolError};

/// The words of one line, reused from line to line.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// The unquoted bytes of all words, one behind the other.
    pub(super) bytes: Vec<u8>,
}

/// How the word being read is quoted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quoting {
    Plain,
    Single,
    Double,
}

impl Words {
    /// Splits `line` (without its line end) into `spans` of `self.bytes`, both emptied first.
    pub(super) fn split(&mut self, line: &[u8], spans: &mut Vec<Span>, limits: &Limits) -> Result<(), ProtocolError> {
        self.bytes.clear();
        spans.clear();
        let mut rest = line;
        loop {
            while let [first, tail @ ..] = rest
                && is_space(*first)
            {
                rest = tail;
            }
            if rest.is_empty() {
                return Ok(());
            }
            let start = self.bytes.len();
            rest = self.word(rest)?;
            let len = self.bytes.len() - start;
            if spans.len() >= limits.max_args {
                return Err(super::request::too_many_args(limits));
            }
            if len > limits.max_bulk {
                return Err(super::request::too_long_bulk(limits));
            }
            spans.push(Span::new(start, len).ok_or(ProtocolError::TooBigInline)?);
        }
    }

    /// Appends the word at the front of `rest` and returns what follows it.
    fn word<'l>(&mut self, mut rest: &'l [u8]) -> Result<&'l [u8], ProtocolError> {
        let mut quoting = Quoting::Plain;
        loop {
            rest = match (quoting, rest) {
                (Quoting::Plain, [] | [b' ' | b'\t' | b'\r' | b'\n', ..]) => return Ok(rest),
                (_, []) => return Err(ProtocolError::UnbalancedQuotes),
                (Quoting::Plain, [b'"', tail @ ..]) => {
                    quoting = Quoting::Double;
                    tail
                }
                (Quoting::Plain, [b'\'', tail @ ..]) => {
                    quoting = Quoting::Single;
                    tail
                }
                (Quoting::Double, [b'"', tail @ ..]) | (Quoting::Single, [b'\'', tail @ ..]) => {
                    // A closing quote ends its word: what touches it would be ambiguous.
                    return if tail.first().is_none_or(|&byte| is_space(byte)) {
                        Ok(tail)
                    } else {
                        Err(ProtocolError::UnbalancedQuotes)
                    };
                }
                (Quoting::Double, [b'\\', escaped @ ..]) => self.escape(escaped)?,
                (Quoting::Single, [b'\\', b'\'', tail @ ..]) => {
                    self.bytes.push(b'\'');
                    tail
                }
                (_, [byte, tail @ ..]) => {
                    self.bytes.push(*byte);
                    tail
                }
            };
        }
    }

    /// Appends what the escape behind a backslash stands for and returns what follows it.
    fn escape<'l>(&mut self, escaped: &'l [u8]) -> Result<&'l [u8], ProtocolError> {
        if let [b'x', high, low, tail @ ..] = escaped
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            self.bytes.push(high << 4 | low);
            return Ok(tail);
        }
        let Some((&letter, tail)) = escaped.split_first() else { return Err(ProtocolError::UnbalancedQuotes) };
        self.bytes.push(match letter {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 0x08,
            b'a' => 0x07,
            other => other,
        });
        Ok(tail)
    }
}

/// Whether the words look like the first line or a header of an HTTP request: a web page can make a browser send one
/// here, with commands in its body.
pub(super) fn is_http(mut words: impl Iterator<Item = impl AsRef<[u8]>>) -> bool {
    let Some(name) = words.next() else { return false };
    if name.as_ref().eq_ignore_ascii_case(b"POST") || name.as_ref().eq_ignore_ascii_case(b"Host:") {
        return true;
    }
    let (Some(target), Some(version), None) = (words.next(), words.next(), words.next()) else { return false };
    matches!(target.as_ref(), [b'/' | b'*', ..]) && version.as_ref().starts_with(b"HTTP/")
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

const fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let (mut words, mut spans) = (Words::default(), Vec::new());
        words.split(line, &mut spans, &Limits::AFTER_LOGIN)?;
        Ok(spans.iter().map(|span| span.of(&words.bytes).expect("a span of the words").to_vec()).collect())
    }

    #[test]
    fn words_are_split_at_blanks_and_unquoted_as_redis_does() {
        let cases: [(&[u8], &[&[u8]]); 11] = [
            (b"", &[]),
            (b" \t \r ", &[]),
            (b"  PING\tx ", &[b"PING", b"x"]),
            (b"a \"b c\" d", &[b"a", b"b c", b"d"]),
            (br#"a "\n\r\t\b\a\x41\xfF\"\\\q" "#, &[b"a", b"\n\r\t\x08\x07\x41\xff\"\\q"]),
            (br"a '\n\'\\x' ''", &[b"a", br"\n'\\x", b""]),
            (b"a\"b\" c", &[b"ab", b"c"]),
            (br#""\x4" "\xzz""#, &[b"x4", b"xzz"]),
            (br"a\n", &[br"a\n"]),
            (b"a\x0bb\x00c", &[b"a\x0bb\x00c"]),
            (b"\"\"", &[b""]),
        ];
        for (line, words) in cases {
            let expected: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
            assert_eq!(split(line), Ok(expected), "{:?}", line.escape_ascii().to_string());
        }
    }

    #[test]
    fn a_quote_that_does_not_end_or_ends_within_a_word_is_refused() {
        for line in [&b"\"a"[..], b"'a", b"\"a\"b", b"'a'b", b"\"a\\\"", b"\"\\", b"a\"", b"'a\\'"] {
            assert_eq!(split(line), Err(ProtocolError::UnbalancedQuotes), "{:?}", line.escape_ascii().to_string());
        }
    }

    #[test]
    fn http_is_told_from_commands() {
        for line in ["POST / HTTP/1.1", "post x", "Host: a", "host: a", "GET /x HTTP/1.1", "PRI * HTTP/2.0", "POST"] {
            assert!(is_http(line.split(' ')), "{line}");
        }
        for line in ["GET order", "GET / ", "CLIENT SETNAME HTTP/1.1", "", "PING", "IDGET /x HTTP/1.1 STR"] {
            assert!(!is_http(line.split(' ')), "{line}");
        }
    }
}
