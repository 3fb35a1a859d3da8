//! What a source holds: the counters that were found, and what was passed over.

use super::dsn;
use super::plan::Counter;
use crate::glob::glob;

mod redis;
mod sql;

/// The most counters of one source: more are no tags, but keys that were not meant.
const MAX_COUNTERS: usize = 1_000_000;

/// Which counters to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// The rows of a table of Leaf.
    Leaf {
        /// The table.
        table: String,
    },
    /// The rows of a table of Tinyid.
    Tinyid {
        /// The table.
        table: String,
    },
    /// Keys of a Redis server.
    Redis,
    /// The largest value in a column.
    Max {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// What to call the counter.
        tag: String,
    },
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// The counters, by name.
    pub counters: Vec<Counter>,
    /// What was passed over, each with the reason.
    pub skipped: Vec<String>,
    /// What a person should know of the source.
    pub notes: Vec<String>,
}

/// Reads the counters of `source` whose names match `pattern`.
///
/// # Errors
/// In words, without user and password.
pub async fn read(source: &str, query: &Query, pattern: Option<&str>) -> Result<Found, String> {
    let pattern = pattern.unwrap_or("*");
    let found = if *query == Query::Redis {
        redis::read(&dsn::redis(source)?, pattern).await
    } else {
        sql::read(source, query).await
    };
    let mut found = found.map_err(|error| format!("{}: {error}", dsn::place(source)))?;
    if !matches!(query, Query::Redis | Query::Max { .. }) {
        found.counters.retain(|counter| glob(pattern.as_bytes(), counter.name.as_bytes()));
    }
    Ok(found)
}

fn too_many() -> String {
    format!("more than {MAX_COUNTERS} counters: name fewer, with --match")
}
