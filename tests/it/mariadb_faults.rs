//! Faults of MariaDB that pass: a server that is down, silent, slow, locked, deadlocked, read-only or impatient costs
//! waiting and skipped ids, and nothing has to be started again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::chaos::{Protocol, Proxy, To};
use crate::node::{PATIENCE, Setup, eventually};
use crate::outage::{
    Drawn, RECOVERY, SLACK, STEP, Stage, WAIT_MAX, discarded, failures, few, initialised, many, of_store, ok, on,
    outage, regressions,
};
use crate::services::{DATABASE, MariaDb};
use crate::wire::Conn;

/// A time limit for statements that lets an outage be noticed soon.
fn impatient(setup: Setup) -> Setup {
    setup.set("database.statement_timeout", "1s")
}

#[test]
fn a_stopped_mariadb_is_outlived_and_found_again() {
    let Stage { mut server, proxy, setup: _setup, node } = Stage::start(impatient);
    let cell = std::cell::RefCell::new(&mut server);
    outage(&node, "mysql", || cell.borrow_mut().stop(), || cell.borrow_mut().start_again());
    drop(proxy);
}

#[test]
fn a_mariadb_that_accepts_and_says_nothing_is_outlived() {
    let stage = Stage::start(impatient);
    outage(&stage.node, "mysql", || stage.proxy.stall(), || stage.proxy.pass());
    // What timed out may have happened.
    let times = failures(&stage.node, "few", "timeout");
    assert!(times >= 1, "{times} statements ran out of time");
    assert_eq!(discarded(&stage.node, "unknown"), times * STEP.unsigned_abs());
}

#[test]
fn half_open_connections_to_mariadb_are_outlived() {
    let stage = Stage::start(impatient);
    outage(&stage.node, "mysql", || stage.proxy.swallow(To::Client), || stage.proxy.pass());
    assert!(failures(&stage.node, "few", "timeout") >= 1);
}

#[test]
fn a_mariadb_behind_a_way_of_two_seconds_is_outlived() {
    let stage = Stage::start(impatient);
    outage(&stage.node, "mysql", || stage.proxy.delay(To::Server, Duration::from_secs(2)), || stage.proxy.pass());
}

/// What the statement of a grant has and no other.
const GRANT: &str = "LAST_INSERT_ID(max_id";

/// Each grant takes two seconds: the step grows, and a tag never has two grants in flight.
#[test]
fn a_mariadb_that_takes_two_seconds_a_grant_makes_the_step_grow() {
    let stage = Stage::start(|setup| setup.set("database.statement_timeout", "10s").set("server.wait_max", "10s"));
    let mut conn = stage.node.connect();
    let mut drawn = Drawn::of("grows");
    ok(&mut conn, &["IDTAG", "CREATE", "grows", "STEP", "100", "MINSTEP", "100", "MAXSTEP", "1000000"]);
    drawn.draw_all(&mut conn, 1);
    let node = stage.node.addr();
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let drawing = scope.spawn(|| {
            let mut conn = Conn::try_connect(node).unwrap();
            while !enough.load(Ordering::Relaxed) {
                drawn.draw_all(&mut conn, 10);
            }
        });
        for grant in 1..=4 {
            stage.proxy.hold(GRANT, 100);
            eventually("a grant is asked for", PATIENCE, || (stage.proxy.counts().held == grant).then_some(()));
            std::thread::sleep(Duration::from_secs(2)); // what the database takes
            assert_eq!(stage.proxy.counts().held, grant, "a second grant of the tag is in flight");
            stage.proxy.release();
        }
        enough.store(true, Ordering::Relaxed);
        drawing.join().unwrap();
    });
    let step = conn.call(&["IDINFO", "grows"]).field("step").int();
    assert!(step >= 400, "the step is {step}");
    drawn.distinct().unwrap();
    assert_eq!(discarded(&stage.node, "unknown"), 0);
}

