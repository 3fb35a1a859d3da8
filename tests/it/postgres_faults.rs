//! What a node does while PostgreSQL is down, silent, slow, cut off, read-only, behind, or wrong: buffers go on, the rest is
//! told in time, ids never come twice, and everything works again by itself.

use std::time::{Duration, Instant};

use crate::chaos::{Protocol, Proxy, To};
use crate::node::{Node, PATIENCE, Setup, eventually};
use crate::services::{DATABASE, PgBouncer, Postgres};
use crate::soak;
use crate::wire::{Conn, Value};

/// How long a node may need to notice that its database is back.
const RECOVERY: Duration = Duration::from_secs(5);

/// What `server.wait_max` is where it is measured, and what two busy cores may add.
const WAIT_MAX: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_millis(900);

/// Texts that tell a grant and the return of a tail from all other statements.
const GRANT: &str = "SET max_id = greatest(max_id, floor) +";
const TAIL: &str = "AND floor <=";

/// A tag with segments of one size, and the ids that one connection draws of it, which may only go up.
struct Tag {
    name: &'static str,
    step: i64,
    conn: Conn,
    last: i64,
    drawn: i64,
}

impl Tag {
    /// Creates it with segments of `step` ids and more `options`.
    fn create(node: &Node, name: &'static str, step: i64, options: &[&str]) -> Self {
        let (text, mut conn) = (step.to_string(), node.connect());
        let mut words = vec!["IDTAG", "CREATE", name, "STEP", &text, "MINSTEP", &text, "MAXSTEP", &text];
        words.extend(options);
        assert_eq!(conn.call(&words), Value::Simple("OK".into()), "{words:?}");
        Self { name, step, conn, last: 0, drawn: 0 }
    }

    /// The same tag at another node, or at its node once more.
    fn at(self, node: &Node) -> Self {
        Self { conn: node.connect(), ..self }
    }

    /// Draws `count` ids; the last one, or the error.
    fn try_draw(&mut self, count: i64) -> Result<i64, String> {
        match self.conn.call(&["IDMGET", self.name, &count.to_string()]) {
            Value::Error(text) => Err(text),
            ids => {
                for id in ids.ints() {
                    assert!(id > self.last, "{}: {id} after {}", self.name, self.last);
                    self.last = id;
                }
                self.drawn += count;
                Ok(self.last)
            }
        }
    }

    fn draw(&mut self, count: i64) -> i64 {
        self.try_draw(count).unwrap_or_else(|text| panic!("{}: {text}", self.name))
    }

    /// Draws `count` ids at a time.
    fn draws(&mut self, times: u32, count: i64) {
        for _ in 0..times {
            self.draw(count);
        }
    }

    /// Draws until there is an error that `wanted` wants; others have to tell of a shortage. Nothing takes longer than
    /// `limit`.
    fn until_refused(&mut self, limit: Duration, wanted: impl Fn(&str) -> bool) -> String {
        eventually("the tag is refused", PATIENCE, || {
            let start = Instant::now();
            let text = self.try_draw(self.step / 10).err();
            assert!(start.elapsed() < limit, "{text:?} after {:?}", start.elapsed());
            let text = text?;
            assert!(text.starts_with("TRYAGAIN ") || text.starts_with("IDBACKEND "), "{text}");
            wanted(&text).then_some(text)
        })
    }

    /// Draws until there are ids again, which has to come soon; more than two segments of them.
    fn recovers(&mut self) {
        let start = Instant::now();
        eventually("ids come again", PATIENCE, || self.try_draw(1).ok());
        assert!(start.elapsed() < RECOVERY, "ids came again after {:?}", start.elapsed());
        for _ in 0..25 {
            eventually("ids keep coming", PATIENCE, || self.try_draw(self.step / 10).ok());
        }
    }
}

fn backend(text: &str) -> bool {
    text.starts_with("IDBACKEND ")
}

