//! The merged configuration for people: YAML that loads again, with the origin of each value beside it.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::defaults;
use super::layers::{Origin, Setting, is_secret, show};

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
        let (value, origin) = match values.get(&key.name) {
            Some(setting) => (shown(&key.name, setting), setting.origin.clone()),
            None => (key.text.clone(), Origin::Default),
        };
        let line = format!("  {name}: {value}");
        let _ = writeln!(text, "{line:<ORIGIN_COLUMN$} # {origin}");
    }
    text
}

fn shown(key: &str, setting: &Setting) -> String {
    let text = show(&setting.value);
    match key {
        // A DSN is a secret only as far as it holds a password.
        "database.dsn" if !text.contains('@') => text,
        _ if is_secret(key) => "\"***\"".to_owned(),
        _ => text,
    }
}
