//! What MariaDB may lose, and what may be lost on the way: answers, commits, rows. No id comes twice whatever is lost,
//! and where the server can't know that, as beside another program on its table, the checker sees it.

use crate::chaos::{Protocol, Proxy};
use crate::history::Clients;
use crate::load::Dice;
use crate::node::{Node, PATIENCE, Setup, eventually};
use crate::outage::{Drawn, RECOVERY, STEP, Stage, discarded, failures, few, initialised, ok, on, regressions};
use crate::services::{DATABASE, MariaDb};
use crate::soak;
use crate::wire::{Conn, Value};

/// What the statement of a grant has and no other.
const GRANT: &str = "LAST_INSERT_ID(max_id";

/// What the statement of a tail return has and no other.
const RETURN: &str = "grant_nonce = ? AND floor";

/// How many answers are cut off.
fn cuts() -> u64 {
    if soak() { 200 } else { 50 }
}

fn step() -> u64 {
    STEP.unsigned_abs()
}

#[test]
fn grants_whose_answers_are_cut_off_are_skipped_and_never_used() {
    let stage = Stage::start(|setup| setup.set("server.wait_max", "10s"));
    let mut conn = stage.node.connect();
    few(&mut conn, "few");
    let mut drawn = Drawn::of("few");
    drawn.draw_all(&mut conn, 1);
    stage.proxy.cut_before_answer(GRANT, 2, cuts());
    eventually("all cuts were made", 3 * PATIENCE, || {
        drawn.draw_all(&mut conn, 50);
        (stage.proxy.counts().cut == cuts()).then_some(())
    });
    drawn.draw_all(&mut conn, 300);
    eventually("each cut is counted", PATIENCE, || {
        (failures(&stage.node, "few", "connection") >= cuts()).then_some(())
    });
    assert_eq!(failures(&stage.node, "few", "connection"), cuts());
    assert_eq!(discarded(&stage.node, "unknown"), cuts() * step(), "a cut was not counted as unknown");
    assert_eq!(stage.regressions(), 0);
    // The row tells how much was granted: everything that was not cut off was used or is in memory.
    let granted: u64 = stage.row("few", "max_id").parse().unwrap();
    let used = drawn.distinct().unwrap();
    let left = granted - used - cuts() * step();
    assert!(left <= 2 * step(), "{left} ids were lost besides {} cuts", cuts());
}

/// The answer to the commit of a tail return is lost: the ids have gone back, and the next start serves them.
#[test]
fn tails_whose_return_is_cut_off_are_used_once() {
    let Stage { server: _server, proxy, setup, node } = Stage::start(|setup| setup);
    few(&mut node.connect(), "few");
    let mut drawn = Drawn::of("few");
    let mut node = Some(node);
    let rounds = cuts() / 10;
    for _ in 0..rounds {
        let running = node.take().unwrap_or_else(|| setup.start());
        drawn.draw_all(&mut running.connect(), 7);
        proxy.cut_before_answer("COMMIT", 1, 1);
        running.stop();
    }
    assert_eq!(proxy.counts().cut, rounds);
    let node = setup.start();
    drawn.draw_all(&mut node.connect(), 300);
    drawn.distinct().unwrap();
    assert_eq!(drawn.highest(), i64::try_from(7 * rounds + 300).unwrap(), "the tails had gone back");
}

/// The statement of a tail return, or its commit, arrives when its node has gone and another one is at work.
fn a_return_comes_late(what: &str) {
    let Stage { server, proxy, setup, node } = Stage::start(|setup| setup.set("database.statement_timeout", "500ms"));
    let mut conn = node.connect();
    few(&mut conn, "few");
    let mut drawn = Drawn::of("few");
    drawn.draw_all(&mut conn, 7);
    proxy.hold(what, 1);
    node.stop();
    assert_eq!(proxy.counts().held, 1);
    let other = on(&MariaDb::dsn_at(server.addr(), DATABASE)).set("server.wait_max", "250ms").start();
    let mut conn = other.connect();
    // A transaction that is held holds the row as well.
    let row_is_held = what == "COMMIT";
    match drawn.draw(&mut conn) {
        Ok(_) => drawn.draw_all(&mut conn, 250),
        Err(text) => assert!(row_is_held, "{text}"),
    }
    let before = proxy.requests(what);
    proxy.release();
    eventually("the late one goes through", PATIENCE, || (proxy.requests(what) > before).then_some(()));
    let id = drawn.recovers(&mut conn, RECOVERY);
    assert!(!row_is_held || id == 8, "{id}: the tail went back before the other node's grant");
    drawn.draw_all(&mut conn, 300);
    other.stop();
    drawn.draw_all(&mut setup.start().connect(), 300);
    drawn.distinct().unwrap();
}

