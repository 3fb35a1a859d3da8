//! The layers of the configuration, from weakest to strongest: file, environment, flags.
//!
//! Each layer gives settings: a key, a value and where the value comes from, so that every complaint can name the place
//! to change. A value is checked by itself against its section before layers are merged; thereby a bad value in a weak
//! layer is told even when a stronger one hides it.

use std::fmt;
use std::path::{Path, PathBuf};

use config::{File, FileFormat, Map, Source, Value, ValueKind};

use super::defaults::{self, Key};
use super::place::Environment;
use super::{Problem, Sections};

/// The file that is read when nobody names one, if it exists.
pub const DEFAULT_FILE: &str = "/etc/idgen/idgen.yaml";

/// The most bytes a configuration file may have: far above any real one, so that a wrong path is told at once.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What every variable of the environment that sets a key begins with.
const PREFIX: &str = "IDGEN__";

/// Keys whose values may hold a secret: never shown, and also to be had from a file named by the key with `_file`.
const SECRETS: [&str; 2] = ["database.dsn", "auth.users"];

/// What a file holds: sections by name.
type Tree = Map<String, Value>;

/// Where the configuration is taken from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The file that the command line names.
    pub file: Option<PathBuf>,
    /// The file that is read when neither the command line nor `IDGEN_CONFIG` names one; it need not exist.
    pub default_file: PathBuf,
    /// The environment.
    pub environment: Environment,
    /// Keys and values of flags, with the flag's name; later ones win.
    pub flags: Vec<(String, String, String)>,
}

impl Default for Sources {
    fn default() -> Self {
        Self { file: None, default_file: DEFAULT_FILE.into(), environment: Environment::default(), flags: Vec::new() }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A configuration file.
    File(PathBuf),
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
    /// The file that the setting in the second place names.
    Secret(PathBuf, Box<Origin>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Secret(path, by) => write!(f, "file {}, named by {by}", path.display()),
        }
    }
}

/// One value of one layer.
#[derive(Clone, Debug)]
pub struct Setting {
    /// `section.key`
    pub key: String,
    /// The value.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
}

/// What all layers together hold.
#[derive(Debug, Default)]
pub struct Layers {
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// The settings that can be used, weakest first.
    pub settings: Vec<Setting>,
    /// What is wrong with the others.
    pub problems: Vec<Problem>,
}

/// Whether the value of `key` is a secret.
pub fn is_secret(key: &str) -> bool {
    SECRETS.contains(&key)
}

/// All settings of `sources`, and every problem of each.
pub fn read(sources: &Sources) -> Layers {
    let (mut layers, mut settings) = (Layers::default(), Vec::new());
    match file(sources) {
        Ok(Some((path, sections))) => {
            from_file(&path, sections, &mut settings, &mut layers.problems);
            layers.file = Some(path);
        }
        Ok(None) => {}
        Err(problem) => layers.problems.push(problem),
    }
    let mut texts: Vec<_> = sources.environment.iter().filter_map(variable).collect();
    texts.extend(sources.flags.iter().map(|(flag, key, text)| (key.clone(), text.clone(), Origin::Flag(flag.clone()))));
    for (key, text, origin) in texts {
        match from_text(key, &text, origin) {
            Ok(setting) => settings.push(setting),
            Err(problem) => layers.problems.push(*problem),
        }
    }
    for setting in settings {
        match resolve(setting).and_then(|setting| check(&setting).map(|()| setting)) {
            Ok(setting) => layers.settings.push(setting),
            Err(problem) => layers.problems.push(*problem),
        }
    }
    layers
}

/// The setting that a variable or a flag makes of `text`.
fn from_text(key: String, text: &str, origin: Origin) -> Result<Setting, Box<Problem>> {
    if matches!(origin, Origin::Flag(_)) && is_secret(&key) && has_password(text) {
        let variable = format!("{PREFIX}{}", key.to_uppercase().replace('.', "__"));
        let text = "a password on the command line can be read by every user of the machine";
        let problem = Problem::new(&key, text).fix(format!("use {variable}, a configuration file or {key}_file"));
        return Err(Box::new(problem.set_by(origin)));
    }
    match typed(&key, text) {
        Ok(value) => Ok(Setting { key, value, origin }),
        Err(text) => Err(Box::new(Problem::new(&key, text).set_by(origin))),
    }
}

/// The key and text of a variable `IDGEN__SECTION__KEY`; `None` for all others, such as the `IDGEN_PORT=tcp://…` that
/// Kubernetes makes for a service of that name.
fn variable((name, text): (&str, &str)) -> Option<(String, String, Origin)> {
    let key = name.strip_prefix(PREFIX)?.to_lowercase().replace("__", ".");
    Some((key, text.to_owned(), Origin::Variable(name.to_owned())))
}