/// A node that reaches its database through a proxy.
struct Rig {
    node: Node,
    setup: Setup,
    proxy: Proxy,
    server: Postgres,
}

impl Rig {
    fn start() -> Self {
        Self::on(Postgres::start(&[]), |setup| setup)
    }

    fn on(server: Postgres, adjust: impl Fn(Setup) -> Setup) -> Self {
        let proxy = Proxy::start(Protocol::Postgres, server.addr());
        let dsn = Postgres::dsn_at(proxy.addr(), DATABASE);
        let setup = adjust(Setup::in_memory().set("database.dsn", &dsn));
        Self { node: setup.start(), setup, proxy, server }
    }

    fn tag(&self, name: &'static str, step: i64) -> Tag {
        let mut tag = Tag::create(&self.node, name, step, &[]);
        tag.draw(1);
        tag
    }

    /// How many grants of `tag` have failed for `reason`.
    fn failures(&self, tag: &Tag, reason: &str) -> f64 {
        let name = format!("idgen_segment_fetch_fail_total{{biz_tag=\"{}\",reason=\"{reason}\"}}", tag.name);
        self.node.metric(&name).unwrap_or(0.0)
    }

    fn discarded(&self, reason: &str) -> f64 {
        self.node.metric(&format!("idgen_ids_discarded_total{{reason=\"{reason}\"}}")).unwrap_or(0.0)
    }

    /// `idgen_NAME{store="postgres"}`.
    fn store(&self, name: &str) -> f64 {
        self.node.metric(&format!("idgen_{name}{{store=\"postgres\"}}")).unwrap()
    }

    /// The store is told to work. A statement that was out for long may yet fail, and the next probe puts that right.
    fn closes(&self) {
        eventually("the breaker closes", PATIENCE, || (self.store("circuit_state") < 0.5).then_some(()));
        eventually("the store is up", PATIENCE, || (self.store("store_up") > 0.5).then_some(()));
    }

    /// The log is written a moment later.
    fn logs(&self, words: &str) {
        eventually(words, PATIENCE, || self.node.log().contains(words).then_some(()));
    }

    fn max_id(&self, tag: &Tag) -> i64 {
        max_id(&self.server, tag.name)
    }
}

fn max_id(server: &Postgres, tag: &str) -> i64 {
    server.sql(&format!("SELECT max_id FROM id_alloc WHERE biz_tag = '{tag}'")).parse().unwrap()
}

#[test]
fn a_postgresql_that_is_stopped_is_done_without_and_noticed_when_it_is_back() {
    let mut rig = Rig::on(Postgres::start(&[]), |setup| setup.set("server.wait_max", "1s"));
    let (mut warm, mut short, mut other) = (rig.tag("warm", 1_000_000), rig.tag("short", 100), rig.tag("other", 100));
    rig.server.stop();
    let text = short.until_refused(WAIT_MAX + SLACK, backend);
    assert!(!text.contains("postgres@"), "who logs in is nobody's business: {text}");
    other.until_refused(WAIT_MAX + SLACK, backend);
    eventually("the breaker opens", PATIENCE, || {
        let _ = short.try_draw(1);
        (rig.store("circuit_state") > 0.5).then_some(())
    });
    assert!(rig.failures(&short, "connection") >= 1.0);
    assert!(rig.store("store_up") < 0.5);
    // Nobody waits for a store that is known to be down.
    for _ in 0..10 {
        let start = Instant::now();
        let text = other.try_draw(10).expect_err("ids without a database");
        assert!(backend(&text) && start.elapsed() < WAIT_MAX / 2, "{text} after {:?}", start.elapsed());
    }
    warm.draws(100, 100);
    assert_eq!(rig.node.http("/readyz").0, 200, "some tags are served");
    rig.server.start_again();
    short.recovers();
    other.recovers();
    rig.closes();
}

