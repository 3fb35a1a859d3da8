//! What a real server does to a grant, to a start and to a connection.

use std::time::Duration;

use super::testing::{Database, Fault, PgBouncer, Proxy};
use super::*;
use crate::clock::{Clock as _, SystemClock};
use crate::store::identity::{Identity, Wanted, ensure};
use crate::store::{EngineKind, Order};

async fn open(config: &Config) -> Result<Postgres, OpenError> {
    Postgres::open(config, true).await
}

async fn opened(database: &Database) -> Postgres {
    open(&database.config(None)).await.expect("a new database")
}

async fn with_tag(store: &Postgres) -> TagName {
    let definition = Definition {
        engine: EngineKind::Segment,
        order: Order::Node,
        step: 1000,
        min_step: 100,
        max_step: 1_000_000,
        id_limit: MAX_ID,
        qps: 0,
        burst: 0,
        critical: false,
        description: "it's \\ a 'line' of; text — €".into(),
    };
    let tag = TagName::new(b"order;--$1`").expect("a tag");
    let (row, created) = store.create(&tag, &definition, 1, 10).await.expect("create");
    assert!(created && row.definition == definition);
    assert_eq!(store.find(&tag).await.expect("find").expect("a row").definition, definition);
    tag
}

/// Waits until a session of the database waits for a lock.
async fn until_one_waits(database: &Database) {
    let sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waits = async { while database.run(sql).await.expect("the activity").is_empty() {} };
    tokio::time::timeout(Duration::from_secs(10), waits).await.expect("nobody waits");
}

#[tokio::test]
async fn nothing_moves_a_counter_out_of_bounds() {
    let database = Database::new().await;
    let store = opened(&database).await;
    with_tag(&store).await;
    for sql in [
        "UPDATE id_alloc SET max_id = 9223372036854775807 + 1",
        "UPDATE id_alloc SET max_id = -1",
        "UPDATE id_alloc SET id_limit = 5, max_id = 6",
        "UPDATE id_alloc SET floor = max_id + 1",
        "UPDATE id_alloc SET step = 0",
        "UPDATE id_alloc SET step = -5",
        "UPDATE id_alloc SET grant_nonce = decode('00', 'hex')",
        "UPDATE id_alloc SET retired = 2",
        "INSERT INTO id_alloc_revision VALUES (2, 0)",
    ] {
        assert!(database.run(sql).await.is_err(), "{sql}");
    }
    let collation = "SELECT 1 FROM pg_attribute JOIN pg_collation ON attcollation = pg_collation.oid \
                     WHERE attrelid = 'id_alloc'::regclass AND attname = 'biz_tag' AND collname = 'C'";
    assert_eq!(database.run(collation).await.expect("columns").len(), 1, "tags are compared by their bytes");
}

#[tokio::test]
async fn four_first_starts_at_once_all_succeed_and_agree() {
    let database = Database::new().await;
    let start = || async {
        let store = open(&database.config(None)).await.expect("a start");
        let wanted = Wanted { registry: "sql", datacenter_id: 0, layout: "a layout".into() };
        let transaction = store.found().await.expect("a transaction");
        let identity = ensure(transaction, &wanted, async |_: &mut sqlx::PgConnection| Ok(())).await;
        store.close().await;
        identity.expect("an identity")
    };
    let identities = tokio::join!(start(), start(), start(), start());
    let identities: [Identity; 4] = identities.into();
    let created = identities.iter().filter(|identity| matches!(identity, Identity::Created(_))).count();
    assert_eq!(created, 1, "{identities:?}");
    let cluster = |identity: &Identity| match identity {
        Identity::Created(cluster) | Identity::Same(cluster) => cluster.clone(),
    };
    assert!(identities.iter().all(|identity| cluster(identity) == cluster(&identities[0])), "{identities:?}");
    assert_eq!(database.run("SELECT 1 FROM id_alloc_revision").await.expect("rows").len(), 1);
}

#[tokio::test]
async fn only_tables_of_this_program_or_an_older_one_are_used() {
    let database = Database::new().await;
    let error = Postgres::open(&database.config(None), false).await.expect_err("no tables");
    assert!(matches!(error, OpenError::Empty(_)) && !error.may_pass(), "{error}");
    database.run("CREATE TABLE id_alloc (biz_tag TEXT)").await.expect("another program's table");
    let error = open(&database.config(None)).await.expect_err("not ours");
    assert!(error.to_string().contains("id_alloc"), "{error}");
    database.run("DROP TABLE id_alloc").await.expect("dropped");
    opened(&database).await.close().await;
    Postgres::open(&database.config(None), false).await.expect("the tables stand").close().await;
    database.run("UPDATE idgen_schema SET version = version + 1").await.expect("a newer program's");
    let error = open(&database.config(None)).await.expect_err("newer");
    assert!(matches!(error, OpenError::Newer(_, 3, 2)) && !error.may_pass(), "{error}");
}

