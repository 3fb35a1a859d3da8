//! What the conformance suite does not see: the server's faults, what people do to it, and what a wrong grant would do.

use std::collections::HashSet;

use super::*;
use crate::store::identity::{self, Identity, Wanted};
use crate::store::servers::MySqlDatabase;
use crate::store::{EngineKind, Order};

fn definition() -> Definition {
    Definition {
        engine: EngineKind::Segment,
        order: Order::Node,
        step: 1000,
        min_step: 100,
        max_step: 1_000_000,
        id_limit: MAX_ID,
        qps: 0,
        burst: 0,
        critical: false,
        description: String::new(),
    }
}

async fn tag(store: &MySql, name: &str) -> TagName {
    let tag = TagName::new(name.as_bytes()).expect("a tag");
    store.create(&tag, &definition(), 1, 100).await.expect("create");
    tag
}

/// Grants from `tasks` tasks at once, `each` each; gives the ranges.
async fn storm(store: &MySql, tag: &TagName, tasks: usize, each: usize) -> Vec<IdRange> {
    let grants = (0..tasks).map(|_| {
        let (store, tag) = (store.clone(), tag.clone());
        tokio::spawn(async move {
            let mut ranges = Vec::with_capacity(each);
            for _ in 0..each {
                ranges.push(store.grant(&tag, 10).await.expect("grant").range);
            }
            ranges
        })
    });
    let mut ranges = Vec::new();
    for grant in grants.collect::<Vec<_>>() {
        ranges.extend(grant.await.expect("no panic"));
    }
    ranges
}

fn all_differ(ranges: &[IdRange]) -> bool {
    let starts: HashSet<u64> = ranges.iter().map(|range| range.start()).collect();
    starts.len() == ranges.len()
}

/// The seeded bug B6: the control that shows that the test above it can fail.
#[tokio::test]
async fn an_update_followed_by_a_select_gives_one_range_to_two_callers_and_a_grant_does_not() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let tag = tag(&store, "order").await;
    let wrong = store.clone().with_rules(Rules { update_then_select: true });
    let mut rounds = 0;
    while all_differ(&storm(&wrong, &tag, 8, 25).await) {
        rounds += 1;
        assert!(rounds < 50, "the seeded bug was not found in {rounds} rounds");
    }
    let ranges = storm(&store, &tag, 8, 100).await;
    assert!(all_differ(&ranges));
    let (first, last) = (ranges.iter().map(|range| range.start()).min(), ranges.iter().map(|range| range.last()).max());
    assert_eq!(last.zip(first).map(|(last, first)| last - first + 1), Some(8 * 100 * 10), "no gap");
}

#[tokio::test]
async fn tags_that_differ_in_case_are_two() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let (lower, upper) = (tag(&store, "order").await, tag(&store, "ORDER").await);
    assert_eq!(store.count().await, Ok(2));
    store.grant(&lower, 5).await.expect("grant");
    assert_eq!(store.grant(&upper, 5).await.expect("grant").range.start(), 1);
    assert_eq!(store.find(&TagName::new(b"Order").expect("a tag")).await, Ok(None));
}

#[tokio::test]
async fn ids_end_at_the_largest_and_the_last_range_is_granted_whole() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let tag = tag(&store, "order").await;
    store.raise_floor(&tag, MAX_ID - 7).await.expect("floor");
    assert_eq!(store.grant(&tag, 5).await.expect("grant").range.last(), MAX_ID - 2);
    let rest = store.grant(&tag, 5).await.expect("grant").range;
    assert_eq!((rest.start(), rest.last()), (MAX_ID - 1, MAX_ID));
    for count in [1, 5, MAX_ID] {
        assert_eq!(store.grant(&tag, count).await.expect_err("nothing is left").kind, Kind::Exhausted);
    }
}

#[tokio::test]
async fn nothing_moves_a_counter_out_of_bounds() {
    let database = MySqlDatabase::new().await;
    tag(&database.store().await, "order").await;
    let mut connection = database.connection().await;
    connection.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES'").await.expect("set");
    for sql in [
        "UPDATE id_alloc SET max_id = 9223372036854775807 + 1",
        "UPDATE id_alloc SET max_id = -1",
        "UPDATE id_alloc SET id_limit = 5, max_id = 6",
        "UPDATE id_alloc SET floor = max_id + 1",
        "UPDATE id_alloc SET step = 0",
        "UPDATE id_alloc SET step = -5",
    ] {
        assert!(connection.execute(sql).await.is_err(), "{sql}");
    }
}

fn wanted() -> Wanted {
    Wanted { registry: "sql", datacenter_id: 0, layout: "a layout".into() }
}