fn has_password(text: &str) -> bool {
    text.contains('@')
}

/// The configuration file and its sections; `None` when there is none and none was named.
fn file(sources: &Sources) -> Result<Option<(PathBuf, Tree)>, Problem> {
    let variable = sources.environment.get("IDGEN_CONFIG").map(PathBuf::from);
    let (path, origin) = match (&sources.file, variable) {
        (Some(path), _) => (path.clone(), Origin::Flag("--config".into())),
        (None, Some(path)) => (path, Origin::Variable("IDGEN_CONFIG".into())),
        (None, None) if sources.default_file.exists() => (sources.default_file.clone(), Origin::Default),
        (None, None) => return Ok(None),
    };
    let shown = path.display();
    let problem = |text: String, fix: &str| Problem::new("configuration file", text).set_by(origin.clone()).fix(fix);
    let text = match bounded(&path) {
        Ok(text) => text,
        Err(error) => {
            return Err(problem(format!("{shown} can't be read: {error}"), "name a file that this user can read"));
        }
    };
    let format = match path.extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml" | "json") => FileFormat::Yaml,
        Some("toml") => FileFormat::Toml,
        _ => {
            return Err(problem(
                format!("{shown} is neither YAML nor TOML by its name"),
                "let the name end in .yaml or .toml",
            ));
        }
    };
    match File::from_str(&text, format).collect() {
        Ok(sections) => Ok(Some((path, sections))),
        Err(error) => {
            Err(problem(format!("{shown}: {error}"), "`idgen default-config` prints a complete file to start from"))
        }
    }
}

fn bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(std::io::Error::other("it is a folder"));
    }
    if file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)? as u64 > MAX_FILE_BYTES {
        return Err(std::io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    Ok(text)
}

fn from_file(path: &Path, sections: Tree, settings: &mut Vec<Setting>, problems: &mut Vec<Problem>) {
    let origin = Origin::File(path.to_owned());
    let mut sections: Vec<_> = sections.into_iter().collect();
    sections.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (section, value) in sections {
        match value.kind {
            ValueKind::Table(keys) => settings.extend(keys.into_iter().map(|(key, value)| Setting {
                key: format!("{section}.{key}"),
                value,
                origin: origin.clone(),
            })),
            // A section with all its keys commented out.
            ValueKind::Nil if defaults::keys().iter().any(|key| key.name.starts_with(&format!("{section}."))) => {}
            _ => problems.push(unknown(&section, origin.clone())),
        }
    }
}

/// `text` as a value of the kind that `key` has.
fn typed(key: &str, text: &str) -> Result<Value, String> {
    let list =
        key == "etcd.endpoints" || defaults::find(key).is_some_and(|key| matches!(key.value.kind, ValueKind::Array(_)));
    if !list {
        return Ok(Value::from(text));
    }
    // A list of lines with dashes is what a file of its own holds most naturally.
    if let '[' | '-' = text.trim_start().chars().next().unwrap_or_default() {
        let indented = text.replace('\n', "\n ");
        let parsed = File::from_str(&format!("list:\n {indented}\n"), FileFormat::Yaml).collect();
        let parsed = parsed.map_err(|error| redacted(&error.to_string()))?.remove("list");
        return parsed.ok_or_else(|| "not a YAML list".to_owned());
    }
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    Ok(Value::from(items.map(Value::from).collect::<Vec<_>>()))
}

/// Replaces `…_file` of a secret by what the file holds.
fn resolve(setting: Setting) -> Result<Setting, Box<Problem>> {
    let Some(key) = setting.key.strip_suffix("_file").filter(|key| is_secret(key)) else { return Ok(setting) };
    let path = PathBuf::from(setting.value.clone().into_string().unwrap_or_default());
    let fail = |text: String| {
        let problem = Problem::new(&setting.key, format!("{}: {text}", path.display())).set_by(setting.origin.clone());
        Box::new(problem.fix("name a file that this user can read"))
    };
    let text = bounded(&path).map_err(|error| fail(error.to_string()))?;
    let value = typed(key, text.trim_end()).map_err(fail)?;
    Ok(Setting { key: key.to_owned(), value, origin: Origin::Secret(path.clone(), Box::new(setting.origin.clone())) })
}

/// Whether the key is known and the value is one its section takes.
fn check(setting: &Setting) -> Result<(), Box<Problem>> {
    // The section is only known so far as to say why it can't be had.
    if setting.key == "etcd.endpoints" {
        return Ok(());
    }
    let Some(key) = defaults::find(&setting.key) else {
        return Err(Box::new(unknown(&setting.key, setting.origin.clone())));
    };
    let shown = || if is_secret(&key.name) { "the value".to_owned() } else { show(&setting.value) };
    let problem = |text: String| Box::new(Problem::new(&key.name, text).set_by(setting.origin.clone()).fix(&*key.doc));
    if let Some(expected) = misfit(key, &setting.value.kind) {
        return Err(problem(format!("{} is not {expected}", shown())));
    }
    let told = sections([setting]).try_deserialize::<Sections>().err().map(|error| reason(key, &shown(), &error));
    match told {
        None => Ok(()),
        Some(text) if is_secret(&key.name) => Err(problem(redacted(&text))),
        Some(text) => Err(problem(text)),
    }
}

/// `text` without what stands in quotes, where a part of a secret might be.
fn redacted(text: &str) -> String {
    let parts = text.split('"').enumerate().map(|(at, part)| if at % 2 == 0 { part } else { "\"***\"" });
    parts.collect()
}

/// What is wrong with a value in a person's words; `error` is the deserializer's.
fn reason(key: &Key, shown: &str, error: &config::ConfigError) -> String {
    let text = error.to_string();
    let text = text.split(" for key `").next().unwrap_or_default();
    if is_duration(&key.text) {
        return format!(
            "{shown} is not a duration with a unit, such as {}: {text}",
            if key.text == "0s" { "10s" } else { &key.text }
        );
    }
    if text.starts_with("enum ") {
        return format!("{shown} is none of the values it may have");
    }
    format!("{shown} can't be used: {text}")
}

/// What the key expects, where a value of `kind` isn't it.
fn misfit(key: &Key, kind: &ValueKind) -> Option<&'static str> {
    let whole = |text: &String| text.trim().parse::<i128>().is_ok();
    let (fits, expected) = match &key.value.kind {
        ValueKind::Boolean(_) => {
            let word = |text: &String| matches!(text.to_lowercase().as_str(), "true" | "false");
            (
                matches!(kind, ValueKind::Boolean(_)) || matches!(kind, ValueKind::String(text) if word(text)),
                "true or false",
            )
        }
        ValueKind::I64(_) => {
            let integer = matches!(kind, ValueKind::I64(_) | ValueKind::U64(_));
            (integer || matches!(kind, ValueKind::String(text) if whole(text)), "a whole number")
        }
        ValueKind::Float(_) => {
            let number = matches!(kind, ValueKind::Float(_) | ValueKind::I64(_));
            (number || matches!(kind, ValueKind::String(text) if text.parse::<f64>().is_ok()), "a number")
        }
        ValueKind::Array(_) => (matches!(kind, ValueKind::Array(_)), "a list"),
        _ => {
            let duration = is_duration(&key.text);
            let text = matches!(kind, ValueKind::String(_)) || (!duration && matches!(kind, ValueKind::I64(_)));
            (text, if duration { "a duration with a unit, such as 10s" } else { "a text" })
        }
    };
    (!fits).then_some(expected)
}

