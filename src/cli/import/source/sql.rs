//! The counters in tables of MySQL, MariaDB and PostgreSQL.
//!
//! One connection, one SELECT, nothing written. Every column is read as text, so that no type of a column matters: what is
//! no number is told later, by name. The simple protocol is used, which poolers in front of a database let through.
//! A server elsewhere has to show a certificate of its name, unless the DSN says otherwise.

use std::future::Future;
use std::net::IpAddr;
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlRow, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgRow, PgSslMode};
use sqlx::{AssertSqlSafe, ColumnIndex, ConnectOptions as _, Connection as _, Decode, Row, Type, raw_sql};

use super::{Found, MAX_COUNTERS, Query, too_many};
use crate::cli::client::shown;
use crate::cli::import::plan::Counter;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);

/// How long a statement may take: the largest value of a column without an index is a walk over the table.
const PATIENCE: Duration = Duration::from_mins(10);

/// What differs between the two.
struct Dialect {
    /// What stands around a name.
    quote: char,
    /// The type to cast to.
    text: &'static str,
    /// Asks whether nothing can be written: `1` or `true`.
    read_only: &'static str,
}

const MYSQL: Dialect = Dialect { quote: '`', text: "CHAR", read_only: "SELECT CAST(@@global.read_only AS CHAR)" };
const POSTGRES: Dialect = Dialect { quote: '"', text: "TEXT", read_only: "SELECT CAST(pg_is_in_recovery() AS TEXT)" };

/// A row: its columns as text.
type Cells = Vec<Option<String>>;

/// Reads what `query` asks of the database that `dsn` names.
pub async fn read(dsn: &str, query: &Query) -> Result<Found, String> {
    let scheme = dsn.split_once("://").map_or("", |(scheme, _)| scheme);
    let (states, rows): (Vec<Cells>, Vec<Cells>) = match scheme {
        "mysql" | "mariadb" => {
            let sql = statement(&MYSQL, query)?;
            let mut connection = within(CONNECT, mysql(dsn)?.connect()).await?;
            let states = within(PATIENCE, raw_sql(MYSQL.read_only).fetch_all(&mut connection)).await;
            let rows = within(PATIENCE, raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection)).await?;
            let _ = within(CONNECT, connection.close()).await;
            (states.unwrap_or_default().iter().map(cells::<MySqlRow>).collect(), rows.iter().map(cells).collect())
        }
        "postgres" | "postgresql" => {
            let sql = statement(&POSTGRES, query)?;
            let mut connection = within(CONNECT, postgres(dsn)?.connect()).await?;
            let states = within(PATIENCE, raw_sql(POSTGRES.read_only).fetch_all(&mut connection)).await;
            let rows = within(PATIENCE, raw_sql(AssertSqlSafe(sql)).fetch_all(&mut connection)).await?;
            let _ = within(CONNECT, connection.close()).await;
            (states.unwrap_or_default().iter().map(cells::<PgRow>).collect(), rows.iter().map(cells).collect())
        }
        _ => return Err("a database is named mysql://user@host/database or postgres://user@host/database".to_owned()),
    };
    found(query, &states, rows)
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, String> {
    match tokio::time::timeout(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(sqlx::Error::Database(error))) => Err(shown(error.message())),
        Ok(Err(error)) => Err(shown(&error.to_string())),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

/// The columns of a row as text; what is no text is left out, and refused where it should be a number.
fn cells<'r, R: Row>(row: &'r R) -> Cells
where
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    (0..row.len()).map(|at| row.try_get::<Option<String>, _>(at).ok().flatten()).collect()
}

/// The options of the driver, with TLS that is checked where the way is not on this machine and the DSN says nothing.
fn mysql(dsn: &str) -> Result<MySqlConnectOptions, String> {
    // The driver knows one name of the scheme.
    let dsn = dsn.replacen("mariadb://", "mysql://", 1);
    let options = MySqlConnectOptions::from_str(&dsn).map_err(|error| invalid(&error))?;
    if names_tls(&dsn) || options.get_socket().is_some() || is_local(options.get_host()) {
        return Ok(options);
    }
    Ok(options.ssl_mode(MySqlSslMode::VerifyIdentity))
}