#[tokio::test]
async fn four_first_starts_at_once_all_succeed_and_agree() {
    let database = MySqlDatabase::new().await;
    let starts = (0..4).map(|_| {
        let config = database.config();
        tokio::spawn(async move {
            let store = MySql::open(&config, true).await.expect("opened");
            let bounds = async |connection: &mut MySqlConnection| {
                let sql = "INSERT INTO worker_bound VALUES (0, 0, 0, REPEAT('0', 32), 0, 0, '', 1)";
                connection.execute(sql).await.map(drop)
            };
            identity::ensure(store.found().await.expect("begun"), &wanted(), bounds).await.expect("agreed")
        })
    });
    let mut clusters = HashSet::new();
    let mut created = 0;
    for start in starts.collect::<Vec<_>>() {
        let identity = start.await.expect("no panic");
        created += u32::from(matches!(identity, Identity::Created(_)));
        let (Identity::Created(cluster) | Identity::Same(cluster)) = identity;
        clusters.insert(cluster);
    }
    assert_eq!((clusters.len(), created), (1, 1));
}

#[tokio::test]
async fn an_identity_that_was_not_completed_was_not_written() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let fails = async |_: &mut MySqlConnection| Err(sqlx::Error::RowNotFound);
    identity::ensure(store.found().await.expect("begun"), &wanted(), fails).await.expect_err("no bounds");
    let works = async |_: &mut MySqlConnection| Ok(());
    let again = identity::ensure(store.found().await.expect("begun"), &wanted(), works).await;
    assert!(matches!(again, Ok(Identity::Created(_))), "{again:?}");
    let other = Wanted { datacenter_id: 3, ..wanted() };
    identity::ensure(store.found().await.expect("begun"), &other, works).await.expect_err("another datacenter");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_a_migration_that_broke_off_is_repeated() {
    let database = MySqlDatabase::new().await;
    assert!(matches!(MySql::open(&database.config(), false).await, Err(OpenError::Empty(_))));
    tag(&database.store().await, "order").await;
    let mut connection = database.connection().await;
    connection.execute("DROP TABLE worker_bound; UPDATE idgen_schema SET version = 0").await.expect("set back");
    assert_eq!(database.store().await.count().await, Ok(1), "what was there is kept");
    connection.execute("SELECT w FROM worker_bound").await.expect("made again");
    connection.execute("UPDATE idgen_schema SET version = 99").await.expect("set ahead");
    let error = MySql::open(&database.config(), true).await.expect_err("refused");
    assert!(matches!(error, OpenError::Newer(_, 99, _)), "{error}");
}

#[tokio::test]
async fn a_lock_that_somebody_else_holds_is_not_waited_for_long() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let tag = tag(&store, "order").await;
    let mut other = database.connection().await;
    other.execute("BEGIN; UPDATE id_alloc SET step = 1001").await.expect("the row is held");
    let waited = tokio::time::timeout(Duration::from_secs(5), store.grant(&tag, 1)).await.expect("in time");
    let error = waited.expect_err("held");
    assert_eq!((error.kind, error.reason), (Kind::Transient, "locked"), "{error}");
    other.execute("ROLLBACK").await.expect("let go");
    assert_eq!(store.grant(&tag, 1).await.expect("grant").range.start(), 1, "nothing had happened");
}

/// The connection on which a statement of the store waits.
async fn waiting(connection: &mut MySqlConnection, tables: &str) -> u64 {
    let sql = format!(
        "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Execute' AND DB = DATABASE() \
         AND INFO LIKE '{tables}%' LIMIT 1"
    );
    for _ in 0..200 {
        let found = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.as_str())).fetch_optional(&mut *connection).await;
        if let Some(row) = found.expect("the list") {
            return row.try_get::<i64, _>(0).map(|id| u64::try_from(id).expect("an id")).expect("an id");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no statement waits");
}

#[tokio::test]
async fn a_grant_whose_connection_is_killed_is_unknown_and_the_next_one_works() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let tag = tag(&store, "order").await;
    let mut other = database.connection().await;
    other.execute("BEGIN; UPDATE id_alloc SET step = 1001").await.expect("the row is held");
    let grant = tokio::spawn({
        let (store, tag) = (store.clone(), tag.clone());
        async move { store.grant(&tag, 10).await }
    });
    let id = waiting(&mut database.connection().await, "UPDATE id_alloc SET max_id").await;
    database.connection().await.execute(sqlx::AssertSqlSafe(format!("KILL {id}"))).await.expect("killed");
    let error = grant.await.expect("no panic").expect_err("cut off");
    assert_eq!(error.kind, Kind::Unknown, "{error}");
    other.execute("ROLLBACK").await.expect("let go");
    store.grant(&tag, 10).await.expect("on another connection");
}

