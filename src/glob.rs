//! Glob patterns over bytes, as Redis writes them: `*` any run, `?` one byte, `[a-z]` and `[^a-z]` one byte of a set,
//! `\` takes the next byte literally.
//!
//! Only the last star is ever tried again, so the time is bounded by the product of the two lengths. The recursive way,
//! which is exponential in the number of stars, was what CVE-2022-36021 was made of.

/// The longest pattern that is taken from a client, in bytes: as long as a tag can be.
pub const MAX_PATTERN_LEN: usize = 128;

/// Whether the whole of `text` matches `pattern`.
#[must_use]
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(&byte) = text.get(t) {
        let rest = pattern.get(p..).unwrap_or_default();
        if rest.first() == Some(&b'*') {
            star = Some((p + 1, t));
            p += 1;
            continue;
        }
        match one(rest, byte) {
            Some(used) => {
                p += used;
                t += 1;
            }
            None => match star {
                Some((after, tried)) => {
                    star = Some((after, tried + 1));
                    p = after;
                    t = tried + 1;
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|&byte| byte == b'*')
}

/// How many bytes of `pattern` the one element at its start takes, when that element matches `byte`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', literal, ..] => (*literal == byte).then_some(2),
        [b'[', set @ ..] => {
            let (matches, used) = in_set(set, byte);
            matches.then_some(used + 1)
        }
        [literal, ..] => (*literal == byte).then_some(1),
        [] => None,
    }
}

/// Whether `byte` is in the set that `set` opens with, and how many bytes the set takes. A set without an end reaches to
/// the end of the pattern, as in Redis.
fn in_set(set: &[u8], byte: u8) -> (bool, usize) {
    let negated = set.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut found = false;
    loop {
        match set.get(at..).unwrap_or_default() {
            [] => return (found != negated, at),
            [b']', ..] => return (found != negated, at + 1),
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                found |= (*from.min(to)..=*from.max(to)).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                found |= *literal == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn patterns_match_as_in_redis() {
        let cases: [(&str, &str, bool); 20] = [
            ("*", "", true),
            ("*", "order", true),
            ("order", "order", true),
            ("order", "orders", false),
            ("order.*", "order.eu", true),
            ("order.*", "order", false),
            ("*.eu", "order.eu", true),
            ("o*r*r", "order.order", true),
            ("o?der", "order", true),
            ("o?der", "oder", false),
            ("o[rst]der", "order", true),
            ("o[^rst]der", "order", false),
            ("o[a-z]der", "order", true),
            ("o[z-a]der", "order", true),
            ("o\\*r", "o*r", true),
            ("o\\*r", "oar", false),
            ("[ab", "a", true),
            ("", "", true),
            ("", "a", false),
            ("a**b", "axyb", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} over {text}");
        }
    }

    #[test]
    fn many_stars_cost_no_more_than_the_product_of_the_lengths() {
        let pattern = "*a".repeat(64);
        let text = "a".repeat(63) + &"b".repeat(10_000);
        assert!(!glob(pattern.as_bytes(), text.as_bytes()));
    }
}
