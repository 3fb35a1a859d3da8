//! How the registry speaks to PostgreSQL: in text, one message for each statement, with a limit on waiting for a row.
//!
//! Prepared statements don't get along with a pooler that lends a server connection for one transaction (PgBouncer), and
//! settings of a session would stay with the next one who is lent it. So values stand in the text, as digits only, decimal
//! or hexadecimal, which no setting of the server reads otherwise.

use std::fmt::Write as _;

use sqlx::error::DatabaseError;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::rows::{Record, Rows, Value};

/// How long a statement waits for a row that somebody else holds, in the transaction that it is.
const LIMIT: &str = "SET LOCAL lock_timeout = 2000;";

impl Rows for PgConnection {
    const NAME: &'static str = "postgres";
    const EXCLUSIVE: bool = false;

    async fn change(&mut self, sql: &'static str, values: &[Value]) -> Result<u64, sqlx::Error> {
        let message = format!("{LIMIT} {}", filled(sql, values));
        sqlx::raw_sql(AssertSqlSafe(message)).execute(self).await.map(|done| done.rows_affected())
    }

    async fn read(&mut self, sql: &'static str, values: &[Value]) -> Result<Vec<Record>, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(filled(sql, values))).fetch_all(self).await?;
        let record = |row: &PgRow| {
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
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self).await.map(drop)
    }

    /// Serialization failure, deadlock, lock timeout, cancelled, read-only, constraints, and mistakes in SQL or rights.
    fn not_done(error: &dyn DatabaseError) -> bool {
        let code = error.code().unwrap_or_default();
        ["40001", "40P01", "55P03", "57014", "25006"].contains(&&*code)
            || code.starts_with("23")
            || code.starts_with("42")
    }
}

/// `sql` with the values in the places of its question marks.
fn filled(sql: &str, values: &[Value]) -> String {
    let mut parts = sql.split('?');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (value, part) in values.iter().zip(parts) {
        match value {
            Value::Int(number) => text.push_str(&number.to_string()),
            Value::Text(value) => text.push_str(&literal(value)),
        }
        text.push_str(part);
    }
    text
}

fn literal(value: &str) -> String {
    let digits = value.bytes().fold(String::with_capacity(value.len() * 2), |mut digits, byte| {
        // Writing to a string never fails.
        let _ = write!(digits, "{byte:02x}");
        digits
    });
    format!("convert_from(decode('{digits}', 'hex'), 'UTF8')")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_the_text_as_digits() {
        let values = [Value::Int(-7), Value::Text("a'?".into()), Value::Int(i64::MAX)];
        assert_eq!(
            filled("a = ? AND b = ? AND c < ?", &values),
            "a = -7 AND b = convert_from(decode('61273f', 'hex'), 'UTF8') AND c < 9223372036854775807"
        );
    }
}
