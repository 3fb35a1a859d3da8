//! What tests of database faults have alike: ids that are all kept, counters by name, a node behind a proxy, and the
//! course of an outage.
//!
//! An outage is the same to a client whatever its cause: ids in memory go on; then errors come within `server.wait_max`,
//! and at once when the breaker has opened; and when the database is back ids come again within five seconds, larger
//! ones, without a restart.

use std::time::{Duration, Instant};

use crate::chaos::{Protocol, Proxy};
use crate::checkers;
use crate::load::Run;
use crate::node::{Node, PATIENCE, Setup, eventually};
use crate::services::{DATABASE, MariaDb};
use crate::wire::{Conn, Value};

/// What `server.wait_max` is set to in these tests.
pub const WAIT_MAX: Duration = Duration::from_secs(1);

/// What two busy cores may add to it.
pub const SLACK: Duration = Duration::from_secs(2);

/// How soon ids must come again when a database is back.
pub const RECOVERY: Duration = Duration::from_secs(5);

/// How many ids a grant of the tags of [`few`] has.
pub const STEP: i64 = 100;

/// Runs a command that is answered by `OK`.
pub fn ok(conn: &mut Conn, words: &[&str]) {
    assert_eq!(conn.call(words), Value::Simple("OK".into()), "{words:?}");
}

/// Creates a tag that fetches [`STEP`] ids at a time, whatever the load.
pub fn few(conn: &mut Conn, tag: &str) {
    let step = STEP.to_string();
    ok(conn, &["IDTAG", "CREATE", tag, "STEP", &step, "MINSTEP", &step, "MAXSTEP", &step]);
}

/// Creates a tag that has a million ids in memory after its first one.
pub fn many(conn: &mut Conn, tag: &str) {
    ok(conn, &["IDTAG", "CREATE", tag, "STEP", "1000000", "MINSTEP", "1000000", "MAXSTEP", "1000000"]);
    assert_eq!(conn.call(&["IDGET", tag]), Value::Int(1));
}

/// Every id of one tag that a test was given.
pub struct Drawn {
    tag: String,
    runs: Vec<Run>,
}

impl Drawn {
    /// Nothing yet of `tag`.
    pub fn of(tag: &str) -> Self {
        Self { tag: tag.into(), runs: Vec::new() }
    }

    /// One id, or the text of a shortage; no other error may come.
    pub fn draw(&mut self, conn: &mut Conn) -> Result<i64, String> {
        match conn.call(&["IDGET", &self.tag]) {
            Value::Error(text) => {
                assert!(text.starts_with("TRYAGAIN ") || text.starts_with("IDBACKEND "), "{text}");
                assert!(!text.contains("READONLY"), "the word that makes clients reconnect: {text}");
                Err(text)
            }
            id => {
                self.runs.push((id.int(), id.int()));
                Ok(id.int())
            }
        }
    }

    /// `count` ids one by one, which must come.
    pub fn draw_all(&mut self, conn: &mut Conn, count: u64) {
        for n in 0..count {
            self.draw(conn).unwrap_or_else(|text| panic!("after {n} of {count}: {text}"));
        }
    }

    /// Keeps a run that was drawn in another way.
    pub fn keep(&mut self, run: Run) {
        self.runs.push(run);
    }

    /// Draws until there is a shortage: its text, and how long that took to come. `most` ids may come before.
    pub fn use_up(&mut self, conn: &mut Conn, most: u64) -> (String, Duration) {
        for _ in 0..=most {
            let start = Instant::now();
            if let Err(text) = self.draw(conn) {
                return (text, start.elapsed());
            }
        }
        panic!("over {most} ids of tag {} without the database", self.tag);
    }