fn postgres(dsn: &str) -> Result<PgConnectOptions, String> {
    let options = PgConnectOptions::from_str(dsn).map_err(|error| invalid(&error))?;
    if names_tls(dsn) || options.get_socket().is_some() || is_local(options.get_host()) {
        return Ok(options);
    }
    Ok(options.ssl_mode(PgSslMode::VerifyFull))
}

fn invalid(error: &sqlx::Error) -> String {
    let text = error.to_string();
    // The words of the driver may hold a part of the DSN in quotes.
    let parts = text.split('"').enumerate().map(|(at, part)| if at % 2 == 0 { part } else { "\"***\"" });
    format!("the DSN can't be read: {}", parts.collect::<String>())
}

fn names_tls(dsn: &str) -> bool {
    let options = dsn.split_once('?').map_or("", |(_, options)| options);
    options.split('&').any(|option| option.starts_with("sslmode=") || option.starts_with("ssl-mode="))
}

fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.starts_with('/') || bare.parse::<IpAddr>().map_or(host == "localhost", |ip| ip.is_loopback())
}

/// The SELECT for `query`.
fn statement(dialect: &Dialect, query: &Query) -> Result<String, String> {
    let (columns, table) = match query {
        Query::Leaf { table } => (&["biz_tag", "max_id", "step", "description"][..], table),
        Query::Tinyid { table } => (&["biz_type", "max_id", "step", "delta", "remainder"][..], table),
        Query::Max { table, column, .. } => {
            let (column, table) = (quoted(dialect, column)?, path(dialect, table)?);
            return Ok(format!("SELECT CAST(MAX({column}) AS {}) FROM {table}", dialect.text));
        }
        Query::Redis => return Err("not a database".to_owned()),
    };
    let columns: Vec<_> = columns.iter().map(|column| format!("CAST({column} AS {})", dialect.text)).collect();
    let table = path(dialect, table)?;
    Ok(format!("SELECT {} FROM {table} ORDER BY 1 LIMIT {}", columns.join(", "), MAX_COUNTERS + 1))
}

/// A table, perhaps with its schema before a dot.
fn path(dialect: &Dialect, table: &str) -> Result<String, String> {
    let parts: Result<Vec<_>, _> = table.split('.').map(|part| quoted(dialect, part)).collect();
    Ok(parts?.join("."))
}

/// A name as both take it whatever is in it: the quote is doubled, and nothing else has a meaning between quotes.
fn quoted(dialect: &Dialect, name: &str) -> Result<String, String> {
    if name.is_empty() || name.contains('\0') {
        return Err(format!("{name:?} is not a name of a table or column"));
    }
    let quote = dialect.quote.to_string();
    Ok(format!("{quote}{}{quote}", name.replace(&quote, &quote.repeat(2))))
}

fn found(query: &Query, states: &[Cells], rows: Vec<Cells>) -> Result<Found, String> {
    if rows.len() > MAX_COUNTERS {
        return Err(too_many());
    }
    let mut found = Found::default();
    let state = states.first().and_then(|row| row.first()?.as_deref());
    if matches!(state, Some("1" | "true" | "t")) {
        found.notes.push("the source is read-only: if it is a replica, it may lag behind; read its primary".to_owned());
    }
    found.counters = rows.into_iter().map(|row| counter(query, row)).collect();
    Ok(found)
}

