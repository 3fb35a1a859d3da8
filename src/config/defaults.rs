//! The defaults with their documentation: `config/idgen.yaml`, embedded.
//!
//! The file is the manual, what `default-config` prints, and the list of known keys. That its values are those of the
//! rooms' `Config`s, and that it has each of their keys, is held by tests; so the text is written once, for people.

use std::sync::LazyLock;

use config::{File, FileFormat, Source, Value, ValueKind};

/// The file as text.
pub const TEXT: &str = include_str!("../../config/idgen.yaml");

/// One key of the configuration.
#[derive(Clone, Debug)]
pub struct Key {
    /// `section.key`
    pub name: String,
    /// What it is, its unit, bounds and default, in one line.
    pub doc: String,
    /// The default as the file writes it.
    pub text: String,
    /// The default.
    pub value: Value,
}

static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| read(TEXT));

/// All keys, in the order of the file.
pub fn keys() -> &'static [Key] {
    &KEYS
}

/// The key `name`.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The key that `name` was most likely meant to be.
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let name = name.as_str();
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let distance = |key: &Key| {
        // A right key in the wrong section is nearer than any other.
        let whole = edits(name, &key.name);
        if last(name) == last(&key.name) { whole.min(1) } else { whole }
    };
    let (distance, key) = KEYS.iter().map(|key| (distance(key), key)).min_by_key(|(distance, _)| *distance)?;
    (distance <= name.len() / 2).then_some(key.name.as_str())
}

/// How many letters must be put in, taken out or changed to make `to` of `from`.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut next = vec![i + 1];
        for ((b, above), corner) in to.bytes().zip(row.iter().skip(1)).zip(&row) {
            let left = next.last().copied().unwrap_or_default();
            next.push((corner + usize::from(a != b)).min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

/// Reads the lines of `text`: sections at the margin, keys two spaces in, each under its comment.
fn read(text: &str) -> Vec<Key> {
    let values = File::from_str(text, FileFormat::Yaml).collect().unwrap_or_default();
    let (mut keys, mut section, mut doc) = (Vec::new(), String::new(), String::new());
    for line in text.lines() {
        let words = line.trim_start();
        if let Some(comment) = words.strip_prefix('#') {
            doc = format!("{doc} {}", comment.trim());
        } else if let Some((name, value)) = words.split_once(':') {
            if line.starts_with("  ") {
                keys.push(Key {
                    name: format!("{section}.{name}"),
                    doc: doc.trim().to_owned(),
                    text: value.trim().to_owned(),
                    value: lookup(&values, &section, name),
                });
            } else {
                name.clone_into(&mut section);
            }
            doc.clear();
        } else {
            doc.clear();
        }
    }
    keys
}

fn lookup(values: &config::Map<String, Value>, section: &str, name: &str) -> Value {
    match values.get(section).map(|value| &value.kind) {
        Some(ValueKind::Table(table)) => table.get(name).cloned().unwrap_or_default(),
        _ => Value::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_the_file_is_documented_and_names_its_default() {
        assert!(keys().len() >= 30, "{} keys", keys().len());
        for key in keys() {
            assert!(key.doc.len() > 20, "{} has no documentation", key.name);
            assert!(key.doc.contains("Default"), "{}: the documentation doesn't name the default", key.name);
            let plain = key.text.trim_matches('"');
            let told = plain.starts_with("[ {") || key.doc.contains(&format!("Default {plain}")) || plain.is_empty();
            assert!(told, "{}: the documentation names another default than {}", key.name, key.text);
            assert_ne!(key.value.kind, ValueKind::Nil, "{} has no value", key.name);
        }
    }

    #[test]
    fn the_nearest_key_is_found() {
        assert_eq!(nearest("server.adress"), Some("server.addr"));
        assert_eq!(nearest("server.max_step"), Some("segment.max_step"));
        assert_eq!(nearest("SERVER.ADDR"), Some("server.addr"));
        assert_eq!(nearest("zzz.qqqqqqqqq"), None);
    }
}
