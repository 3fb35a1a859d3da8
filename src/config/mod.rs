//! The configuration: each room's section, composed, filled from layers and checked across rooms.
//!
//! Defaults, then a file, the environment and flags. Nothing is guessed and nothing is ignored: an unknown key, a value
//! of the wrong kind or a combination that could repeat ids stops the start, and all problems are told at once, each with
//! the key, where it was set and what to do. The known keys and their documentation are `config/idgen.yaml`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::clock::Wall;
use crate::{acl, admin, engine, limit, router, server, store, telemetry};

mod defaults;
mod entries;
mod layers;
mod lines;
mod place;
mod print;
mod tags;
mod validate;

pub use defaults::TEXT as DEFAULTS;
pub use layers::{DEFAULT_FILE, Origin, Sources};
pub use place::{Environment, Host, hostname, seeded_bug};

/// The exit code of a configuration or an identity that can't be used (`EX_CONFIG`).
pub const EXIT_CODE: u8 = 78;

/// The sections as they stand in a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sections {
    /// Where clients connect.
    pub server: server::Config,
    /// HTTP for people and machines.
    pub admin: admin::Config,
    /// Who may log in.
    pub auth: acl::Config,
    /// The engine of ids from time.
    pub snowflake: engine::snowflake::Config,
    /// The engine of ids from ranges.
    pub segment: engine::segment::Config,
    /// Where counters and tags are kept.
    pub database: store::Config,
    /// How many ids this node gives.
    pub rate_limit: limit::Config,
    /// Which tags there are.
    pub tags: router::Config,
    /// What the program tells about itself.
    pub log: telemetry::Config,
}

/// The configuration of one process, checked.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The sections; `config.server` and so on reach through.
    pub sections: Sections,
    /// The host the program runs on.
    pub host: Host,
    /// Whether a terminal may be coloured (`NO_COLOR` is not set).
    pub color: bool,
    /// The configuration file that was read.
    file: Option<PathBuf>,
    /// What every key was set to and where.
    values: BTreeMap<String, layers::Setting>,
}

impl std::ops::Deref for Config {
    type Target = Sections;

    fn deref(&self) -> &Sections {
        &self.sections
    }
}

impl Config {
    /// Fills the sections from `sources` and checks them; `wall` is what time it is.
    ///
    /// # Errors
    /// Every problem found, at least one.
    pub fn load(sources: &Sources, wall: Wall) -> Result<Self, Error> {
        let layers::Layers { file, settings, mut problems } = layers::read(sources);
        let etcd = settings.iter().rfind(|setting| setting.key == "etcd.endpoints").cloned();
        let values: BTreeMap<_, _> = settings
            .into_iter()
            .filter(|setting| setting.key != "etcd.endpoints")
            .map(|setting| (setting.key.clone(), setting))
            .collect();
        let sections = match layers::sections(values.values()).try_deserialize() {
            Ok(sections) => sections,
            Err(error) => {
                problems.push(Problem::new("configuration", error.to_string()));
                return Err(Error(problems));
            }
        };
        let host = Host::of(&sources.environment, &hostname());
        let color = sources.environment.get("NO_COLOR").is_none();
        let mut config = Self { sections, host, color, file, values };
        let etcd = etcd
            .filter(|endpoints| !matches!(&endpoints.value.kind, config::ValueKind::Array(list) if list.is_empty()));
        if let Some(endpoints) = etcd {
            problems.push(validate::etcd(&config).set_by(endpoints.origin));
        }
        for problem in validate::all(&config, wall, &problems) {
            let origin = config.origin(&problem.key);
            problems.push(problem.set_by(origin));
        }
        if !problems.is_empty() {
            return Err(Error(problems));
        }
        config.expand_preset();
        Ok(config)
    }

    /// Where the server of this configuration listens: the section `server` as far as that. Nothing else is looked at, since
    /// whoever only asks a server needs no more.
    ///
    /// # Errors
    /// What is wrong with the file or with these keys.
    pub fn listener(sources: &Sources) -> Result<server::Config, Error> {
        let layers = layers::read(sources);
        let of_listener = |key: &str| ["server.addr", "server.unix_socket", layers::FILE].contains(&key);
        let problems: Vec<_> = layers.problems.into_iter().filter(|problem| of_listener(&problem.key)).collect();
        if !problems.is_empty() {
            return Err(Error(problems));
        }
        let settings = layers.settings.iter().filter(|setting| of_listener(&setting.key));
        let sections = layers::sections(settings).try_deserialize::<Sections>();
        sections.map(|sections| sections.server).map_err(|error| Error(vec![Problem::new("server", error.to_string())]))
    }

    /// Notes the widths that a preset stands for, so that what is shown is what holds.
    fn expand_preset(&mut self) {
        let preset = &self.sections.snowflake.preset;
        for (key, width) in self.sections.snowflake.preset_widths() {
            let origin = Origin::Preset(preset.clone());
            let setting = layers::Setting { key: key.to_owned(), value: i64::from(width).into(), origin };
            self.values.insert(key.to_owned(), setting);
        }
    }

    /// Where the value of `key` (`section.key`) comes from.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.values.get(key).map_or(Origin::Default, |setting| setting.origin.clone())
    }

    /// The configuration file that was read; empty: none.
    #[must_use]
    pub fn file(&self) -> String {
        self.file.as_ref().map(|path| path.display().to_string()).unwrap_or_default()
    }

    /// Every key with its value as text; secrets are not shown.
    #[must_use]
    pub fn shown(&self) -> BTreeMap<String, String> {
        let value = |key: &defaults::Key| print::value(key, &self.values).trim_matches('"').to_owned();
        defaults::keys().iter().map(|key| (key.name.clone(), value(key))).collect()
    }

    /// The merged configuration as YAML, each value with its origin in a comment; secrets are not shown.
    #[must_use]
    pub fn print(&self) -> String {
        print::yaml(&self.values)
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    key: String,
    text: String,
    origin: Origin,
    fix: String,
}

impl Problem {
    /// `text` says what is wrong with `key`.
    pub fn new(key: impl Into<String>, text: impl Into<String>) -> Self {
        Self { key: key.into(), text: text.into(), origin: Origin::Default, fix: String::new() }
    }

    /// Where the value was set.
    #[must_use]
    pub fn set_by(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// What to do about it.
    #[must_use]
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: fix.into(), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.text)?;
        if self.origin != Origin::Default {
            write!(f, "\n  set by {}", self.origin)?;
        }
        if !self.fix.is_empty() {
            write!(f, "\n  {}", self.fix)?;
        }
        Ok(())
    }
}

/// Why a configuration can't be used: every problem found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Vec<Problem>);

impl Error {
    /// The problems, at least one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let problems: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&problems.join("\n"))
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests;