fn is_duration(text: &str) -> bool {
    humantime::parse_duration(text).is_ok()
}

fn unknown(name: &str, origin: Origin) -> Problem {
    let problem = Problem::new(name, "unknown key").set_by(origin);
    match defaults::nearest(name) {
        Some(nearest) => problem.fix(format!("did you mean {nearest}?")),
        None => problem.fix("`idgen default-config` lists all keys"),
    }
}

/// The tree of sections that `settings` make; later ones win.
pub fn sections<'a>(settings: impl IntoIterator<Item = &'a Setting>) -> Value {
    let mut tree: Map<String, Map<String, Value>> = Map::new();
    for setting in settings {
        if let Some((section, key)) = setting.key.split_once('.') {
            tree.entry(section.to_owned()).or_default().insert(key.to_owned(), setting.value.clone());
        }
    }
    Value::from(tree)
}

/// `value` with every token's digest left out.
pub fn masked(value: &Value) -> Value {
    let mut copy = value.clone();
    match &mut copy.kind {
        ValueKind::Array(items) => items.iter_mut().for_each(|item| *item = masked(item)),
        ValueKind::Table(table) => {
            for (key, item) in table {
                *item = if key == "token_sha256" { Value::from(vec!["***"]) } else { masked(item) };
            }
        }
        _ => {}
    }
    copy
}

/// A value as YAML on one line.
pub fn show(value: &Value) -> String {
    match &value.kind {
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::String(text) => format!("{text:?}"),
        ValueKind::Array(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", ")),
        ValueKind::Table(table) => {
            let mut pairs: Vec<_> = table.iter().map(|(key, value)| format!("{key}: {}", show(value))).collect();
            pairs.sort();
            format!("{{ {} }}", pairs.join(", "))
        }
        other => other.to_string(),
    }
}
