//! The tables on the server: made and brought up to date under a lock that the server keeps.
//!
//! DDL commits by itself on these servers, so a migration can break off in the middle: each can be repeated, and its number
//! is written when it is complete. The lock is one of ours, with a time limit and a checked answer; the driver's own has
//! neither and does nothing on MariaDB. A database that has had more migrations than this program knows was written by a
//! newer one and is refused.

use sqlx::mysql::MySqlConnection;

use super::errors::{self, words};
use crate::store::identity;
use crate::store::network::{OpenError, SCHEMA_LOCK_TIMEOUT};

/// The migrations; a new one is a new line at the end. One that was released is never changed.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../migrations/mysql/0001_id_alloc.sql"),
    include_str!("../../../migrations/mysql/0002_worker_bound.sql"),
];

/// The server's lock for this database. Names of locks are shared by all databases of a server, and have 64 characters.
const LOCK: &str = "CONCAT('idgen:', LEFT(SHA2(DATABASE(), 256), 40))";

/// "No such table".
const NO_TABLE: u16 = 1146;

fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Brings the tables up to date. Without `may_create` there have to be some.
pub(super) async fn prepare(connection: &mut MySqlConnection, place: &str, may_create: bool) -> Result<(), OpenError> {
    let failed = |error: sqlx::Error| OpenError::Sql(place.to_owned(), words(&error));
    // Nothing to do is the usual case, and needs neither the lock nor the right to make tables.
    match applied(connection).await.map_err(failed)? {
        0 if !may_create => return Err(OpenError::Empty(place.to_owned())),
        version if version == known() => return Ok(()),
        version => refuse_newer(version, place)?,
    }
    lock(connection, place).await?;
    let table = "CREATE TABLE IF NOT EXISTS idgen_schema (one SMALLINT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, \
                 CHECK (one = 1)) ENGINE = InnoDB";
    sqlx::raw_sql(table).execute(&mut *connection).await.map_err(failed)?;
    let first = applied(connection).await.map_err(failed)?;
    refuse_newer(first, place)?;
    for (version, migration) in (1_i64..).zip(MIGRATIONS).filter(|(version, _)| *version > first) {
        sqlx::raw_sql(*migration).execute(&mut *connection).await.map_err(failed)?;
        let note = "INSERT INTO idgen_schema (one, version) VALUES (1, ?) ON DUPLICATE KEY UPDATE version = ?";
        sqlx::query(note).bind(version).bind(version).execute(&mut *connection).await.map_err(failed)?;
    }
    unlock(connection).await.map_err(failed)
}

fn refuse_newer(version: i64, place: &str) -> Result<(), OpenError> {
    if version > known() { Err(OpenError::Newer(place.to_owned(), version, known())) } else { Ok(()) }
}

/// How many migrations the database has had.
async fn applied(connection: &mut MySqlConnection) -> Result<i64, sqlx::Error> {
    let version = sqlx::query_scalar("SELECT version FROM idgen_schema").fetch_optional(connection).await;
    match version {
        Ok(version) => Ok(version.unwrap_or(0)),
        Err(sqlx::Error::Database(error)) if errors::number(&*error) == NO_TABLE => Ok(0),
        Err(error) => Err(error),
    }
}

/// Waits for the lock, which lasts as long as the connection unless it is given back.
async fn lock(connection: &mut MySqlConnection, place: &str) -> Result<(), OpenError> {
    let sql = sqlx::AssertSqlSafe(format!("SELECT GET_LOCK({LOCK}, ?)"));
    let query = sqlx::query_scalar::<_, Option<i64>>(sql).bind(SCHEMA_LOCK_TIMEOUT.as_secs());
    match query.fetch_one(connection).await {
        Ok(Some(1)) => Ok(()),
        Ok(Some(_)) => Err(OpenError::Busy(place.to_owned(), SCHEMA_LOCK_TIMEOUT)),
        Ok(None) => Err(OpenError::Sql(place.to_owned(), "the server could not lock the tables".into())),
        Err(error) => Err(OpenError::Sql(place.to_owned(), words(&error))),
    }
}

async fn unlock(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("DO RELEASE_LOCK({LOCK})"))).execute(connection).await.map(drop)
}

/// The transaction over identity and worker bounds, on a connection of its own that holds the lock. Dropped, it closes the
/// connection, and the server takes back what was not committed.
#[derive(Debug)]
pub struct Founding(MySqlConnection);

impl Founding {
    pub(super) async fn begin(mut connection: MySqlConnection, place: &str) -> Result<Self, OpenError> {
        lock(&mut connection, place).await?;
        let begun = sqlx::raw_sql("START TRANSACTION").execute(&mut connection).await;
        begun.map_err(|error| OpenError::Sql(place.to_owned(), words(&error)))?;
        Ok(Self(connection))
    }
}

impl identity::Transaction for Founding {
    type Connection = MySqlConnection;

    fn connection(&mut self) -> &mut MySqlConnection {
        &mut self.0
    }

    async fn commit(mut self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("COMMIT").execute(&mut self.0).await?;
        unlock(&mut self.0).await
    }
}
