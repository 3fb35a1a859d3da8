//! The merged configuration for people: YAML that loads again, with the origin of each value beside it.

use std::collections::BTreeMap;
use std::fmt::Write;

use config::{Value, ValueKind};

use super::defaults::{self, Key};
use super::layers::{Origin, Setting, is_secret, masked, show};

/// The column at which origins stand where values leave room.
const ORIGIN_COLUMN: usize = 48;

pub fn yaml(values: &BTreeMap<String, Setting>) -> String {
    let (mut text, mut last) = (String::new(), "");
    for key in defaults::keys() {
        let Some((section, name)) = key.name.split_once('.') else { continue };
        if section != last {
            let _ = writeln!(text, "{}{section}:", if last.is_empty() { "" } else { "\n" });
            last = section;
        }
        let origin = values.get(&key.name).map_or(&Origin::Default, |setting| &setting.origin);
        let line = format!("  {name}: {}", value(key, values));
        let _ = writeln!(text, "{line:<ORIGIN_COLUMN$} # {origin}");
    }
    text
}

/// The value of `key` as YAML on one line; a secret as `***`.
pub fn value(key: &Key, values: &BTreeMap<String, Setting>) -> String {
    let Some(setting) = values.get(&key.name) else { return key.text.clone() };
    let text = by_kind(key, &setting.value);
    match key.name.as_str() {
        // A DSN is a secret only as far as it holds a password.
        "database.dsn" if !text.contains('@') => text,
        "auth.users" => show(&masked(&setting.value)),
        name if is_secret(name) => "\"***\"".to_owned(),
        _ => text,
    }
}

/// `value` as the defaults write one of this key: a variable and a flag give text for everything.
fn by_kind(key: &Key, value: &Value) -> String {
    let quoted = key.text.starts_with('"');
    match &value.kind {
        ValueKind::Boolean(_) | ValueKind::I64(_) | ValueKind::U64(_) | ValueKind::Float(_) if quoted => {
            format!("{:?}", value.to_string())
        }
        ValueKind::String(text) if !quoted => match key.value.kind {
            ValueKind::Boolean(_) => text.to_lowercase(),
            // Numbers and durations.
            _ => text.trim().to_owned(),
        },
        _ => show(value),
    }
}