#[test]
fn a_row_that_somebody_holds_stops_its_own_tag_alone() {
    let stage = Stage::start(|setup| setup);
    let mut conn = stage.node.connect();
    for tag in ["few", "other"] {
        few(&mut conn, tag);
    }
    let (mut held, mut other) = (Drawn::of("few"), Drawn::of("other"));
    held.draw_all(&mut conn, 1);
    let session = stage.server.hold("BEGIN; SELECT max_id FROM id_alloc WHERE biz_tag = 'few' FOR UPDATE");
    let (text, took) = held.use_up(&mut conn, 200);
    assert!(took < WAIT_MAX + SLACK, "{took:?} until {text}");
    // The lock wait ends after two seconds; only then is there a cause to tell.
    eventually("the lock is told", PATIENCE, || {
        other.draw_all(&mut conn, 50);
        held.draw(&mut conn).is_err_and(|text| text.starts_with("IDBACKEND ")).then_some(())
    });
    eventually("several waits have ended", PATIENCE, || {
        other.draw_all(&mut conn, 50);
        let _shortage = held.draw(&mut conn).expect_err("an id of a row that is held");
        (failures(&stage.node, "few", "locked") >= 3).then_some(())
    });
    assert_eq!(of_store(&stage.node, "idgen_circuit_state", "mysql"), 0, "a lock says nothing about the store");
    let connections = stage.server.connections();
    assert!(connections <= 6, "{connections} connections for one tag at work and one that waits");
    assert_eq!(discarded(&stage.node, "unknown"), 0, "a lock wait that ended has surely done nothing");
    drop(session);
    held.recovers(&mut conn, RECOVERY);
    held.draw_all(&mut conn, 300);
    held.distinct().unwrap();
    other.distinct().unwrap();
}

/// A real deadlock: the session holds an entry of an index that the grant changes, and then wants the grant's row.
#[test]
fn a_deadlock_is_tried_again_and_no_client_hears_of_it() {
    let stage = Stage::start(|setup| setup.set("server.wait_max", "10s"));
    let mut conn = stage.node.connect();
    few(&mut conn, "few");
    let mut drawn = Drawn::of("few");
    drawn.draw_all(&mut conn, 1);
    stage.server.sql(
        "ALTER TABLE id_alloc ADD INDEX by_end (max_id); CREATE TABLE ballast (n BIGINT) ENGINE = InnoDB;
         ANALYZE TABLE id_alloc",
    );
    // The one that has changed less is rolled back: that is the grant.
    let mut session = stage.server.hold(
        "BEGIN; INSERT INTO ballast VALUES (1), (2), (3), (4), (5), (6), (7), (8), (9); \
         SELECT max_id FROM id_alloc FORCE INDEX (by_end) WHERE max_id = 100 LOCK IN SHARE MODE",
    );
    let drawing = std::thread::spawn(move || {
        drawn.draw_all(&mut conn, 250);
        drawn
    });
    let waits = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'";
    eventually("a grant waits", PATIENCE, || (stage.server.sql(waits) != "0").then_some(()));
    session.ask("SELECT description FROM id_alloc WHERE biz_tag = 'few' FOR UPDATE");
    eventually("the deadlock was found", PATIENCE, || (failures(&stage.node, "few", "deadlock") >= 1).then_some(()));
    session.ask("ROLLBACK");
    let drawn = drawing.join().unwrap();
    assert_eq!(drawn.distinct(), Ok(251));
    assert_eq!(discarded(&stage.node, "unknown"), 0, "a grant that was rolled back has surely done nothing");
    assert_eq!(of_store(&stage.node, "idgen_circuit_state", "mysql"), 0);
}

