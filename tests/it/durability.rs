//! Databases on servers that can't keep what they confirm, can't be written, or are found by several first starts at once.

use crate::node::{PATIENCE, Setup, Shell, eventually};
use crate::services::{DATABASE, MariaDb, Postgres};
use crate::wire::Value;

/// The exit code for what only a change of configuration can repair.
const CONFIG: i32 = 78;

/// The exit code for what may pass.
const FAILURE: i32 = 1;

/// `strict` refuses, `warn` says so everywhere, and a tag that promises order is refused while the check fails.
fn is_told(setup: Setup, store: &str, weakness: &str) {
    let setup = setup.set("database.durability", "strict");
    let (code, text) = setup.refused();
    assert_eq!(code, CONFIG, "{text}");
    for word in [weakness, "database.durability"] {
        assert!(text.contains(word), "{word:?} is missing: {text}");
    }
    let setup = setup.set("database.durability", "warn");
    let node = setup.start();
    eventually("the log tells", PATIENCE, || node.log().contains(weakness).then_some(()));
    assert_eq!(node.metric(&format!("idgen_store_durable{{store=\"{store}\"}}")), Some(0.0));
    let mut conn = node.connect();
    let refused = conn.call(&["IDTAG", "CREATE", "strict", "ORDER", "strict"]);
    assert!(refused.error().starts_with("IDTYPE ORDER strict needs a database that keeps"), "{refused:?}");
    assert_eq!(conn.call(&["IDTAG", "CREATE", "node"]), Value::Simple("OK".into()));
    assert_eq!(conn.call(&["IDGET", "node"]), Value::Int(1));
    let info = conn.call(&["IDINFO", "node"]);
    assert_eq!(info.field("guarantee").text(), "unique-unless-store-loses-commits");
    node.stop();
}

/// The same database, put right.
fn is_durable(setup: Setup, store: &str) {
    let node = setup.set("database.durability", "strict").start();
    assert_eq!(node.metric(&format!("idgen_store_durable{{store=\"{store}\"}}")), Some(1.0));
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDINFO", "node"]).field("guarantee").text(), "unique");
    assert_eq!(conn.call(&["IDTAG", "CREATE", "strict", "ORDER", "strict"]), Value::Simple("OK".into()));
    assert_eq!(conn.call(&["IDGET", "strict"]), Value::Int(1));
    node.stop();
}

fn setup(dsn: &str) -> Setup {
    Setup::in_memory().set("database.dsn", dsn)
}

#[test]
fn a_mariadb_that_flushes_later_is_told_and_has_no_strict_tags() {
    let server = MariaDb::start(&["--innodb-flush-log-at-trx-commit=0"]);
    let dsn = server.dsn(DATABASE);
    is_told(setup(&dsn), "mysql", "innodb_flush_log_at_trx_commit");
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 1");
    is_durable(setup(&dsn), "mysql");
}

#[test]
fn settings_that_are_weakened_under_a_running_node_close_its_strict_tags() {
    let server = MariaDb::start(&[]);
    let node = setup(&server.dsn(DATABASE)).start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDTAG", "CREATE", "strict", "ORDER", "strict"]), Value::Simple("OK".into()));
    assert_eq!(conn.call(&["IDGET", "strict"]), Value::Int(1));
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    let durable = "idgen_store_durable{store=\"mysql\"}";
    eventually("it is noticed", PATIENCE, || (node.metric(durable) == Some(0.0)).then_some(()));
    eventually("the tag is closed", PATIENCE, || {
        matches!(conn.call(&["IDGET", "strict"]), Value::Error(text) if text.starts_with("IDBACKEND ")).then_some(())
    });
    assert_eq!(conn.call(&["IDINFO", "strict"]).field("guarantee").text(), "unique-unless-store-loses-commits");
    assert!(node.log().contains("innodb_flush_log_at_trx_commit"), "the log names the setting");
    assert_eq!(conn.call(&["IDGET", "other"]), Value::Int(1), "other tags go on");
}

#[test]
fn a_postgresql_that_commits_later_is_told_and_has_no_strict_tags() {
    let server = Postgres::start(&[]);
    let dsn = server.dsn(DATABASE);
    server.sql("ALTER SYSTEM SET synchronous_commit = off");
    server.sql("SELECT pg_reload_conf()");
    is_told(setup(&dsn), "postgres", "synchronous_commit");
    server.sql("ALTER SYSTEM RESET synchronous_commit");
    server.sql("SELECT pg_reload_conf()");
    is_durable(setup(&dsn), "postgres");
}

