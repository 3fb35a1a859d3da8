//! The whole server on each database: statements for a million ids once the step has adapted, and ids a second of a tag that
//! is strict over all nodes.
//!
//! The databases are those of `tests/services`, whose addresses stand in `IDGEN_TEST_MYSQL_DSN` and
//! `IDGEN_TEST_POSTGRES_DSN`; without one its rows are missing, and `--check` fails.
//!
//! `cargo bench --bench database -- [--quick] [--check] [--save]`, as for `pipeline`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a benchmark may stop at the first surprise, and has to measure real time"
)]

use std::fmt::Write as _;
use std::time::Duration;

#[allow(dead_code, reason = "each benchmark uses a part of it")]
mod load;

use load::{Options, Server, measure, output};
use sqlx::Connection as _;

/// The most statements for a million ids at the adapted step.
const MOST_STATEMENTS: f64 = 20.0;

/// The fewest ids a second of a strict tag with as many clients waiting as [`WAITING`].
const LEAST_STRICT: f64 = 20_000.0;

/// Connections of the cached tag.
const CONNECTIONS: usize = 8;

/// Clients that each wait for one id of a strict tag.
const WAITING: usize = 200;

/// How long the load lasts before the step counts as adapted, in multiples of the measurement.
const ADAPTING: u32 = 3;

/// The databases that are there: the name, and the DSN of a new database on it.
fn databases() -> Vec<(&'static str, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let database = format!("idgen_bench_{}", std::process::id());
    let create = format!("CREATE DATABASE {database}");
    let mut found = Vec::new();
    if let Some(dsn) = server("IDGEN_TEST_MYSQL_DSN") {
        runtime.block_on(async {
            let mut connection = sqlx::MySqlConnection::connect(&dsn).await.unwrap();
            sqlx::query(sqlx::AssertSqlSafe(create.clone())).execute(&mut connection).await.unwrap();
        });
        found.push(("mysql", within(&dsn, &database)));
    }
    if let Some(dsn) = server("IDGEN_TEST_POSTGRES_DSN") {
        runtime.block_on(async {
            let mut connection = sqlx::PgConnection::connect(&dsn).await.unwrap();
            sqlx::query(sqlx::AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
        });
        found.push(("postgres", within(&dsn, &database)));
    }
    found.push(("sqlite", "sqlite://idgen-data/idgen.db".to_owned()));
    found
}

fn server(variable: &str) -> Option<String> {
    let dsn = std::env::var(variable).ok();
    if dsn.is_none() {
        println!("{variable} is not set: eval \"$(tests/services start)\"; its rows are missing");
    }
    dsn
}

/// The DSN with another database.
fn within(dsn: &str, database: &str) -> String {
    let (server, _) = dsn.rsplit_once('/').unwrap();
    format!("{server}/{database}")
}

/// The table, and what is wrong with it.
fn run(time: Duration) -> (String, Vec<String>) {
    let mut table = String::from(
        "| database | IDGET/s at depth 128 | adapted step | statements for a million ids | strict IDGET/s | grants/s |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut wrong = Vec::new();
    let databases = databases();
    if databases.len() < 3 {
        wrong.push("a database is missing".to_owned());
    }
    for (name, dsn) in databases {
        let folder = tempfile::Builder::new().prefix("idgen-bench-").tempdir().unwrap();
        let settings = [("IDGEN__DATABASE__DSN", dsn.as_str()), ("IDGEN__SERVER__WAIT_MAX", "5s")];
        let node = Server::idgen(folder.path(), &settings);
        let count = |server: &Server| {
            let ids = server.metric("idgen_ids_issued_total{biz_tag=\"bench\"");
            (ids, server.metric("idgen_segment_fetch_total{biz_tag=\"bench\""))
        };
        measure(&node, CONNECTIONS, 128, time * ADAPTING);
        let (ids, fetches) = count(&node);
        let cached = measure(&node, CONNECTIONS, 128, time);
        let (ids, fetches) = (count(&node).0 - ids, count(&node).1 - fetches);
        let statements = fetches / ids * 1e6;
        let step = node.metric("idgen_segment_step{biz_tag=\"bench\"");
        drop(node);

        let strict = Server::idgen(folder.path(), &settings).asking(&["IDGET", "strict"]);
        let created = strict.ask(&["IDTAG", "CREATE", "strict", "ORDER", "strict"]);
        assert_eq!(created.as_deref(), Some("+OK"), "{name}");
        let grants = || strict.metric("idgen_segment_fetch_total{biz_tag=\"strict\"");
        measure(&strict, WAITING, 1, time / 5);
        let before = grants();
        let ordered = measure(&strict, WAITING, 1, time);
        let grants = (grants() - before) / (time.as_secs_f64() * 1.2);
        writeln!(
            table,
            "| {name} | {:.0} | {step:.0} | {statements:.1} | {:.0} | {grants:.0} |",
            cached.requests_per_second, ordered.requests_per_second
        )
        .unwrap();
        assert_eq!((cached.errors, ordered.errors), (0, 0), "{name}: a rate measured on errors is none");
        if statements > MOST_STATEMENTS {
            wrong.push(format!("{name}: {statements:.1} statements for a million ids, the most is {MOST_STATEMENTS}"));
        }
        if name == "mysql" && ordered.requests_per_second < LEAST_STRICT {
            let reached = ordered.requests_per_second;
            wrong.push(format!("{name}: {reached:.0} strict ids a second, the least is {LEAST_STRICT}"));
        }
    }
    (table, wrong)
}

fn main() {
    let options = Options::read();
    let time = if options.quick { Duration::from_millis(500) } else { Duration::from_secs(5) };
    let (table, wrong) = run(time);
    let facts = format!(
        "- {}\n- one tag with the default step over {CONNECTIONS} connections; one strict tag with {WAITING} clients that each \
         wait for one id; client, server and database on the same machine, the databases on a disk in memory\n",
        output("mariadbd", &["--version"])
    );
    options.finish("database", &facts, &table, &wrong);
}
