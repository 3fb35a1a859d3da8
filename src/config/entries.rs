//! What is wrong with single entries of a list, such as the declared tags.
//!
//! Each entry is tried alone, and of one that can't be used each key alone, so that a long list is not mended problem by
//! problem. The deserializer's words name types of the program; here they become those of the file.

use config::{Map, Value, ValueKind};

use super::Sections;
use super::layers::{Setting, is_secret, sections, show};

/// The entries of `setting`, a list with `items`, that can be used, and what is wrong with the others, one text a problem.
pub fn sort(setting: &Setting, items: &[Value]) -> (Vec<Value>, Vec<String>) {
    let (mut usable, mut texts) = (Vec::new(), Vec::new());
    for (number, item) in (1..).zip(items) {
        let Some(error) = refusal(setting, item.clone()) else {
            usable.push(item.clone());
            continue;
        };
        let place = match name(item) {
            Some(name) => format!("entry {number} ({name})"),
            None => format!("entry {number}"),
        };
        texts.extend(troubles(setting, item, &error).into_iter().map(|text| format!("{place}: {text}")));
    }
    (usable, texts)
}

/// What the section says to a list of this one item.
fn refusal(setting: &Setting, item: Value) -> Option<String> {
    let alone = Setting { value: Value::from(vec![item]), ..setting.clone() };
    let error = sections([&alone]).try_deserialize::<Sections>().err()?.to_string();
    Some(error.split(" for key `").next().unwrap_or_default().to_owned())
}

/// What people know the entry by.
fn name(item: &Value) -> Option<String> {
    let ValueKind::Table(table) = &item.kind else { return None };
    let named = ["tag", "match", "name"].iter().find_map(|key| table.get(*key))?;
    matches!(named.kind, ValueKind::String(_)).then(|| show(named))
}

fn troubles(setting: &Setting, item: &Value, error: &str) -> Vec<String> {
    let shown = |value: &Value| if is_secret(&setting.key) { "the value".to_owned() } else { show(value) };
    let ValueKind::Table(table) = &item.kind else {
        return vec![format!("{} is not a group of keys, such as {}", shown(item), example(&setting.key))];
    };
    let mut keys: Vec<_> = table.iter().collect();
    keys.sort_by_key(|(key, _)| *key);
    let one = |(key, value): (&String, &Value)| {
        let alone = Map::from_iter([(key.clone(), value.clone())]);
        let error = refusal(setting, Value::from(alone))?;
        missing(&error).is_none().then(|| in_words(key, &shown(value), &error))
    };
    let mut texts: Vec<String> = keys.into_iter().filter_map(one).collect();
    if let Some(key) = missing(error) {
        texts.push(format!("{key} is missing"));
    }
    if texts.is_empty() {
        texts.push("it can't be used".to_owned());
    }
    texts
}

/// The key whose absence is the `error`.
fn missing(error: &str) -> Option<&str> {
    let name = error.strip_prefix("missing field ").or(error.strip_prefix("missing configuration field "))?;
    name.trim_matches(['`', '"']).rsplit(['.', ']']).next()
}

/// The deserializer's `error` about the value of `key`.
fn in_words(key: &str, shown: &str, error: &str) -> String {
    if error.starts_with("unknown field") {
        let known: Vec<_> = error.split('`').skip(3).step_by(2).collect();
        return format!("{key} is no key of it; there are {}", known.join(", "));
    }
    let wanted = error.split("expected ").nth(1).unwrap_or_default();
    let wanted = [
        ("sequence", "a list"),
        ("string", "a text"),
        ("bool", "true or false"),
        ("integer", "a whole number of 1 or more"),
        ("u64", "a whole number of 1 or more"),
    ]
    .iter()
    .find(|(word, _)| wanted.contains(word))
    .map(|(_, wanted)| *wanted);
    match wanted {
        Some(wanted) => format!("{key}: {shown} is not {wanted}"),
        None => format!("{key}: {shown} is none of the values it may have"),
    }
}

/// An entry of the list `key`.
fn example(key: &str) -> &'static str {
    match key {
        "tags.rules" => "{ match: \"orders.*\", engine: segment }",
        "tags.declared" => "{ tag: order, engine: segment }",
        _ => "{ name: shop, token_sha256: [\"…\"], acl: \"+@read\" }",
    }
}
