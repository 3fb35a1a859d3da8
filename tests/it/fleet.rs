//! Several nodes on one database: no id twice and order on each node while nodes are killed, stopped and started again,
//! and changes to tags that reach every node.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::history::{Clients, History};
use crate::load::Dice;
use crate::node::{Node, PATIENCE, Setup, eventually};
use crate::services::{MariaDb, PgBouncer, Postgres};
use crate::soak;
use crate::wire::{Conn, Value};

/// How often nodes look for changes to tags, in the tests of such changes.
const REFRESH: Duration = Duration::from_millis(500);

/// How much longer than it should anything may take here: two cores run other tests at the same time.
const SLACK: Duration = Duration::from_secs(2);

/// Nodes that share a database.
pub struct Fleet {
    setups: Vec<Setup>,
    nodes: Vec<Option<Node>>,
}

impl Fleet {
    /// `count` running nodes on `dsn`, a database that is initialised for them; `adjust` sets what else they need.
    pub fn start(dsn: &str, count: usize, adjust: impl Fn(Setup) -> Setup) -> Self {
        let setup = |_| adjust(Setup::in_memory().set("database.dsn", dsn));
        let setups: Vec<Setup> = (0..count).map(setup).collect();
        let (code, text) = setups[0].run(&["init"]);
        assert_eq!(code, 0, "idgen init: {text}");
        let nodes = setups.iter().map(|setup| Some(setup.start())).collect();
        Self { setups, nodes }
    }

    /// Where clients connect.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.setups.iter().map(Setup::addr).collect()
    }

    fn node(&self, node: usize) -> &Node {
        self.nodes[node].as_ref().expect("the node is down")
    }

    fn connect(&self, node: usize) -> Conn {
        self.node(node).connect()
    }

    /// Creates the tags `t0` to `t19` with `options`, each on a node of its own.
    pub fn create_tags(&self, options: &[&str]) -> Vec<String> {
        let tags: Vec<String> = (0..20).map(|tag| format!("t{tag}")).collect();
        for (at, tag) in tags.iter().enumerate() {
            let words: Vec<&str> = ["IDTAG", "CREATE", tag].iter().chain(options).copied().collect();
            let reply = self.connect(at % self.nodes.len()).call(&words);
            assert_eq!(reply, Value::Simple("OK".into()), "{words:?}");
        }
        tags
    }

    /// Kills, or stops, one node after the other and starts it again, for `time`; how often each.
    fn torment(&mut self, time: Duration, dice: &mut Dice) -> [u64; 2] {
        let (end, mut done) = (Instant::now() + time, [0, 0]);
        while Instant::now() < end {
            std::thread::sleep(dice.millis(50, 500)); // the random moment
            let at = usize::try_from(dice.below(self.nodes.len() as u64)).unwrap();
            let node = self.nodes[at].take().expect("the node is down");
            let kind = usize::try_from(dice.below(2)).unwrap();
            match kind {
                0 => node.kill(),
                _ => node.stop(),
            }
            done[kind] += 1;
            std::thread::sleep(dice.millis(0, 300)); // the others are alone for a while
            self.nodes[at] = Some(self.setups[at].start());
        }
        done
    }

    /// The sum of `metric` over the nodes; a node that does not have it counts as a failure.
    pub fn sum(&self, metric: &str) -> f64 {
        let node = |at| self.node(at).metric(metric).unwrap_or_else(|| panic!("node {at} has no {metric}"));
        (0..self.nodes.len()).map(node).sum()
    }
}

/// What a request may be told besides ids while its node is starting, stopping, or short of ids.
const SHORTAGES: &[&str] = &["LOADING", "TRYAGAIN"];

