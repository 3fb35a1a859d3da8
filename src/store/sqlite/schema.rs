//! The migrations of the SQLite file, in order, each applied once and in one transaction.
//!
//! The number of those applied stands in `user_version`. A file that has had more than this program knows was written by
//! a newer one and is refused: nothing here could tell what it means.

use sqlx::{Connection as _, SqliteConnection};

/// The migrations; a new one is a new line at the end. One that was released is never changed.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../migrations/sqlite/0001_id_alloc.sql"),
    include_str!("../../../migrations/sqlite/0002_worker_bound.sql"),
];

/// How many migrations a file of this program has had.
pub(super) fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// How many migrations the file has had.
pub(super) async fn applied(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("PRAGMA user_version").fetch_one(connection).await
}

/// Applies what is missing.
pub(super) async fn migrate(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let first = applied(connection).await?;
    for (version, migration) in (1_i64..).zip(MIGRATIONS).filter(|(version, _)| *version > first) {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::raw_sql(*migration).execute(&mut *tx).await?;
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("PRAGMA user_version = {version}"))).execute(&mut *tx).await?;
        tx.commit().await?;
    }
    Ok(())
}