/// What has not been copied yet is lost when the replica takes over.
#[test]
fn a_replica_that_is_not_waited_for_is_told() {
    let primary = Postgres::start(&[]);
    let _replica = Postgres::replica_of(&primary);
    let dsn = primary.dsn(DATABASE);
    is_told(setup(&dsn), "postgres", "synchronous_standby_names");
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.sql("SELECT pg_reload_conf()");
    is_durable(setup(&dsn), "postgres");
    let primary = MariaDb::start(&["--server-id=1", "--log-bin"]);
    let _replica = MariaDb::replica_of(&primary);
    is_told(setup(&primary.dsn(DATABASE)), "mysql", "semi-synchronous");
}

fn is_refused(dsn: &str) {
    for command in ["serve", "init"] {
        let (code, text) = setup(dsn).run(&[command]);
        assert_eq!(code, CONFIG, "{command}: {text}");
        assert!(text.contains("read-only") && text.contains("primary"), "{command}: {text}");
    }
}

#[test]
fn a_mariadb_that_can_not_be_written_is_refused_at_the_start() {
    let primary = MariaDb::start(&["--server-id=1", "--log-bin"]);
    setup(&primary.dsn(DATABASE)).start().stop();
    let replica = MariaDb::replica_of(&primary);
    is_refused(&MariaDb::dsn_at(replica.addr(), DATABASE));
    primary.sql("SET GLOBAL read_only = 1");
    is_refused(&MariaDb::dsn_at(primary.addr(), DATABASE));
}

#[test]
fn a_postgresql_that_can_not_be_written_is_refused_at_the_start() {
    let primary = Postgres::start(&[]);
    setup(&primary.dsn(DATABASE)).start().stop();
    let replica = Postgres::replica_of(&primary);
    is_refused(&Postgres::dsn_at(replica.addr(), DATABASE));
    let dsn = primary.dsn(DATABASE);
    primary.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    primary.sql("SELECT pg_reload_conf()");
    is_refused(&dsn);
}

/// What `idgen init` of each says, all at the same time.
fn at_once(setups: &[Setup; 4]) -> Vec<(i32, String)> {
    let mut nodes: Vec<_> = setups.iter().map(|setup| setup.spawn_as(&["init"])).collect();
    nodes.iter_mut().map(|node| (node.wait().code().unwrap_or(-1), node.log())).collect()
}

/// All succeed, and a node starts on what they have made.
fn all_succeed(setups: &[Setup; 4]) {
    for (code, text) in at_once(setups) {
        assert_eq!(code, 0, "{text}");
    }
    serves(&setups[0]);
}

fn serves(setup: &Setup) {
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDTAG", "CREATE", "order"]), Value::Simple("OK".into()));
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(1));
    node.stop();
}

#[test]
fn four_first_starts_at_once_all_succeed_on_mariadb() {
    let server = MariaDb::start(&[]);
    for database in ["one", "two", "three"] {
        let dsn = server.dsn(database);
        all_succeed(&std::array::from_fn(|_| setup(&dsn)));
        assert_eq!(server.sql_in(database, "SELECT count(*) FROM idgen_identity"), "1");
    }
}

#[test]
fn four_first_starts_at_once_all_succeed_on_postgresql() {
    let server = Postgres::start(&[]);
    for database in ["one", "two", "three"] {
        let dsn = server.dsn(database);
        all_succeed(&std::array::from_fn(|_| setup(&dsn)));
        assert_eq!(server.sql_in(database, "SELECT count(*) FROM idgen_identity"), "1");
    }
}

/// One process has a SQLite file for itself: who comes meanwhile is told who has it, and may try again.
#[test]
fn four_first_starts_at_once_make_one_sqlite_database() {
    let first = Setup::in_memory();
    let dsn = format!("sqlite://{}", first.database().display());
    let setups: [Setup; 4] = std::array::from_fn(|_| setup(&dsn));
    let mut made = 0;
    for (code, text) in at_once(&setups) {
        match code {
            0 => made += 1,
            _ => assert!(code == FAILURE && text.contains("in use"), "{code}: {text}"),
        }
    }
    assert!(made >= 1, "nobody made it");
    assert_eq!(Shell::run(&first.database(), "SELECT count(*) FROM idgen_identity"), "1");
    serves(&setups[0]);
}