/// Three nodes on `dsn`, 24 clients, 20 tags with `options`, for 10 seconds of trouble.
fn trouble(dsn: &str, options: &[&str]) -> History {
    let mut dice = Dice::new();
    // Small segments: many grants, and many ends of segments at which something could go wrong.
    let mut fleet = Fleet::start(dsn, 3, |setup| {
        setup.set("segment.min_step", "10").set("segment.default_step", "50").set("segment.max_step", "1000")
    });
    let tags = fleet.create_tags(options);
    let clients = Clients::start(&fleet.addrs(), &tags, 24, 8, &mut dice);
    eventually("ids are served", PATIENCE, || (clients.answered() > 1000).then_some(()));
    let [kills, stops] = fleet.torment(Duration::from_secs(if soak() { 60 } else { 10 }), &mut dice);
    let mut history = clients.finish();
    println!("{kills} kills, {stops} stops");
    assert!(kills + stops >= 5, "hardly any trouble");
    history.verdict(3, SHORTAGES);
    history
}

/// Ranges of several nodes are not in order with each other: the strict checker has to see that, or it sees nothing.
fn is_not_strict(history: &History) {
    let strict = history.strict(0..20);
    let text = strict.expect_err("the strict checker has passed tags that several nodes serve from memory");
    assert!(text.contains("not increasing in real time"), "{text}");
}

#[test]
fn three_nodes_on_one_mariadb_repeat_nothing_over_kills_and_stops() {
    let server = MariaDb::start(&[]);
    is_not_strict(&trouble(&server.dsn("idgen"), &["ORDER", "node"]));
}

#[test]
fn three_nodes_on_one_postgresql_repeat_nothing_over_kills_and_stops() {
    let server = Postgres::start(&[]);
    is_not_strict(&trouble(&server.dsn("idgen"), &["ORDER", "node"]));
}

#[test]
fn strict_tags_are_in_order_over_three_nodes_on_one_mariadb() {
    let server = MariaDb::start(&[]);
    is_strict(&trouble(&server.dsn("idgen"), &["ORDER", "strict"]));
}

#[test]
fn strict_tags_are_in_order_over_three_nodes_on_one_postgresql() {
    let server = Postgres::start(&[]);
    is_strict(&trouble(&server.dsn("idgen"), &["ORDER", "strict"]));
}

/// What `ORDER strict` promises holds over all nodes.
pub fn is_strict(history: &History) {
    let judged = history.strict(0..20).unwrap_or_else(|text| panic!("{text}"));
    assert!(judged > 1000, "only {judged} requests came after an answer");
}

/// Clean restarts give tails back, so that the next grant begins below the last one: that is no regression.
fn clean_restarts(dsn: &str, store: &str) {
    let mut dice = Dice::new();
    let mut fleet = Fleet::start(dsn, 3, |setup| setup.set("segment.default_step", "1000"));
    let tags = fleet.create_tags(&[]);
    let metric = format!("idgen_store_regression_total{{store=\"{store}\"}}");
    let clients = Clients::start(&fleet.addrs(), &tags, 6, 8, &mut dice);
    for round in 0..10 {
        for at in 0..3 {
            let before = clients.answered();
            eventually(&format!("round {round}: ids are served"), PATIENCE, || {
                (clients.answered() > before + 200).then_some(())
            });
            assert_eq!(fleet.sum(&metric).to_string(), "0", "round {round}, node {at}");
            fleet.nodes[at].take().expect("the node is down").stop();
            fleet.nodes[at] = Some(fleet.setups[at].start());
        }
    }
    assert_eq!(fleet.sum(&metric).to_string(), "0", "after the last round");
    clients.finish().verdict(3, SHORTAGES);
}

#[test]
fn ten_clean_restarts_of_each_node_on_mariadb_are_no_regression() {
    clean_restarts(&MariaDb::start(&[]).dsn("idgen"), "mysql");
}

#[test]
fn ten_clean_restarts_of_each_node_on_postgresql_are_no_regression() {
    clean_restarts(&Postgres::start(&[]).dsn("idgen"), "postgres");
}

/// The field `field` of `IDINFO tag`, as text.
fn info(conn: &mut Conn, tag: &str, field: &str) -> String {
    match conn.call(&["IDINFO", tag]).field(field) {
        Value::Int(number) => number.to_string(),
        other => other.text().to_owned(),
    }
}

fn ok(conn: &mut Conn, words: &[&str]) {
    assert_eq!(conn.call(words), Value::Simple("OK".into()), "{words:?}");
}