/// An outage in which nobody is told: `fall_silent` is done to the proxy.
fn silence_is_outlived(fall_silent: impl Fn(&Proxy)) {
    let rig = Rig::on(Postgres::start(&[]), |setup| {
        setup.set("server.wait_max", "1s").set("database.statement_timeout", "1500ms")
    });
    let (mut warm, mut short) = (rig.tag("warm", 1_000_000), rig.tag("short", 100));
    fall_silent(&rig.proxy);
    let first = short.until_refused(WAIT_MAX + SLACK, |_| true);
    assert!(first.starts_with("TRYAGAIN "), "a statement is out, and may yet be answered: {first}");
    let told = short.until_refused(WAIT_MAX + SLACK, backend);
    assert!(told.contains("no answer") || told.contains("no connection"), "{told}");
    assert!(rig.failures(&short, "timeout") >= 1.0);
    assert!(rig.discarded("unknown") >= 100.0);
    warm.draws(100, 100);
    // What was kept back is executed now, for nobody.
    rig.proxy.pass();
    short.recovers();
    rig.closes();
    assert!(rig.max_id(&short) >= short.last);
}

#[test]
fn a_postgresql_that_accepts_and_says_nothing_is_outlived() {
    silence_is_outlived(Proxy::stall);
}

#[test]
fn half_open_connections_to_postgresql_are_outlived() {
    silence_is_outlived(|proxy| proxy.swallow(To::Client));
}

#[test]
fn a_postgresql_behind_a_way_of_two_seconds_is_outlived() {
    silence_is_outlived(|proxy| proxy.delay(To::Client, Duration::from_secs(2)));
}

#[test]
fn a_postgresql_that_takes_two_seconds_is_hidden_by_larger_segments() {
    let rig = Rig::start();
    assert_eq!(rig.node.connect().call(&["IDTAG", "CREATE", "load", "STEP", "1000"]).text(), "OK");
    rig.server
        .sql("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(2); RETURN NEW; END'");
    rig.server.sql("CREATE TRIGGER slow BEFORE UPDATE ON id_alloc FOR EACH ROW EXECUTE FUNCTION slow()");
    let mut load = Tag { name: "load", step: 1000, conn: rig.node.connect(), last: 0, drawn: 0 };
    let metric = |name: &str| rig.node.metric(&format!("idgen_segment_{name}{{biz_tag=\"load\"}}")).unwrap();
    // About a thousand ids a second.
    let mut paced = |count: u32| -> Duration {
        let draw = |_| {
            let start = Instant::now();
            load.draw(20);
            let took = start.elapsed();
            std::thread::sleep(Duration::from_millis(20)); // the load's pace
            took
        };
        (0..count).map(draw).max().unwrap()
    };
    eventually("the step rises", 2 * PATIENCE, || {
        paced(25);
        (metric("step") >= 4000.0).then_some(())
    });
    let hidden = eventually("a grant is hidden", 2 * PATIENCE, || {
        let (before, start) = (metric("fetch_total"), Instant::now());
        let longest = paced(100);
        let grants = metric("fetch_total") - before;
        let most = start.elapsed().as_secs_f64() / 2.0 + 1.0;
        assert!(grants <= most, "{grants} grants of 2 s each: more than one at a time");
        (grants >= 1.0).then_some(longest)
    });
    assert!(hidden < Duration::from_secs(1), "a request took {hidden:?} though there was a standby");
    assert!(rig.failures(&load, "timeout") < 0.5 && rig.store("circuit_state") < 0.5);
}