    /// Waits until an id comes again, at most `limit`.
    pub fn recovers(&mut self, conn: &mut Conn, limit: Duration) -> i64 {
        let before = self.highest();
        let start = Instant::now();
        loop {
            let text = match self.draw(conn) {
                Ok(id) => {
                    assert!(id > before, "{id} after {before}");
                    return id;
                }
                Err(text) => text,
            };
            assert!(start.elapsed() < limit, "no id within {limit:?} (the last one was {before}): {text}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The largest id so far.
    pub fn highest(&self) -> i64 {
        self.runs.iter().map(|run| run.1).max().unwrap_or(0)
    }

    /// How many ids there are, none of them twice; or which came twice.
    pub fn distinct(&self) -> Result<u64, String> {
        checkers::distinct(&mut self.runs.clone())
    }
}

/// The value of a metric that is not shown before there is something to count.
pub fn count(node: &Node, metric: &str) -> u64 {
    let value = node.metric(metric).unwrap_or(0.0);
    format!("{value:.0}").parse().unwrap()
}

/// How many grants of `tag` have failed for `reason`.
pub fn failures(node: &Node, tag: &str, reason: &str) -> u64 {
    count(node, &format!("idgen_segment_fetch_fail_total{{biz_tag=\"{tag}\",reason=\"{reason}\"}}"))
}

/// How many ids were dropped for `reason`.
pub fn discarded(node: &Node, reason: &str) -> u64 {
    count(node, &format!("idgen_ids_discarded_total{{reason=\"{reason}\"}}"))
}

/// A metric of the store `store`.
pub fn of_store(node: &Node, metric: &str, store: &str) -> u64 {
    count(node, &format!("{metric}{{store=\"{store}\"}}"))
}

/// How often the store `store` was found to have lost commits.
pub fn regressions(node: &Node, store: &str) -> u64 {
    of_store(node, "idgen_store_regression_total", store)
}

/// A node that reaches its MariaDB by way of a proxy.
pub struct Stage {
    pub server: MariaDb,
    pub proxy: Proxy,
    pub setup: Setup,
    pub node: Node,
}

impl Stage {
    /// A running node on a fresh server.
    pub fn start(adjust: impl Fn(Setup) -> Setup) -> Self {
        Self::before(MariaDb::start(&[]), adjust)
    }

    /// A running node on `server`, whose database is initialised for it.
    pub fn before(server: MariaDb, adjust: impl Fn(Setup) -> Setup) -> Self {
        let proxy = Proxy::start(Protocol::MySql, server.addr());
        let setup = adjust(on(&MariaDb::dsn_at(proxy.addr(), DATABASE)));
        initialised(&setup);
        let node = setup.start();
        Self { server, proxy, setup, node }
    }

    /// How often the store was found to have lost commits.
    pub fn regressions(&self) -> u64 {
        regressions(&self.node, "mysql")
    }

    /// The value of `expression` in the row of `tag`.
    pub fn row(&self, tag: &str, expression: &str) -> String {
        self.server.sql(&format!("SELECT {expression} FROM id_alloc WHERE biz_tag = '{tag}'"))
    }
}

/// A setup on the database `dsn` with [`WAIT_MAX`].
pub fn on(dsn: &str) -> Setup {
    let wait_max = format!("{}ms", WAIT_MAX.as_millis());
    Setup::in_memory().set("database.dsn", dsn).set("server.wait_max", &wait_max)
}

/// Initialises the database of `setup`.
pub fn initialised(setup: &Setup) {
    let (code, text) = setup.run(&["init"]);
    assert_eq!(code, 0, "idgen init: {text}");
}

/// The course of an outage of the store `store` of `node`, which `fail` begins and `mend` ends.
pub fn outage(node: &Node, store: &str, fail: impl FnOnce(), mend: impl FnOnce()) -> Drawn {
    let mut conn = node.connect();
    few(&mut conn, "few");
    many(&mut conn, "many");
    let (mut scarce, mut plenty) = (Drawn::of("few"), Drawn::of("many"));
    plenty.keep((1, 1));
    scarce.draw_all(&mut conn, 1);
    fail();

    let (text, took) = scarce.use_up(&mut conn, 200);
    assert!(took < WAIT_MAX + SLACK, "{took:?} until {text}");
    plenty.draw_all(&mut conn, 1000);
    eventually("the breaker opens", 2 * PATIENCE, || {
        let start = Instant::now();
        let _shortage = scarce.draw(&mut conn).expect_err("an id without the database");
        assert!(start.elapsed() < WAIT_MAX + SLACK, "an error took {:?}", start.elapsed());
        (of_store(node, "idgen_circuit_state", store) > 0).then_some(())
    });
    let start = Instant::now();
    let text = scarce.draw(&mut conn).expect_err("an id without the database");
    assert!(text.starts_with("IDBACKEND ") && start.elapsed() < WAIT_MAX / 2, "{:?}: {text}", start.elapsed());
    assert_eq!(of_store(node, "idgen_store_up", store), 0);
    assert_eq!(node.http("/readyz").0, 200, "some tags can be served");
    plenty.draw_all(&mut conn, 1000);

    mend();
    scarce.recovers(&mut conn, RECOVERY);
    eventually("the breaker closes and the store is up", RECOVERY, || {
        let open = of_store(node, "idgen_circuit_state", store);
        (open == 0 && of_store(node, "idgen_store_up", store) == 1).then_some(())
    });
    scarce.draw_all(&mut conn, 300);
    plenty.distinct().unwrap();
    scarce.distinct().unwrap();
    scarce
}