/// What a row says.
fn counter(query: &Query, row: Cells) -> Counter {
    let mut cells = row.into_iter();
    let mut next = || cells.next().flatten();
    if let Query::Max { tag, .. } = query {
        // An empty table has no largest value, and has given no id.
        let value = next().unwrap_or_else(|| "0".to_owned());
        return Counter { name: tag.clone(), value, ..Counter::default() };
    }
    let (name, value) = (next().unwrap_or_default(), next().unwrap_or_default());
    let step = next();
    match query {
        Query::Tinyid { .. } => {
            let stride = Some((next().unwrap_or_default(), next().unwrap_or_default()));
            Counter { name, value, step, description: None, stride }
        }
        _ => Counter { name, value, step, description: next(), stride: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_whatever_is_in_them() {
        let max =
            |table: &str, column: &str| Query::Max { table: table.into(), column: column.into(), tag: "t".into() };
        let sql = statement(&MYSQL, &max("shop.or`der; DROP", "i d")).expect("quoted");
        assert_eq!(sql, "SELECT CAST(MAX(`i d`) AS CHAR) FROM `shop`.`or``der; DROP`");
        let sql = statement(&POSTGRES, &max("Order", "a\"b")).expect("quoted");
        assert_eq!(sql, "SELECT CAST(MAX(\"a\"\"b\") AS TEXT) FROM \"Order\"");
        for bad in ["", "a.", ".a", "a\0"] {
            assert!(statement(&MYSQL, &max(bad, "id")).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_table_is_read_by_its_columns() {
        let text = |text: &str| Some(text.to_owned());
        let leaf = Query::Leaf { table: "leaf_alloc".into() };
        let row = vec![text("order"), text("2001"), text("1000"), None];
        let found = counter(&leaf, row);
        assert_eq!((found.name.as_str(), found.value.as_str(), found.description), ("order", "2001", None));
        let tinyid = Query::Tinyid { table: "tiny_id_info".into() };
        let found = counter(&tinyid, vec![text("order"), text("9"), text("5"), text("2"), text("1")]);
        assert_eq!(found.stride, Some(("2".into(), "1".into())));
        let max = Query::Max { table: "t".into(), column: "id".into(), tag: "order".into() };
        assert_eq!(counter(&max, vec![None]).value, "0");
        assert_eq!(
            counter(&max, vec![text("17")]),
            Counter { name: "order".into(), value: "17".into(), ..Counter::default() }
        );
    }

    #[test]
    fn a_server_elsewhere_has_to_show_its_certificate() {
        let mode = |dsn: &str| format!("{:?}", mysql(dsn).expect("valid").get_ssl_mode());
        assert_eq!(mode("mysql://db.example/leaf"), "VerifyIdentity");
        assert_eq!(mode("mariadb://10.0.0.1/leaf"), "VerifyIdentity");
        assert_eq!(mode("mysql://10.0.0.1/leaf?ssl-mode=required"), "Required");
        for local in ["mysql://127.0.0.1/leaf", "mysql://localhost/leaf", "mysql://x/leaf?socket=/run/my.sock"] {
            assert_eq!(mode(local), "Preferred", "{local}");
        }
        let mode = |dsn: &str| format!("{:?}", postgres(dsn).expect("valid").get_ssl_mode());
        assert_eq!(mode("postgres://db.example/leaf"), "VerifyFull");
        assert_eq!(mode("postgres://db.example/leaf?sslmode=disable"), "Disable");
        assert_ne!(mode("postgres://[::1]/leaf"), "VerifyFull");
    }

    #[test]
    fn a_dsn_that_can_not_be_read_is_not_shown() {
        let error = mysql("mysql://root:geheim@db:port/leaf").expect_err("no port");
        assert!(!error.contains("geheim"), "{error}");
        assert!(postgres("postgres://a:geheim@b/c?sslmode=geheim").is_err_and(|error| !error.contains("geheim")));
    }

    #[test]
    fn a_read_only_source_is_told() {
        let leaf = Query::Leaf { table: "leaf_alloc".into() };
        let notes = |state: &str| found(&leaf, &[vec![Some(state.to_owned())]], vec![]).expect("few").notes.len();
        assert_eq!([notes("1"), notes("true"), notes("0"), notes("false")], [1, 1, 0, 0]);
    }
}