#[test]
fn a_grant_whose_answer_is_cut_off_by_the_network_is_never_used() {
    let rig = Rig::start();
    let cuts: u32 = if soak() { 200 } else { 50 };
    for (name, order) in [("node", "node"), ("strict", "strict")] {
        let mut tag = Tag::create(&rig.node, name, 10, &["ORDER", order]);
        let before = rig.proxy.counts().cut;
        rig.proxy.cut_before_answer(GRANT, 2, u64::from(cuts));
        eventually("all answers are cut", 6 * PATIENCE, || {
            tag.draw(10);
            (rig.proxy.counts().cut == before + u64::from(cuts)).then_some(())
        });
        tag.draws(10, 10);
        // Each range that was cut off has been reserved, and lies unused between those that were.
        assert!(rig.max_id(&tag) >= tag.drawn + 10 * i64::from(cuts), "{} for {}", rig.max_id(&tag), tag.drawn);
        assert!(rig.failures(&tag, "connection") >= f64::from(cuts));
    }
    assert!(rig.discarded("unknown") >= f64::from(2 * cuts * 10));
    assert!(rig.store("circuit_state") < 0.5, "half of the grants succeed");
    assert!(rig.store("store_regression_total") < 0.5);
}

#[test]
fn a_tail_whose_return_is_cut_off_is_back_once_and_the_stop_is_clean() {
    let rig = Rig::start();
    let mut tag = rig.tag("order", 100);
    tag.draw(9);
    rig.proxy.cut_before_answer(TAIL, 1, 1);
    let Rig { node, setup, proxy, server } = rig;
    node.stop();
    assert_eq!(proxy.counts().cut, 1);
    assert_eq!(max_id(&server, "order"), 10, "the server has done it");
    let node = setup.start();
    assert_eq!(tag.at(&node).draw(1), 11);
}

/// The delayed copy comes when the row has the same end again, by somebody else's grant: the nonce alone tells.
#[test]
fn a_late_copy_of_a_tails_return_can_not_undo_somebody_elses_grant() {
    let rig = Rig::on(Postgres::start(&[]), |setup| setup.set("database.statement_timeout", "1s"));
    let mut tag = rig.tag("order", 100);
    tag.draw(9);
    rig.proxy.hold(TAIL, 1);
    let Rig { node, setup, proxy, server } = rig;
    node.stop();
    assert_eq!(proxy.counts().held, 1);
    assert_eq!(max_id(&server, "order"), 100, "it waits on the way");
    server.sql("UPDATE id_alloc SET max_id = 10"); // its first copy, come by another way
    let direct = |setup: Setup| setup.set("database.dsn", &server.dsn(DATABASE));
    let other = direct(Setup::in_memory()).start();
    let alter = ["IDTAG", "ALTER", "order", "STEP", "90", "MINSTEP", "90", "MAXSTEP", "90"];
    assert_eq!(other.connect().call(&alter).text(), "OK");
    tag = tag.at(&other);
    assert_eq!(tag.draw(1), 11);
    assert_eq!(max_id(&server, "order"), 100, "the end is the same");
    other.kill();
    proxy.release();
    eventually("the copy is delivered", PATIENCE, || (proxy.requests(TAIL) == 1).then_some(()));
    server.await_alone();
    assert_eq!(max_id(&server, "order"), 100, "another node's grant was undone");
    let third = direct(setup).start();
    assert_eq!(tag.at(&third).draw(1), 101);
}

#[test]
fn a_row_that_somebody_holds_stops_its_tag_alone() {
    let rig = Rig::start();
    let (mut held, mut free) = (rig.tag("held", 100), rig.tag("free", 100));
    let lock = rig.server.hold("BEGIN; SELECT 1 FROM id_alloc WHERE biz_tag = 'held' FOR UPDATE");
    let text = held.until_refused(PATIENCE, backend);
    assert!(text.contains("lock"), "{text}");
    // Others are refilled again and again: neither the pool nor the breaker is in their way.
    free.draws(100, 100);
    assert!(rig.failures(&held, "locked") >= 1.0);
    assert!(rig.store("circuit_state") < 0.5);
    drop(lock);
    held.recovers();
}