#[tokio::test]
async fn a_row_counts_only_once_its_commit_is_confirmed() {
    let database = Database::new().await;
    let proxy = Proxy::new(&database.server).await;
    let store = open(&database.config(Some(proxy.port))).await.expect("a new database");
    let tag = with_tag(&store).await;
    let mut highest = 0;
    for _ in 0..20 {
        proxy.set(Fault::CutAfterRow);
        let error = store.grant(&tag, 10).await.expect_err("cut off");
        assert_eq!((error.kind, error.reason), (Kind::Unknown, "connection"), "{error}");
        proxy.set(Fault::None);
        let range = store.grant(&tag, 10).await.expect("on a new connection").range;
        assert!(range.start() > highest + 10, "the range that was cut off is not given again: {range:?}");
        highest = range.last();
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_leaves_a_grant_unknown_and_is_left() {
    let database = Database::new().await;
    let proxy = Proxy::new(&database.server).await;
    let config = Config { statement_timeout: Duration::from_millis(300), ..database.config(Some(proxy.port)) };
    let store = open(&config).await.expect("a new database");
    let tag = with_tag(&store).await;
    // No connection has to be made while the server is silent.
    store.grant(&tag, 10).await.expect("grant");
    proxy.set(Fault::Silence);
    let error = store.grant(&tag, 10).await.expect_err("silence");
    assert_eq!((error.kind, error.reason), (Kind::Unknown, "timeout"), "{error}");
    let error = store.find(&tag).await.expect_err("silence");
    assert_eq!(error.kind, Kind::Transient, "{error}");
    proxy.set(Fault::None);
    assert!(store.grant(&tag, 10).await.expect("on a new connection").range.start() >= 11);
}

#[tokio::test]
async fn a_session_that_is_ended_in_the_middle_of_a_grant_leaves_it_unknown() {
    let database = Database::new().await;
    let store = opened(&database).await;
    let tag = with_tag(&store).await;
    let mut other = database.connect().await;
    sqlx::raw_sql("BEGIN; SELECT 1 FROM id_alloc FOR UPDATE").execute(&mut other).await.expect("the lock");
    let grant = tokio::spawn({
        let (store, tag) = (store.clone(), tag.clone());
        async move { store.grant(&tag, 10).await }
    });
    until_one_waits(&database).await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    database.run(end).await.expect("ended");
    let error = grant.await.expect("a task").expect_err("ended");
    assert_eq!((error.kind, error.reason), (Kind::Unknown, "connection"), "{error}");
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.expect("released");
    assert_eq!(store.grant(&tag, 10).await.expect("on a new connection").range.last(), 10);
}

#[tokio::test]
async fn a_row_that_somebody_else_holds_is_given_up_after_two_seconds() {
    let database = Database::new().await;
    let store = opened(&database).await;
    let tag = with_tag(&store).await;
    let mut other = database.connect().await;
    sqlx::raw_sql("BEGIN; UPDATE id_alloc SET step = step").execute(&mut other).await.expect("the lock");
    let begun = SystemClock.boot();
    let (grant, change) = tokio::join!(store.grant(&tag, 10), store.retire(&tag));
    let took = SystemClock.boot().since(begun);
    for error in [grant.expect_err("held"), change.expect_err("held")] {
        assert_eq!((error.kind, error.reason), (Kind::Transient, "locked"), "{error}");
    }
    assert!((Duration::from_millis(1900)..Duration::from_secs(8)).contains(&took), "{took:?}");
    sqlx::raw_sql("COMMIT").execute(&mut other).await.expect("released");
    assert_eq!(store.grant(&tag, 10).await.expect("grant").range.last(), 10, "nothing was granted meanwhile");
}

#[tokio::test]
async fn a_server_that_was_made_read_only_is_left_at_once() {
    let database = Database::new().await;
    let store = opened(&database).await;
    let tag = with_tag(&store).await;
    database.run("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$").await.expect("fenced");
    database.end_sessions().await;
    let refused = open(&database.config(None)).await.expect_err("a start there");
    assert!(matches!(refused, OpenError::ReadOnly(..)) && !refused.may_pass(), "{refused}");
    // Its session was ended, unless that was noticed already.
    let ended = store.grant(&tag, 10).await.expect_err("not written to");
    assert!(["connection", "readonly"].contains(&ended.reason), "{ended}");
    let error = store.grant(&tag, 10).await.expect_err("fenced");
    assert_eq!((error.kind, error.reason), (Kind::Transient, "readonly"), "{error}");
    let back = "BEGIN READ WRITE; DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', \
                current_database()); END $$; COMMIT";
    database.run(back).await.expect("lifted");
    // Sessions from before would go on refusing.
    assert_eq!(store.grant(&tag, 10).await.expect("on a new connection").range.last(), 10);
}

#[tokio::test]
async fn connections_that_were_closed_while_idle_are_not_noticed() {
    let database = Database::new().await;
    let store = opened(&database).await;
    let tag = with_tag(&store).await;
    database.end_sessions().await;
    // Longer than a connection is trusted without a look at it.
    tokio::time::sleep(crate::store::network::TRUSTED_IDLE + Duration::from_millis(200)).await;
    assert_eq!(store.grant(&tag, 10).await.expect("no error").range.last(), 10);
}

#[tokio::test]
async fn a_change_that_is_given_up_leaves_its_connection_usable() {
    let database = Database::new().await;
    let config = Config { max_open_conns: 1, ..database.config(None) };
    let store = open(&config).await.expect("a new database");
    let tag = with_tag(&store).await;
    for _ in 0..20 {
        let (_, created) = store
            .create(&tag, &store.find(&tag).await.expect("find").expect("a row").definition, 1, 10)
            .await
            .expect("the row that stands");
        assert!(!created);
        let missing = TagName::new(b"missing").expect("a tag");
        assert_eq!(store.retire(&missing).await.expect_err("no row").kind, Kind::Missing);
    }
    let open =
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert!(database.run(open).await.expect("the activity").is_empty(), "a transaction was left open");
}

#[tokio::test]
async fn an_unreachable_server_is_told_without_secrets_and_nothing_has_happened() {
    let database = Database::new().await;
    let proxy = Proxy::new(&database.server).await;
    let config = database.config(Some(proxy.port));
    let store = open(&config).await.expect("a new database");
    let tag = with_tag(&store).await;
    let port = proxy.port;
    drop(proxy);
    database.end_sessions().await;
    let ended = store.grant(&tag, 10).await.expect_err("its session was ended");
    assert_eq!((ended.kind, ended.reason), (Kind::Unknown, "connection"), "{ended}");
    let error = store.grant(&tag, 10).await.expect_err("nobody listens");
    assert_eq!((error.kind, error.reason), (Kind::Transient, "connection"), "{error}");
    let dsn = format!("postgres://somebody:c4n4ry@127.0.0.1:{port}/ids");
    let error = open(&Config { dsn, ..config }).await.expect_err("nobody listens");
    let text = format!("{error} {error:?} {store:?}");
    assert!(matches!(error, OpenError::Unreachable(..)) && error.may_pass(), "{error}");
    assert!(!text.contains("c4n4ry") && text.contains(&format!("127.0.0.1:{port}/ids")), "{text}");
}

#[tokio::test]
async fn settings_that_lose_commits_are_told() {
    let database = Database::new().await;
    let store = opened(&database).await;
    let before = store.durability().await.expect("settings");
    assert!(before.iter().all(|text| text.starts_with("fsync")), "a test server may run without fsync: {before:?}");
    let sql = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$; \
               ALTER TABLE id_alloc SET UNLOGGED";
    database.run(sql).await.expect("weakened");
    store.close().await;
    let found = opened(&database).await.durability().await.expect("settings");
    for word in ["synchronous_commit", "UNLOGGED"] {
        assert!(found.iter().any(|text| text.contains(word)), "{word}: {found:?}");
    }
}

#[tokio::test]
async fn many_nodes_behind_pgbouncer_share_two_connections_and_no_id() {
    let database = Database::new().await;
    let bouncer = PgBouncer::start(&database.server).await;
    let mut tasks = Vec::new();
    for node in 0..4_u64 {
        let config = database.config(Some(bouncer.port));
        tasks.push(tokio::spawn(async move {
            let store = open(&config).await.expect("a start");
            let definition = Definition {
                engine: EngineKind::Segment,
                order: Order::Node,
                step: 10,
                min_step: 1,
                max_step: 100,
                id_limit: MAX_ID,
                qps: 0,
                burst: 0,
                critical: false,
                description: String::new(),
            };
            let tag = TagName::new(b"order").expect("a tag");
            store.create(&tag, &definition, 1, 10).await.expect("create");
            let mut ranges = Vec::new();
            for n in 0..50 {
                ranges.push(store.grant(&tag, 1 + (n + node) % 7).await.expect("grant").range);
                if n % 10 == 0 {
                    store.alter(&tag, &Alteration { qps: Some(n), ..Alteration::default() }).await.expect("alter");
                }
            }
            ranges
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a node"));
    }
    all.sort_unstable();
    assert!(all.len() == 200 && all.windows(2).all(|pair| pair[0].end() == pair[1].start()), "{all:?}");
    // A lock that is held ends as without a pooler: the limits pass through it.
    let store = open(&database.config(Some(bouncer.port))).await.expect("a start");
    let mut other = database.connect().await;
    sqlx::raw_sql("BEGIN; UPDATE id_alloc SET step = step").execute(&mut other).await.expect("the lock");
    let error = store.grant(&TagName::new(b"order").expect("a tag"), 10).await.expect_err("held");
    assert_eq!((error.kind, error.reason), (Kind::Transient, "locked"), "{error}");
}
