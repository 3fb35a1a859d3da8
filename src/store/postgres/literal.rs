//! Values as they stand in the text of a statement.
//!
//! Statements go as text, without parameters: only then are they one message, which a pooler that shares connections
//! between transactions can't tear apart. Guaranteed: what stands here can't end the literal it is in, whatever the
//! server's settings for backslashes are, because nothing but digits, hexadecimal digits and letters known to be harmless
//! is ever written between quotes. Rejected: escaping, which depends on such settings.

use std::fmt::Write as _;

/// An expression for a text. Plain where every byte is harmless, so that people can read their slow-statement logs.
pub(super) fn text(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'\'' | b'"' | b'\\' | b'`' | b'$' | b';');
    if value.bytes().all(plain) {
        format!("'{value}'")
    } else {
        format!("convert_from(decode('{}', 'hex'), 'UTF8')", hex(value.as_bytes()))
    }
}

/// An expression for the 16 bytes of a nonce.
pub(super) fn nonce(value: u128) -> String {
    format!("decode('{value:032x}', 'hex')")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn harmless_texts_stay_readable() {
        assert_eq!(text("{team}.order:2026"), "'{team}.order:2026'");
        assert_eq!(text(""), "''");
        assert_eq!(text("a'; DROP TABLE id_alloc --"), {
            "convert_from(decode('61273b2044524f50205441424c452069645f616c6c6f63202d2d', 'hex'), 'UTF8')"
        });
        assert_eq!(nonce(0xab), "decode('000000000000000000000000000000ab', 'hex')");
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_literal(value in any::<String>()) {
            let written = text(&value);
            let inside = if written.starts_with('\'') {
                prop_assert_eq!(written.trim_matches('\''), &value);
                written.trim_matches('\'').to_owned()
            } else {
                written.split('\'').nth(1).expect("hexadecimal digits").to_owned()
            };
            prop_assert!(!inside.contains(['\'', '\\', '$']));
            let quotes = written.bytes().filter(|byte| *byte == b'\'').count();
            prop_assert!(quotes == 2 || quotes == 6, "{}", written);
        }
    }
}