#[test]
fn the_victim_of_a_deadlock_tries_again_and_no_client_hears_of_it() {
    let rig = Rig::on(Postgres::start(&["deadlock_timeout=200ms"]), |setup| setup.set("server.wait_max", "10s"));
    let mut tag = Tag::create(&rig.node, "order", 100, &[]);
    rig.server.sql("CREATE TABLE other AS SELECT 1 AS n");
    rig.server.sql(
        "CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN UPDATE other SET n = n + 1; RETURN NEW; END'",
    );
    rig.server.sql("CREATE TRIGGER also AFTER UPDATE ON id_alloc FOR EACH ROW EXECUTE FUNCTION also()");
    let mut session = rig.server.hold("SET deadlock_timeout = '1min'; BEGIN; UPDATE other SET n = 0");
    let asked = std::thread::spawn(move || tag.draw(1));
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    eventually("the grant waits", PATIENCE, || (rig.server.sql(waits) == "1").then_some(()));
    session.ask("SELECT max_id FROM id_alloc WHERE biz_tag = 'order' FOR UPDATE");
    session.ask("COMMIT");
    assert_eq!(asked.join().unwrap(), 1);
    let name = "idgen_segment_fetch_fail_total{biz_tag=\"order\",reason=\"deadlock\"}";
    assert!(rig.node.metric(name).is_some_and(|count| count >= 1.0));
    assert!(rig.store("circuit_state") < 0.5);
}

#[test]
fn connections_that_the_server_ends_cost_nobody_an_error() {
    let rig = Rig::start();
    let mut tag = rig.tag("order", 100);
    for _ in 0..10 {
        rig.server.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        );
        tag.draws(10, 25);
    }
}

#[test]
fn a_node_leaves_a_primary_that_became_read_only_and_finds_the_new_one() {
    let rig = Rig::on(Postgres::start(&[]), |setup| setup.set("server.wait_max", "1s"));
    let mut tag = rig.tag("order", 100);
    let new = Postgres::replica_of(&rig.server);
    rig.server.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    rig.server.sql("SELECT pg_reload_conf()");
    let text = tag.until_refused(WAIT_MAX + SLACK, |text| text.contains("read-only"));
    assert!(backend(&text), "{text}");
    assert!(rig.failures(&tag, "readonly") >= 1.0);
    new.await_position(&rig.server);
    new.promote();
    rig.proxy.repoint(new.addr()); // connections that are open stay with the old one
    tag.recovers();
    rig.closes();
    assert!(rig.store("store_regression_total") < 0.5, "nothing was lost");
    assert!(max_id(&new, "order") >= tag.last);
}

#[test]
fn a_row_that_vanished_closes_its_tag_and_a_row_that_was_lowered_is_raised() {
    let rig = Rig::start();
    let (mut gone, mut low) = (rig.tag("gone", 100), rig.tag("low", 100));
    rig.server.sql("CREATE TABLE kept AS SELECT * FROM id_alloc WHERE biz_tag = 'gone'");
    rig.server.sql("DELETE FROM id_alloc WHERE biz_tag = 'gone'");
    let text = gone.until_refused(PATIENCE, |text| text.contains("vanished"));
    assert!(backend(&text), "{text}");
    assert!(gone.try_draw(1).is_err());
    assert_eq!(rig.server.sql("SELECT count(*) FROM id_alloc WHERE biz_tag = 'gone'"), "0", "made anew");
    rig.logs("vanished");

    low.draw(20);
    let before = rig.store("store_regression_total");
    rig.server.sql("UPDATE id_alloc SET max_id = 0, floor = 0 WHERE biz_tag = 'low'");
    low.draws(100, 10);
    assert!(rig.store("store_regression_total") > before);
    assert!(rig.max_id(&low) >= low.last);
    rig.logs("lost commits");

    rig.server.sql("INSERT INTO id_alloc SELECT * FROM kept");
    rig.server.sql(&format!("UPDATE id_alloc SET max_id = {} WHERE biz_tag = 'gone'", gone.last + 1000));
    gone.recovers();
}

