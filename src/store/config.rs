//! The section `database`: which database, and how patient to be with it.
//!
//! A DSN may hold a password, so neither an error nor the debug form of the section shows one.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::dsn::{self, Server};

/// The section `database`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where ids and tags are durable. `sqlite://` and a path, relative to the working directory or absolute, which is
    /// created at the first start; or `mysql://` (also `mariadb://`) or `postgres://` (also `postgresql://`), then
    /// `USER:PASSWORD@HOST:PORT/DATABASE`, of which the database must exist. Default `sqlite://idgen-data/idgen.db`.
    pub dsn: String,
    /// How many connections to a MySQL, MariaDB or PostgreSQL server may be open at once for ids, 1 to 1000; default 8.
    /// Half of them at most do other work than grants, and two are kept open, so that a grant is one round trip. Two more
    /// serve the worker id. A SQLite file has one writer whatever this says.
    pub max_open_conns: u32,
    /// A PEM file with the certificates of the authorities that may sign the database server's; empty (default): those of
    /// the system.
    pub ca_file: String,
    /// How long one statement may take, 100 ms to 60 s; default 3 s. What takes longer counts as not known to have
    /// happened, and its ids are skipped.
    #[serde(with = "humantime_serde")]
    pub statement_timeout: Duration,
    /// What to do where an acknowledged grant could be lost in a power failure: `warn` (default) or `strict`, which
    /// refuses to start.
    pub durability: Durability,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            dsn: "sqlite://idgen-data/idgen.db".into(),
            max_open_conns: 8,
            ca_file: String::new(),
            statement_timeout: Duration::from_secs(3),
            durability: Durability::Warn,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dsn, max_open_conns, ca_file, statement_timeout, durability } = self;
        let mut shown = f.debug_struct("Config");
        shown.field("dsn", if dsn.contains('@') { &"***" } else { dsn });
        shown.field("max_open_conns", max_open_conns).field("ca_file", ca_file);
        shown.field("statement_timeout", statement_timeout).field("durability", durability).finish()
    }
}

/// What a weak durability leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// A warning and a gauge.
    #[default]
    Warn,
    /// The start is refused.
    Strict,
}

/// Which kind of database a DSN names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// A file, which one process has for itself.
    Sqlite,
    /// A MySQL 8 or MariaDB server, which nodes share.
    MySql,
    /// A PostgreSQL server, which nodes share.
    Postgres,
}

impl Dialect {
    /// The name in metrics and texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
        }
    }
}

impl Config {
    /// Which kind of database `dsn` names.
    ///
    /// # Errors
    /// In words, naming the key and the fix, when it names none.
    pub fn dialect(&self) -> Result<Dialect, String> {
        match self.dsn.split_once(':').map(|(scheme, _)| scheme) {
            Some("sqlite") => Ok(Dialect::Sqlite),
            Some("mysql" | "mariadb") => Ok(Dialect::MySql),
            Some("postgres" | "postgresql") => Ok(Dialect::Postgres),
            _ => Err("database.dsn must start with sqlite://, mysql:// or postgres://, such as \
                      sqlite://idgen-data/idgen.db or mysql://USER:PASSWORD@HOST/DATABASE"
                .into()),
        }
    }

    /// The path of the SQLite file that `dsn` names.
    ///
    /// # Errors
    /// In words, naming the key and the fix, when `dsn` is not of SQLite or names no file.
    pub fn sqlite_path(&self) -> Result<PathBuf, String> {
        let example = "such as sqlite://idgen-data/idgen.db";
        let Some(rest) = self.dsn.strip_prefix("sqlite:") else {
            return Err(format!("database.dsn must start with sqlite://, {example}"));
        };
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if path.is_empty() || path.ends_with('/') || path.contains(['?', '\0']) || path.contains(":memory:") {
            return Err(format!("database.dsn must name a file and take no options, {example}"));
        }
        Ok(PathBuf::from(path))
    }

    /// The server that `dsn` names, with the authorities of `ca_file`.
    ///
    /// # Errors
    /// In words, naming the key and the fix, when `dsn` is of no server, or would talk to one on another machine without
    /// verifying who answers. No text holds a part of the DSN that may be secret.
    pub fn server(&self) -> Result<Server, String> {
        dsn::parse(&self.dsn, self.dialect()?, &self.ca_file)
    }

    /// Checks the bounds of every key.
    ///
    /// # Errors
    /// In words, naming the key and the fix.
    pub fn validate(&self) -> Result<(), String> {
        match self.dialect()? {
            Dialect::Sqlite => drop(self.sqlite_path()?),
            Dialect::MySql | Dialect::Postgres => drop(self.server()?),
        }
        if !(1..=1000).contains(&self.max_open_conns) {
            return Err(format!("database.max_open_conns must be 1 to 1000, and is {}", self.max_open_conns));
        }
        let bounds = Duration::from_millis(100)..=Duration::from_mins(1);
        if bounds.contains(&self.statement_timeout) {
            Ok(())
        } else {
            Err("database.statement_timeout must be 100ms to 60s".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dsn_names_one_sqlite_file() {
        let path = |dsn: &str| Config { dsn: dsn.into(), ..Config::default() }.sqlite_path();
        assert_eq!(path("sqlite://idgen-data/idgen.db"), Ok(PathBuf::from("idgen-data/idgen.db")));
        assert_eq!(path("sqlite:///var/lib/idgen/idgen.db"), Ok(PathBuf::from("/var/lib/idgen/idgen.db")));
        assert_eq!(path("sqlite:idgen.db"), Ok(PathBuf::from("idgen.db")));
        for bad in ["", "mysql://host/db", "sqlite://", "sqlite:///folder/", "sqlite://:memory:", "sqlite://x?mode=ro"]
        {
            assert!(path(bad).expect_err("refused").contains("database.dsn"), "{bad}");
        }
    }

    #[test]
    fn the_scheme_says_the_dialect() {
        let dialect = |dsn: &str| Config { dsn: dsn.into(), ..Config::default() }.dialect();
        for (dsn, expected) in [
            ("sqlite:x", Dialect::Sqlite),
            ("mysql://u@h/d", Dialect::MySql),
            ("mariadb://u@h/d", Dialect::MySql),
            ("postgres://u@h/d", Dialect::Postgres),
            ("postgresql://u@h/d", Dialect::Postgres),
        ] {
            assert_eq!(dialect(dsn), Ok(expected));
        }
        for bad in ["", "h/d", "MYSQL://u@h/d", "redis://u@h/d", "u:c4n4ry@h/d"] {
            let text = dialect(bad).expect_err("refused");
            assert!(text.starts_with("database.dsn") && !text.contains("c4n4ry"), "{text}");
        }
    }

    #[test]
    fn the_time_limit_has_bounds() {
        assert_eq!(Config::default().validate(), Ok(()));
        for millis in [0, 99, 60_001] {
            let config = Config { statement_timeout: Duration::from_millis(millis), ..Config::default() };
            assert!(config.validate().expect_err("refused").contains("database.statement_timeout"));
        }
    }

    #[test]
    fn the_debug_form_shows_no_password() {
        let config = Config { dsn: "mysql://u:c4n4ry@h/d".into(), ..Config::default() };
        assert!(!format!("{config:?}").contains("c4n4ry"));
    }
}