#[test]
fn a_tail_return_that_comes_late_takes_nothing_from_anybody() {
    a_return_comes_late(RETURN);
}

#[test]
fn a_tail_return_whose_commit_comes_late_takes_nothing_from_anybody() {
    a_return_comes_late("COMMIT");
}

/// A copy of a tail return arrives when the tail has gone back, another node has been granted the same end, and is at
/// work; the checker's verdict on what all have drawn.
fn a_copy_of_a_return(bug: &str) -> Result<u64, String> {
    let stage = Stage::start(|setup| setup.env("IDGEN_TEST_BUG", bug));
    let Stage { server, node, .. } = &stage;
    few(&mut node.connect(), "few");
    let mut drawn = Drawn::of("few");
    drawn.draw_all(&mut node.connect(), 1);
    let copy = server.sql(
        "SELECT CONCAT('UPDATE id_alloc SET max_id = 1, grant_nonce = RANDOM_BYTES(16) WHERE max_id = ', max_id, \
         ' AND grant_nonce = 0x', HEX(grant_nonce), ' AND floor <= 1 AND retired = 0') FROM id_alloc",
    );
    assert!(copy.contains("max_id = 100 AND grant_nonce = 0x"), "{copy}");
    let Stage { server, setup, node, proxy: _proxy } = stage;
    node.stop();
    assert_eq!(server.sql("SELECT max_id FROM id_alloc"), "1", "the tail went back");
    let (one, other) = (setup.start(), on(&server.dsn(DATABASE)).env("IDGEN_TEST_BUG", bug));
    ok(&mut one.connect(), &["IDTAG", "ALTER", "few", "STEP", "99", "MINSTEP", "99", "MAXSTEP", "99"]);
    drawn.draw_all(&mut one.connect(), 50);
    assert_eq!(server.sql("SELECT max_id FROM id_alloc"), "100", "the same end again");
    server.sql(&copy);
    drawn.draw_all(&mut other.start().connect(), 50);
    drawn.distinct()
}

#[test]
fn t18_a_copy_of_a_tail_return_undoes_nobody_elses_grant() {
    assert_eq!(a_copy_of_a_return(""), Ok(101));
}

#[test]
fn t18_catches_b21_a_tail_return_without_a_nonce() {
    came_twice(&a_copy_of_a_return("B21"));
}

fn came_twice(found: &Result<u64, String>) {
    assert!(found.as_ref().is_err_and(|text| text.contains("came twice")), "{found:?}");
}

#[test]
fn a_tag_whose_row_was_deleted_is_closed_until_the_row_is_back() {
    let stage = Stage::start(|setup| setup);
    let mut conn = stage.node.connect();
    few(&mut conn, "few");
    let mut drawn = Drawn::of("few");
    drawn.draw_all(&mut conn, 50);
    stage.server.sql("CREATE TABLE saved AS SELECT * FROM id_alloc; DELETE FROM id_alloc");
    eventually("the tag is closed", PATIENCE, || {
        drawn
            .draw(&mut conn)
            .is_err_and(|text| text.starts_with("IDBACKEND ") && text.contains("vanished"))
            .then_some(())
    });
    for _ in 0..20 {
        drawn.draw(&mut conn).expect_err("an id of a tag without a row");
    }
    assert_eq!(stage.server.sql("SELECT COUNT(*) FROM id_alloc"), "0", "the row was made again");
    assert!(stage.node.log().contains("has vanished"), "{}", stage.node.log());
    stage.server.sql("INSERT INTO id_alloc SELECT * FROM saved");
    drawn.recovers(&mut conn, RECOVERY);
    drawn.draw_all(&mut conn, 300);
    drawn.distinct().unwrap();
}

