//! The tables: made and brought up to date by one transaction under a lock of our own.
//!
//! Guaranteed: several programs that come at once find the same tables, whoever makes them; a half-made schema is never
//! met, because definitions of tables are a part of the transaction; and a schema of a newer program is refused. How: an
//! advisory lock that ends with the transaction, so it works behind a pooler and can't be left behind, and a row with the
//! number of the last migration. Tables of our names without that row are not ours, and are not adopted.

use std::sync::Arc;

use sqlx::Row as _;

use super::failure::Effect;
use super::open;
use super::session::{Session, Sessions};
use crate::store::StoreError;
use crate::store::network::{OpenError, SCHEMA_LOCK_TIMEOUT};

/// The migrations; a new one is a new line at the end. One that was released is never changed.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../migrations/postgres/0001_id_alloc.sql"),
    include_str!("../../../migrations/postgres/0002_worker_bound.sql"),
];

const VERSION: &str = "SELECT version FROM idgen_schema WHERE one = 1";

/// How many migrations a database of this program has had.
pub(super) fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// How many migrations the database has had; 0 for none.
async fn applied(session: &mut Session) -> Result<i64, StoreError> {
    // Read as any table: `to_regclass` answers from a cache that another program's commit may not have reached.
    let exists = "SELECT 1 FROM pg_catalog.pg_class WHERE relname = 'idgen_schema' AND pg_table_is_visible(oid)";
    if session.run(exists, Effect::Nothing).await?.is_empty() {
        return Ok(0);
    }
    let rows = session.run(VERSION, Effect::Nothing).await?;
    Ok(rows.first().and_then(|row| row.try_get("version").ok()).unwrap_or(0))
}

/// Checks the version of the tables, and applies what is missing. Without `may_create`, there have to be tables.
pub(super) async fn ensure(sessions: &Arc<Sessions>, may_create: bool) -> Result<(), OpenError> {
    let place = &sessions.place;
    let failed = |error: StoreError| OpenError::of_store(place, &error);
    let version = applied(&mut sessions.session().await.map_err(failed)?).await.map_err(failed)?;
    match version {
        0 if !may_create => return Err(OpenError::Empty(place.clone())),
        version if version == known() => return Ok(()),
        version if version > known() => return Err(OpenError::Newer(place.clone(), version, known())),
        _ => {}
    }
    let mut tx = sessions.transaction().await.map_err(failed)?;
    // The limit of a usual statement is too short for a wait behind somebody else's migration.
    tx.allow(SCHEMA_LOCK_TIMEOUT + sessions.limit);
    tx.run(&open::lock(), Effect::Nothing).await.map_err(|error| match error.reason {
        "locked" => OpenError::Busy(place.clone(), SCHEMA_LOCK_TIMEOUT),
        _ => failed(error),
    })?;
    // Again, now that nobody else changes it.
    let version = applied(&mut tx).await.map_err(failed)?;
    if version >= known() {
        return Ok(());
    }
    for (number, migration) in (1_i64..).zip(MIGRATIONS).filter(|(number, _)| *number > version) {
        tx.run(migration, Effect::Nothing)
            .await
            .map_err(|error| OpenError::Sql(place.clone(), format!("migration {number}: {}", error.text)))?;
    }
    let record = format!(
        "CREATE TABLE IF NOT EXISTS idgen_schema (one SMALLINT NOT NULL PRIMARY KEY CHECK (one = 1), \
         version BIGINT NOT NULL); \
         INSERT INTO idgen_schema (one, version) VALUES (1, {known}) ON CONFLICT (one) DO UPDATE SET version = {known}",
        known = known()
    );
    tx.run(&record, Effect::Nothing).await.map_err(failed)?;
    tx.finish().await.map_err(failed)
}
