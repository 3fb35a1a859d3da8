//! The few things in which the dialects differ for the registry: how values are bound, and which errors are harmless.
//!
//! Statements are written with `?`, in what SQL all three know. Every number in the table is 64 bits wide for drivers.

use std::future::Future;

use sqlx::Row as _;
use sqlx::error::DatabaseError;

/// A value to bind.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number.
    Int(i64),
    /// A text.
    Text(String),
}

/// A row of `worker_bound` as it stands.
#[derive(Clone, Debug)]
pub struct Record {
    pub(super) w: i64,
    pub(super) hi: i64,
    pub(super) incarnation: String,
    pub(super) n: i64,
    pub(super) wall_ms: i64,
    pub(super) host: String,
    pub(super) released: i64,
}

/// A connection on which the registry works.
pub trait Rows: Send {
    /// The name in metrics and texts.
    const NAME: &'static str;

    /// Whether only this process can be using the database.
    const EXCLUSIVE: bool;

    /// Runs a statement; gives how many rows it found.
    ///
    /// # Errors
    /// Why not.
    fn change(&mut self, sql: &'static str, values: &[Value]) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;

    /// Reads rows of `worker_bound`.
    ///
    /// # Errors
    /// Why not.
    fn read(
        &mut self,
        sql: &'static str,
        values: &[Value],
    ) -> impl Future<Output = Result<Vec<Record>, sqlx::Error>> + Send;

    /// Runs a statement without values.
    ///
    /// # Errors
    /// Why not.
    fn run(&mut self, sql: String) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// Whether a write that failed so has surely not happened.
    fn not_done(error: &dyn DatabaseError) -> bool;
}

macro_rules! rows {
    ($driver:ty, $connection:ty, $name:literal, exclusive: $exclusive:literal, $prepare:path, $not_done:path) => {
        impl Rows for $connection {
            const NAME: &'static str = $name;
            const EXCLUSIVE: bool = $exclusive;

            async fn change(&mut self, sql: &'static str, values: &[Value]) -> Result<u64, sqlx::Error> {
                let mut query = sqlx::query::<$driver>(sqlx::AssertSqlSafe($prepare(sql)));
                for value in values {
                    query = match value {
                        Value::Int(number) => query.bind(*number),
                        Value::Text(text) => query.bind(text.as_str()),
                    };
                }
                query.execute(self).await.map(|done| done.rows_affected())
            }

            async fn read(&mut self, sql: &'static str, values: &[Value]) -> Result<Vec<Record>, sqlx::Error> {
                let mut query = sqlx::query::<$driver>(sqlx::AssertSqlSafe($prepare(sql)));
                for value in values {
                    query = match value {
                        Value::Int(number) => query.bind(*number),
                        Value::Text(text) => query.bind(text.as_str()),
                    };
                }
                let rows = query.fetch_all(self).await?;
                let record = |row: &<$driver as sqlx::Database>::Row| {
                    Ok(Record {
                        w: row.try_get("w")?,
                        hi: row.try_get("hi")?,
                        incarnation: row.try_get("incarnation")?,
                        n: row.try_get("n")?,
                        wall_ms: row.try_get("wall_ms")?,
                        host: row.try_get("host")?,
                        released: row.try_get("released")?,
                    })
                };
                rows.iter().map(record).collect()
            }

            async fn run(&mut self, sql: String) -> Result<(), sqlx::Error> {
                sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(self).await.map(drop)
            }

            fn not_done(error: &dyn DatabaseError) -> bool {
                $not_done(error)
            }
        }
    };
}

rows!(sqlx::Sqlite, sqlx::SqliteConnection, "sqlite", exclusive: true, str::to_owned, sqlite_not_done);
rows!(sqlx::MySql, sqlx::MySqlConnection, "mysql", exclusive: false, str::to_owned, mysql_not_done);
rows!(sqlx::Postgres, sqlx::PgConnection, "postgres", exclusive: false, numbered, postgres_not_done);

/// `sql` with `$1`, `$2` and so on for the question marks.
fn numbered(sql: &str) -> String {
    let mut parts = sql.split('?');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (number, part) in (1_u32..).zip(parts) {
        text.extend(["$", &number.to_string(), part]);
    }
    text
}

/// Busy, locked, read-only, cannot open, not a database, constraint, full disk (the statement was rolled back).
fn sqlite_not_done(error: &dyn DatabaseError) -> bool {
    let primary = error.code().and_then(|code| code.parse::<u32>().ok()).map(|code| code & 0xff);
    primary.is_some_and(|code| [5, 6, 8, 14, 26, 19, 13].contains(&code))
}

/// Deadlock, lock wait, changed meanwhile, read-only, no right, no such column, wrong SQL, no such table, constraints.
fn mysql_not_done(error: &dyn DatabaseError) -> bool {
    const CODES: [u16; 13] = [1213, 1205, 1020, 1290, 1792, 1836, 1142, 1143, 1054, 1064, 1146, 3819, 4025];
    let number =
        error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map(sqlx::mysql::MySqlDatabaseError::number);
    number.is_some_and(|number| CODES.contains(&number))
}

/// Serialization failure, deadlock, lock timeout, read-only, constraints, and mistakes in SQL or rights.
fn postgres_not_done(error: &dyn DatabaseError) -> bool {
    let code = error.code().unwrap_or_default();
    ["40001", "40P01", "55P03", "25006"].contains(&&*code) || code.starts_with("23") || code.starts_with("42")
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn question_marks_become_numbers() {
        assert_eq!(numbered("a = ? AND b = ?"), "a = $1 AND b = $2");
        assert_eq!(numbered("a"), "a");
    }
}