/// The row of a tag is lowered by hand under a running node; the checker's verdict, and how often that was noticed.
fn a_lowered_row(bug: &str) -> (Result<u64, String>, u64) {
    let stage = Stage::start(|setup| setup.env("IDGEN_TEST_BUG", bug));
    let mut conn = stage.node.connect();
    few(&mut conn, "few");
    let mut drawn = Drawn::of("few");
    drawn.draw_all(&mut conn, 950);
    stage.server.sql("UPDATE id_alloc SET max_id = 0");
    let start = drawn.highest();
    drawn.draw_all(&mut conn, 500);
    if bug.is_empty() {
        assert!(drawn.highest() >= start + 500);
        let raised: i64 = stage.row("few", "max_id").parse().unwrap();
        assert!(raised >= drawn.highest(), "the row is at {raised}, ids are at {}", drawn.highest());
        assert!(failures(&stage.node, "few", "regression") >= 1);
        assert!(stage.node.log().contains("it has lost commits"), "{}", stage.node.log());
    }
    (drawn.distinct(), stage.regressions())
}

#[test]
fn t17_a_row_that_was_lowered_is_refused_and_raised() {
    assert_eq!(a_lowered_row(""), (Ok(1450), 1));
}

#[test]
fn t17_catches_b17_a_lowered_row_that_is_believed() {
    came_twice(&a_lowered_row("B17").0);
}

#[test]
fn t17_a_mariadb_that_lost_commits_leads_to_no_duplicate() {
    let lazy = ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-log-at-timeout=2700"];
    let mut server = MariaDb::start_on_disk(&[]);
    let setup = on(&server.dsn(DATABASE));
    initialised(&setup);
    let node = setup.start();
    few(&mut node.connect(), "few");
    node.stop();
    server.stop();
    server.start_again_with(&lazy);
    let node = setup.start();
    let mut conn = node.connect();
    let mut drawn = Drawn::of("few");
    drawn.draw_all(&mut conn, 950);
    server.kill9();
    server.start_again();
    lost_commits(&node, &server, &mut conn, &mut drawn);
}

/// `server` has less than `node` was granted.
fn lost_commits(node: &Node, server: &MariaDb, conn: &mut Conn, drawn: &mut Drawn) {
    let last: i64 = server.sql("SELECT max_id FROM id_alloc WHERE biz_tag = 'few'").parse().unwrap();
    assert!(last < drawn.highest(), "nothing was lost: the row is at {last}");
    for _ in 0..500 {
        if drawn.draw(conn).is_err() {
            drawn.recovers(conn, RECOVERY);
        }
    }
    let last: i64 = server.sql("SELECT max_id FROM id_alloc WHERE biz_tag = 'few'").parse().unwrap();
    assert!(last >= drawn.highest(), "the row is at {last}, ids are at {}", drawn.highest());
    assert_eq!(regressions(node, "mysql"), 1);
    drawn.distinct().unwrap();
}

#[test]
fn t17_a_replica_that_was_promoted_while_behind_leads_to_no_duplicate() {
    let mut stage = Stage::before(MariaDb::start(&["--server-id=1", "--log-bin"]), |setup| setup);
    let mut conn = stage.node.connect();
    few(&mut conn, "few");
    let mut drawn = Drawn::of("few");
    drawn.draw_all(&mut conn, 50);
    let replica = MariaDb::replica_of(&stage.server);
    replica.stop_following();
    drawn.draw_all(&mut conn, 900);
    stage.server.kill9();
    replica.promote();
    stage.proxy.repoint(replica.addr());
    lost_commits(&stage.node, &replica, &mut conn, &mut drawn);
}

#[test]
fn every_id_up_to_max_is_served_and_none_beyond() {
    let stage = Stage::start(|setup| setup);
    let mut conn = stage.node.connect();
    let exhausted = |conn: &mut Conn, tag: &str| {
        let reply = conn.call(&["IDGET", tag]);
        assert!(reply.error().starts_with("IDEXHAUSTED "), "{reply:?}");
    };
    ok(&mut conn, &["IDTAG", "CREATE", "inside", "STEP", "100", "MINSTEP", "100", "MAX", "250"]);
    for id in 1..=250 {
        assert_eq!(conn.call(&["IDGET", "inside"]), Value::Int(id));
    }
    exhausted(&mut conn, "inside");
    assert_eq!(crate::outage::count(&stage.node, "idgen_segment_headroom_ids{biz_tag=\"inside\"}"), 0);
    let start = i64::MAX - 249;
    ok(&mut conn, &["IDTAG", "CREATE", "end", "STEP", "100", "MINSTEP", "100", "START", &start.to_string()]);
    for id in start..=i64::MAX {
        assert_eq!(conn.call(&["IDGET", "end"]), Value::Int(id));
    }
    exhausted(&mut conn, "end");
    assert_eq!(stage.row("end", "max_id"), i64::MAX.to_string());
    let Stage { server: _server, proxy: _proxy, setup, node } = stage;
    node.stop();
    let node = setup.start();
    exhausted(&mut node.connect(), "end");
    exhausted(&mut node.connect(), "inside");
}

