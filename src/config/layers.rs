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
use super::{Problem, Sections, entries, lines};

/// The file that is read when nobody names one, if it exists.
pub const DEFAULT_FILE: &str = "/etc/idgen/idgen.yaml";

/// The most bytes a configuration file may have: far above any real one, so that a wrong path is told at once.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What every variable of the environment that sets a key begins with.
const PREFIX: &str = "IDGEN__";

/// Keys whose values may hold a secret: never shown, and also to be had from a file named by the key with `_file`.
const SECRETS: [&str; 2] = ["database.dsn", "auth.users"];

/// What problems with the file as a whole are told of.
pub const FILE: &str = "configuration file";

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
    /// A configuration file, and the line where that is known.
    File(PathBuf, Option<usize>),
    /// An environment variable.
    Variable(String),
    /// A flag of the command line.
    Flag(String),
    /// The file that the setting in the second place names.
    Secret(PathBuf, Box<Origin>),
    /// The preset of this name.
    Preset(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, None) => write!(f, "file {}", path.display()),
            Self::File(path, Some(line)) => write!(f, "file {}:{line}", path.display()),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Secret(path, by) => write!(f, "file {}, named by {by}", path.display()),
            Self::Preset(name) => write!(f, "preset {name}"),
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
        Ok(Some((path, text, sections))) => {
            from_file(&path, &text, sections, &mut settings, &mut layers.problems);
            layers.file = Some(path);
        }
        Ok(None) => {}
        Err(problem) => layers.problems.push(problem),
    }
    layers.problems.extend(sources.environment.iter().filter_map(|(name, _)| misspelt(name)));
    let mut texts: Vec<_> = sources.environment.iter().filter_map(variable).collect();
    texts.extend(sources.flags.iter().map(|(flag, key, text)| (key.clone(), text.clone(), Origin::Flag(flag.clone()))));
    for (key, text, origin) in texts {
        match from_text(key, &text, origin) {
            Ok(setting) => settings.push(setting),
            Err(problem) => layers.problems.push(*problem),
        }
    }
    for setting in settings {
        match resolve(setting) {
            Ok(setting) => layers.settings.extend(check(setting, &mut layers.problems)),
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

/// What is wrong with a variable that is one underscore short of setting a key: nothing would come of it. Names that mean
/// no key are left alone.
fn misspelt(name: &str) -> Option<Problem> {
    if name.starts_with(PREFIX) {
        return None;
    }
    let flat = name.strip_prefix("IDGEN_")?.to_lowercase().replace("__", "_");
    let secrets = SECRETS.iter().map(|key| format!("{key}_file"));
    let key =
        defaults::keys().iter().map(|key| key.name.clone()).chain(secrets).find(|key| key.replace('.', "_") == flat)?;
    let meant = format!("did you mean {PREFIX}{}?", key.to_uppercase().replace('.', "__"));
    Some(Problem::new(name, "this variable sets nothing").fix(meant))
}

fn has_password(text: &str) -> bool {
    text.contains('@')
}

/// The configuration file, its text and its sections; `None` when there is none and none was named.
fn file(sources: &Sources) -> Result<Option<(PathBuf, String, Tree)>, Problem> {
    let variable = sources.environment.get("IDGEN_CONFIG").map(PathBuf::from);
    let (path, origin) = match (&sources.file, variable) {
        (Some(path), _) => (path.clone(), Origin::Flag("--config".into())),
        (None, Some(path)) => (path, Origin::Variable("IDGEN_CONFIG".into())),
        (None, None) if sources.default_file.exists() => (sources.default_file.clone(), Origin::Default),
        (None, None) => return Ok(None),
    };
    let shown = path.display();
    let problem = |text: String, fix: &str| Problem::new(FILE, text).set_by(origin.clone()).fix(fix);
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
        Ok(sections) => Ok(Some((path, text, sections))),
        Err(error) => {
            let text = format!("{shown}: {}", plain(&error.to_string()));
            Err(problem(text, "`idgen default-config` prints a complete file to start from"))
        }
    }
}

/// What the YAML reader says of a key that stands there twice, without the names of its types.
fn plain(error: &str) -> String {
    let twice = error.split_once("String(\"").and_then(|(before, rest)| {
        let (key, after) = rest.split_once("\"): duplicated key")?;
        let place = after.find("line").and_then(|at| after.get(at..)).unwrap_or(after);
        Some(format!("{before}the key {key} stands there twice: {}", place.trim()))
    });
    twice.unwrap_or_else(|| error.to_owned())
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

fn from_file(path: &Path, text: &str, sections: Tree, settings: &mut Vec<Setting>, problems: &mut Vec<Problem>) {
    let origin = |section: &str, key: Option<&str>| Origin::File(path.to_owned(), lines::find(text, section, key));
    // In the order of the file where lines are known, else by name: a map has none of its own.
    let line = |origin: &Origin| if let Origin::File(_, Some(line)) = origin { *line } else { usize::MAX };
    let (mut found, mut wrong) = (Vec::new(), Vec::new());
    for (section, value) in sections {
        let known = defaults::keys().iter().any(|key| key.name.starts_with(&format!("{section}.")));
        let origin_of_section = origin(&section, None);
        match value.kind {
            // A section with all its keys commented out.
            ValueKind::Nil if known => {}
            ValueKind::Table(keys) if known || !keys.is_empty() => {
                found.extend(keys.into_iter().map(|(key, value)| {
                    let origin = origin(&section, Some(&key));
                    Setting { key: format!("{section}.{key}"), value, origin }
                }));
            }
            _ if known => {
                let problem = Problem::new(&section, format!("{} is not a section", show(&value)));
                wrong.push(problem.set_by(origin_of_section).fix(format!("write its keys below {section}:, indented")));
            }
            _ => wrong.push(unknown(&section, origin_of_section)),
        }
    }
    found.sort_by(|a, b| (line(&a.origin), &a.key).cmp(&(line(&b.origin), &b.key)));
    wrong.sort_by(|a, b| (line(&a.origin), &a.key).cmp(&(line(&b.origin), &b.key)));
    settings.extend(found);
    problems.extend(wrong);
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

/// The setting, if its key is known and its section takes the value; of a list the entries that can be used, so that what
/// else is wrong with them is told in the same run.
fn check(mut setting: Setting, problems: &mut Vec<Problem>) -> Option<Setting> {
    // The section is only known so far as to say why it can't be had.
    if setting.key == "etcd.endpoints" {
        return Some(setting);
    }
    let Some(key) = defaults::find(&setting.key) else {
        problems.push(unknown(&setting.key, setting.origin));
        return None;
    };
    let shown = || if is_secret(&key.name) { "the value".to_owned() } else { show(&setting.value) };
    let mut complain = |text: String| {
        problems.push(Problem::new(&key.name, text).set_by(setting.origin.clone()).fix(&*key.doc));
    };
    if let Some(expected) = misfit(key, &setting.value.kind) {
        complain(format!("{} is not {expected}", shown()));
        return None;
    }
    let Err(error) = sections([&setting]).try_deserialize::<Sections>() else { return Some(setting) };
    let ValueKind::Array(items) = &setting.value.kind else {
        let text = reason(key, &shown(), &error);
        complain(if is_secret(&key.name) { redacted(&text) } else { text });
        return None;
    };
    let (usable, texts) = entries::sort(&setting, items);
    // What the key is, once behind the last.
    let last = texts.len().saturating_sub(1);
    problems.extend(texts.into_iter().enumerate().map(|(at, text)| {
        let problem = Problem::new(&key.name, text).set_by(setting.origin.clone());
        if at == last { problem.fix(&*key.doc) } else { problem }
    }));
    setting.value = Value::from(usable);
    Some(setting)
}

/// `text` without what stands in quotes, where a part of a secret might be.
fn redacted(text: &str) -> String {
    let parts = text.split('"').enumerate().map(|(at, part)| if at % 2 == 0 { part } else { "\"***\"" });
    parts.collect()
}

/// What is wrong with a value in a person's words; `error` is the deserializer's.
fn reason(key: &Key, shown: &str, error: &config::ConfigError) -> String {
    if is_duration(&key.text) {
        let example = if key.text == "0s" { "10s" } else { &key.text };
        return format!("{shown} is not a duration with a unit, such as {example}");
    }
    if let ValueKind::I64(_) = key.value.kind {
        return format!("{shown} is too small or too large");
    }
    let text = error.to_string();
    let text = text.split(" for key `").next().unwrap_or_default();
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