#[tokio::test]
async fn a_grant_that_gets_no_answer_in_time_is_unknown_and_its_connection_is_closed() {
    let database = MySqlDatabase::new().await;
    let config = Config { statement_timeout: Duration::from_millis(300), max_open_conns: 1, ..database.config() };
    let store = MySql::open(&config, true).await.expect("opened");
    let tag = tag(&store, "order").await;
    let mut other = database.connection().await;
    other.execute("BEGIN; UPDATE id_alloc SET step = 1001").await.expect("the row is held");
    let error = store.grant(&tag, 10).await.expect_err("held");
    assert_eq!(error.kind, Kind::Unknown, "{error}");
    other.execute("ROLLBACK").await.expect("let go");
    store.grant(&tag, 10).await.expect("the one connection is free again");
}

/// A connection on which `sql` was run.
async fn on_a_connection(store: &MySql, sql: &'static str) -> Held {
    let mut held = store.acquire().await.expect("a connection");
    held.connection().expect("open").execute(sql).await.expect("run");
    held.settled();
    held
}

#[tokio::test]
async fn an_idle_connection_that_the_server_has_closed_is_not_met() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let tag = tag(&store, "order").await;
    let first = on_a_connection(&store, "SET SESSION wait_timeout = 1").await;
    drop((first, on_a_connection(&store, "SET SESSION wait_timeout = 1").await));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(store.grant(&tag, 1).await.expect("on a new connection").range.start(), 1);
}

/// A session that may only read is refused as by a replica, and disturbs no other test on the server.
#[tokio::test]
async fn a_server_that_has_become_read_only_is_told_apart_and_all_connections_to_it_are_left() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let tag = tag(&store, "order").await;
    // What a replica answers, for all connections of the store that are open now.
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(on_a_connection(&store, "SET SESSION TRANSACTION READ ONLY").await);
    }
    drop(all);
    let mut refused = 0;
    while let Err(error) = store.grant(&tag, 1).await {
        assert_eq!((error.kind, error.reason), (Kind::Transient, "readonly"), "{error}");
        assert!(!error.text.to_ascii_lowercase().contains("readonly") && !error.text.contains("read-only"), "{error}");
        refused += 1;
        assert!(refused <= 2, "the connections that lead there are closed");
    }
    assert!(refused >= 1, "no connection was read-only");
    assert_eq!(store.grant(&tag, 1).await.expect("the new primary").range.start(), 2);
}

#[tokio::test]
async fn weak_settings_of_the_server_are_told() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let settings = store.settings().await.expect("settings");
    assert!(settings.0.contains_key("innodb_flush_log_at_trx_commit") && settings.0.contains_key("sync_binlog"));
    assert_eq!(settings.read_only(), None);
}

#[tokio::test]
async fn every_connection_commits_by_itself_and_waits_for_a_short_time_only() {
    let database = MySqlDatabase::new().await;
    let store = database.store().await;
    let mut held = store.acquire().await.expect("a connection");
    let connection = held.connection().expect("open");
    for (variable, expected) in [("autocommit", 1), ("innodb_lock_wait_timeout", 2), ("lock_wait_timeout", 2)] {
        let sql = sqlx::AssertSqlSafe(format!("SELECT CAST(@@SESSION.{variable} + 0 AS SIGNED)"));
        let value: i64 = sqlx::query_scalar(sql).fetch_one(&mut *connection).await.expect("a variable");
        assert_eq!(value, expected, "{variable}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_or_lets_nobody_in_is_told_without_the_password() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("a port").port();
    drop(listener);
    let config = Config { dsn: format!("mysql://u:c4n4ry@127.0.0.1:{port}/d"), ..Config::default() };
    let error = MySql::open(&config, true).await.expect_err("nobody listens");
    assert!(matches!(error, OpenError::Unreachable(..)) && error.may_pass(), "{error}");
    assert!(!error.to_string().contains("c4n4ry"));
    let database = MySqlDatabase::new().await;
    let place = database.config().server().expect("a server");
    let dsn = format!("mysql://nobody:c4n4ry@{}:{}/{}", place.host, place.port, place.database);
    let error = MySql::open(&Config { dsn, ..Config::default() }, true).await.expect_err("refused");
    assert!(matches!(error, OpenError::Login(..)) && !error.may_pass(), "{error}");
    assert!(!error.to_string().contains("c4n4ry") && error.to_string().contains("database.dsn"), "{error}");
}