/// Leaf's `max_id` is the next id, ours the last: a mixed fleet repeats an id at each of Leaf's grants behind ours.
#[test]
fn leaf_on_the_same_table_repeats_an_id_and_the_checker_sees_it() {
    let stage = Stage::start(|setup| setup);
    let mut conn = stage.node.connect();
    few(&mut conn, "few");
    let mut leaf = stage.server.hold("SET autocommit = 0");
    let mut leaf = || -> (i64, i64) {
        let take = "UPDATE id_alloc SET max_id = max_id + step; SELECT max_id FROM id_alloc; COMMIT";
        let next: i64 = leaf.ask(take).parse().unwrap();
        (next - STEP, next - 1)
    };
    stage.server.sql("UPDATE id_alloc SET max_id = 1"); // as Leaf begins
    let mut drawn = Drawn::of("few");
    drawn.keep(leaf());
    drawn.draw_all(&mut conn, 100);
    assert_eq!(drawn.distinct(), Ok(200), "from Leaf to us is safe");
    assert_eq!(drawn.highest(), 201, "one id is skipped");
    drawn.keep(leaf()); // behind the range that waits here
    drawn.draw_all(&mut conn, 100);
    came_twice(&drawn.distinct());
}

/// Two nodes on one tag, one of which has its answers cut off now and then, draw in turns; the checker's verdict.
fn in_turns_behind_a_cutting_proxy(bug: &str) -> Result<u64, String> {
    let server = MariaDb::start(&[]);
    let proxy = Proxy::start(Protocol::MySql, server.addr());
    let adjust = |setup: Setup| setup.env("IDGEN_TEST_BUG", bug).set("server.wait_max", "5s");
    let setups = [proxy.addr(), server.addr()].map(|addr| adjust(on(&MariaDb::dsn_at(addr, DATABASE))));
    initialised(&setups[0]);
    let nodes = setups.map(|setup| setup.start());
    let mut conns = nodes.each_ref().map(Node::connect);
    few(&mut conns[0], "few");
    proxy.cut_before_answer(GRANT, 2, 20);
    let mut drawn = Drawn::of("few");
    for _ in 0..60 {
        for conn in &mut conns {
            drawn.draw_all(conn, 50);
        }
    }
    assert!(proxy.counts().cut >= 5, "{:?}", proxy.counts());
    drawn.distinct()
}

#[test]
fn t18_two_nodes_behind_a_cutting_proxy_share_no_id() {
    assert_eq!(in_turns_behind_a_cutting_proxy(""), Ok(6000));
}

#[test]
fn t18_catches_b4_a_range_that_is_used_before_the_answer() {
    came_twice(&in_turns_behind_a_cutting_proxy("B4"));
}

#[test]
fn t18_catches_b5_a_grant_whose_outcome_is_unknown_and_used() {
    came_twice(&in_turns_behind_a_cutting_proxy("B5"));
}

/// Two nodes fetch every id by itself, at the same time; the checker's verdict.
fn side_by_side(bug: &str) -> Result<u64, String> {
    let server = MariaDb::start(&[]);
    let dsn = server.dsn(DATABASE);
    let setups = [0, 1].map(|_| on(&dsn).env("IDGEN_TEST_BUG", bug).set("server.wait_max", "5s"));
    initialised(&setups[0]);
    let nodes = setups.each_ref().map(Setup::start);
    ok(&mut nodes[0].connect(), &["IDTAG", "CREATE", "few", "ORDER", "strict"]);
    let mut dice = Dice::new();
    let clients = Clients::start(&nodes.each_ref().map(Node::addr), &["few".to_owned()], 8, 2, &mut dice);
    eventually("ids are served", 2 * PATIENCE, || (clients.answered() >= 3000).then_some(()));
    let mut history = clients.finish();
    crate::checkers::distinct(&mut history.runs[0])
}

#[test]
fn t01_two_nodes_side_by_side_on_one_mariadb_share_no_id() {
    let ids = side_by_side("").unwrap();
    assert!(ids >= 3000, "{ids}");
}

#[test]
fn t01_catches_b6_an_update_and_then_a_select() {
    came_twice(&side_by_side("B6"));
}