/// MariaDB tells no end of a grant whose table has a trigger: nothing is made up, and the trigger is named.
#[test]
fn a_trigger_on_the_table_is_named_and_gives_no_ids() {
    let stage = Stage::start(|setup| setup);
    let mut conn = stage.node.connect();
    few(&mut conn, "few");
    let mut drawn = Drawn::of("few");
    stage.server.sql("CREATE TRIGGER nothing BEFORE UPDATE ON id_alloc FOR EACH ROW DO SLEEP(0)");
    let text = eventually("the cause is told", PATIENCE, || {
        drawn.draw(&mut conn).expect_err("an id").strip_prefix("IDBACKEND ").map(str::to_owned)
    });
    assert!(text.contains("trigger on id_alloc"), "{text}");
    stage.server.sql("DROP TRIGGER nothing");
    drawn.recovers(&mut conn, RECOVERY);
    drawn.draw_all(&mut conn, 300);
    drawn.distinct().unwrap();
}

/// After a failover the old primary takes reads only, and the same name leads to the new one.
#[test]
fn a_primary_that_became_read_only_is_left_for_the_new_one() {
    let primary = MariaDb::start(&["--server-id=1", "--log-bin"]);
    primary.sql("CREATE USER app@'%'; GRANT ALL ON idgen.* TO app@'%'");
    let proxy = Proxy::start(Protocol::MySql, primary.addr());
    let dsn = MariaDb::dsn_at(proxy.addr(), DATABASE).replace("root@", "app@");
    let setup = on(&dsn);
    initialised(&setup);
    let node = setup.start();
    let mut conn = node.connect();
    few(&mut conn, "few");
    many(&mut conn, "many");
    let (mut drawn, mut plenty) = (Drawn::of("few"), Drawn::of("many"));
    drawn.draw_all(&mut conn, 50);
    let replica = MariaDb::replica_of(&primary);
    primary.sql("SET GLOBAL read_only = 1");
    replica.await_position(&primary);
    let (text, took) = drawn.use_up(&mut conn, 250);
    assert!(took < WAIT_MAX + SLACK, "{took:?} until {text}");
    eventually("the cause is told", PATIENCE, || {
        let text = drawn.draw(&mut conn).expect_err("an id of a server that takes no writes");
        (text.starts_with("IDBACKEND ") && text.contains("takes no writes")).then_some(())
    });
    assert!(failures(&node, "few", "readonly") >= 1);
    assert_eq!(discarded(&node, "unknown"), 0, "a write that was refused has surely done nothing");
    plenty.draw_all(&mut conn, 100);
    replica.promote();
    proxy.repoint(replica.addr());
    drawn.recovers(&mut conn, RECOVERY);
    drawn.draw_all(&mut conn, 300);
    drawn.distinct().unwrap();
    let left = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'";
    eventually("no connection leads to the old primary", PATIENCE, || {
        let _shortage_or_id = drawn.draw(&mut conn);
        (primary.sql(left) == "0").then_some(())
    });
    let last: i64 = replica.sql("SELECT max_id FROM id_alloc WHERE biz_tag = 'few'").parse().unwrap();
    assert!(last >= drawn.highest(), "the new primary is at {last}, ids are at {}", drawn.highest());
    assert_eq!(regressions(&node, "mysql"), 0);
}

#[test]
fn connections_that_mariadb_closes_for_being_idle_cost_no_client_an_error() {
    let stage = Stage::before(MariaDb::start(&["--wait-timeout=2"]), |setup| setup.set("tags.refresh", "30s"));
    let mut conn = stage.node.connect();
    few(&mut conn, "few");
    let mut drawn = Drawn::of("few");
    for _ in 0..2 {
        drawn.draw_all(&mut conn, 250);
        // Longer than the server keeps a connection on which nothing is asked.
        std::thread::sleep(Duration::from_secs(3));
    }
    drawn.draw_all(&mut conn, 250);
    assert_eq!(drawn.distinct(), Ok(750));
    assert_eq!(drawn.highest(), 750, "no id is skipped");
    assert_eq!(failures(&stage.node, "few", "connection"), 0, "a grant was sent on a connection that was closed");
}