/// What one node is told about tags holds on all of them.
fn changes_reach_everybody(dsn: &str) {
    let refresh = format!("{}ms", REFRESH.as_millis());
    let fleet = Fleet::start(dsn, 3, |setup| setup.set("tags.refresh", &refresh).set("tags.unknown", "refuse"));
    let mut conns: Vec<Conn> = (0..3).map(|at| fleet.connect(at)).collect();
    for round in 0..20 {
        let (one, other) = (round % 3, (round + 1) % 3);
        let tag = format!("new{round}");
        ok(&mut conns[one], &["IDTAG", "CREATE", &tag, "START", "700"]);
        let first = conns[other].call(&["IDGET", &tag]);
        assert_eq!(first, Value::Int(700), "{tag}, right after CREATE on another node");
        ok(&mut conns[other], &["IDTAG", "CREATE", &tag, "START", "700"]);
    }
    refused_before(&mut conns);
    for conn in &mut conns {
        conn.call(&["IDMGET", "new0", "10"]).ints(); // every node has a segment in memory
    }
    let limit = 2 * REFRESH + SLACK;
    altered(&mut conns, limit);
    floored(&mut conns, limit);
    retired(&mut conns, limit);
}

/// A node remembers for one `tags.refresh` that it has looked for a tag in vain.
fn refused_before(conns: &mut [Conn]) {
    assert!(conns[1].call(&["IDGET", "later"]).error().starts_with("IDNOTAG "), "a tag that nobody has created");
    ok(&mut conns[0], &["IDTAG", "CREATE", "later", "START", "700"]);
    let first = eventually("CREATE reaches a node that has refused the tag", 2 * REFRESH + SLACK, || {
        let reply = conns[1].call(&["IDGET", "later"]);
        let refused = matches!(&reply, Value::Error(text) if text.starts_with("IDNOTAG "));
        (!refused).then_some(reply)
    });
    assert_eq!(first, Value::Int(700));
}

fn altered(conns: &mut [Conn], limit: Duration) {
    ok(&mut conns[0], &["IDTAG", "ALTER", "new0", "MAXSTEP", "4321"]);
    for conn in conns {
        eventually("ALTER reaches the node", limit, || (info(conn, "new0", "max_step") == "4321").then_some(()));
    }
}

/// FLOOR and RETIRE answer when every node knows, so there is nothing to wait for after the answer.
fn floored(conns: &mut [Conn], limit: Duration) {
    let start = Instant::now();
    ok(&mut conns[1], &["IDTAG", "FLOOR", "new0", "5000000"]);
    assert!(start.elapsed() < limit, "FLOOR took {:?}", start.elapsed());
    for conn in conns {
        let id = conn.call(&["IDGET", "new0"]).int();
        assert!(id > 5_000_000, "{id} after FLOOR on another node");
    }
}

fn retired(conns: &mut [Conn], limit: Duration) {
    let start = Instant::now();
    ok(&mut conns[2], &["IDTAG", "RETIRE", "new0"]);
    assert!(start.elapsed() < limit, "RETIRE took {:?}", start.elapsed());
    for conn in conns {
        for words in [&["IDGET", "new0"][..], &["IDTAG", "CREATE", "new0"]] {
            let reply = conn.call(words);
            assert!(reply.error().starts_with("IDRETIRED "), "{reply:?} after RETIRE on another node");
        }
    }
}

#[test]
fn changes_to_tags_reach_every_node_on_mariadb() {
    changes_reach_everybody(&MariaDb::start(&[]).dsn("idgen"));
}

#[test]
fn changes_to_tags_reach_every_node_on_postgresql() {
    changes_reach_everybody(&Postgres::start(&[]).dsn("idgen"));
}

/// In transaction mode each statement may meet another session of the server.
#[test]
fn changes_to_tags_reach_every_node_through_pgbouncer() {
    let server = Postgres::start(&[]);
    changes_reach_everybody(&PgBouncer::before(&server, &[]).dsn("idgen"));
}