#[test]
fn every_id_up_to_max_is_served_and_none_above() {
    let rig = Rig::start();
    let mut inside = Tag::create(&rig.node, "inside", 100, &["MAX", "250"]);
    assert!((1..=250).all(|id| inside.draw(1) == id));
    let start = (i64::MAX - 249).to_string();
    let mut last = Tag::create(&rig.node, "last", 100, &["START", &start]);
    assert!((i64::MAX - 249..=i64::MAX).all(|id| last.draw(1) == id));
    for tag in [&mut inside, &mut last] {
        let text = tag.try_draw(1).expect_err("an id above MAX");
        assert!(text.starts_with("IDEXHAUSTED "), "{text}");
        assert_eq!(rig.max_id(tag), tag.last);
        let headroom = format!("idgen_segment_headroom_ids{{biz_tag=\"{}\"}}", tag.name);
        assert_eq!(rig.node.metric(&headroom), Some(0.0));
    }
}

#[test]
fn commits_that_a_crash_has_lost_give_no_id_twice() {
    let server = Postgres::start(&["wal_writer_delay=10s", "synchronous_commit=off"]);
    let mut rig = Rig::on(server, |setup| setup);
    assert!(rig.store("store_durable") < 0.5);
    assert_eq!(rig.node.connect().call(&["IDINFO", "order"]).error().split(' ').next(), Some("IDNOTAG"));
    let mut tag = rig.tag("order", 100);
    rig.server.sql("CHECKPOINT");
    tag.draws(100, 10);
    let before = rig.max_id(&tag);
    rig.server.crash();
    rig.server.start_again();
    assert!(rig.max_id(&tag) < before, "nothing was lost, so this shows nothing");
    tag.recovers();
    assert!(rig.store("store_regression_total") >= 1.0);
    assert!(rig.max_id(&tag) >= tag.last);
}

#[test]
fn a_replica_that_was_promoted_while_behind_gives_no_id_twice() {
    let mut rig = Rig::start();
    let mut tag = rig.tag("order", 100);
    let new = Postgres::replica_of(&rig.server);
    new.stop_following();
    tag.draws(100, 10);
    rig.server.kill9();
    new.promote();
    assert!(max_id(&new, "order") < tag.last, "nothing was lost, so this shows nothing");
    rig.proxy.repoint(new.addr());
    tag.recovers();
    assert!(rig.store("store_regression_total") >= 1.0);
    assert!(max_id(&new, "order") >= tag.last);
}

#[test]
fn a_pgbouncer_that_is_killed_is_found_again() {
    let server = Postgres::start(&[]);
    let mut bouncer = PgBouncer::before(&server, &[]);
    let setup = Setup::in_memory().set("database.dsn", &bouncer.dsn(DATABASE)).set("server.wait_max", "1s");
    let node = setup.start();
    let mut tag = Tag::create(&node, "order", 100, &[]);
    tag.draws(20, 50);
    bouncer.kill9();
    tag.until_refused(WAIT_MAX + SLACK, backend);
    bouncer.start_again();
    tag.recovers();
    // Behind it the server goes and comes back.
    server_restarts(server, &mut tag);
    node.stop();
}

fn server_restarts(mut server: Postgres, tag: &mut Tag) {
    server.stop();
    tag.until_refused(PATIENCE, backend);
    server.start_again();
    eventually("ids come again", PATIENCE, || tag.try_draw(1).ok());
    for _ in 0..25 {
        eventually("ids keep coming", PATIENCE, || tag.try_draw(10).ok());
    }
}

/// A delay of the network, other than one of a statement, is in the way of new connections as well.
#[test]
fn a_slow_network_is_no_slow_death() {
    let rig = Rig::start();
    let mut tag = rig.tag("order", 100);
    rig.proxy.delay(To::Client, Duration::from_millis(300));
    tag.draws(20, 50);
    rig.proxy.pass();
    tag.recovers();
    rig.closes();
}
