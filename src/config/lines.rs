//! In which line of a file a key stands.
//!
//! The readers of YAML and TOML don't tell. The lines are looked through for sections at the margin and their keys one level
//! in, as files are written by hand; for any other shape there is no answer rather than a wrong one.

/// The line, from 1, of `key` in `section`, or of the section itself.
pub fn find(text: &str, section: &str, key: Option<&str>) -> Option<usize> {
    let (mut inside, mut level) = (false, None);
    for (number, line) in (1..).zip(text.lines()) {
        let words = line.trim();
        if words.is_empty() || words.starts_with('#') {
            continue;
        }
        let margin = line.len() - line.trim_start().len();
        let header = words.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let assigned = |name| follows(words, name, '=');
        if let Some(header) = header
            && margin == 0
        {
            (inside, level) = (header.trim() == section, Some(0));
        } else if margin == 0 && words.contains(':') && !(inside && key.is_some_and(assigned)) {
            (inside, level) = (follows(words, section, ':'), None);
            // A whole section on one line.
            if inside && words.contains('{') && words.ends_with('}') {
                return Some(number);
            }
        } else if inside
            && margin == *level.get_or_insert(margin)
            && key.is_some_and(|key| follows(words, key, ':') || assigned(key))
        {
            return Some(number);
        }
        if inside && key.is_none() {
            return Some(number);
        }
    }
    None
}

/// Whether `words` begin with `name` and then `sign`.
fn follows(words: &str, name: &str, sign: char) -> bool {
    words.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_both_languages() {
        let yaml = "# addr:\nserver:\n  # c\n  addr: a:1\n  max_count: 5\nadmin:\n  addr: b\nlog: { level: info }\n";
        assert_eq!(find(yaml, "server", None), Some(2));
        assert_eq!(find(yaml, "server", Some("addr")), Some(4));
        assert_eq!(find(yaml, "admin", Some("addr")), Some(7));
        assert_eq!(find(yaml, "log", Some("level")), Some(8));
        let toml = "[server]\naddr = \"a:1\"\n\n[admin]\naddr = \"b:1\"\n";
        assert_eq!(find(toml, "server", Some("addr")), Some(2));
        assert_eq!(find(toml, "admin", Some("addr")), Some(5));
    }

    #[test]
    fn what_is_not_clearly_a_key_has_no_line() {
        assert_eq!(find("server:\n  unix_socket: |\n    addr: x\n", "server", Some("addr")), None);
        assert_eq!(find("{\"server\": {\"addr\": \"a\"}}", "server", Some("addr")), None);
        assert_eq!(find("server: {\n  addr: a\n}\n", "admin", Some("addr")), None);
    }
}
