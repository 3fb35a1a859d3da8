//! What a tag costs in memory, and ten thousand of them asked for at once.

use std::thread;

use crate::node::{Node, PATIENCE, Setup, Shell, eventually};
use crate::wire::Value;

const TAGS: u64 = 20_000;

/// The most that a tag may cost, whether it is idle or in use.
const MOST_BYTES: u64 = 2048;

/// Threads that ask, each for its share of the tags.
const CLIENTS: u64 = 32;

fn tag(n: u64) -> String {
    format!("service.orders.{n:06}")
}

/// Draws the first id of every tag, each at last within [`PATIENCE`].
fn use_all(node: &Node) {
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut conn = node.connect();
                for n in (0..TAGS).filter(|n| n % CLIENTS == client) {
                    let first = eventually("an id", PATIENCE, || match conn.call(&["IDGET", &tag(n)]) {
                        Value::Int(id) => Some(id),
                        Value::Error(text) if text.starts_with("TRYAGAIN") => None,
                        other => panic!("{}: {other:?}", tag(n)),
                    });
                    assert_eq!(first, 1, "{}", tag(n));
                }
            });
        }
    });
}

#[test]
fn twenty_thousand_tags_cost_less_than_two_kib_each_idle_or_in_use() {
    let setup = Setup::in_memory();
    setup.start().stop();
    let node = setup.start();
    let empty = node.memory();
    node.stop();
    Shell::run(
        &setup.database(),
        &format!(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {TAGS} - 1)
             INSERT INTO id_alloc (biz_tag, step, engine, min_step, max_step, revision)
             SELECT printf('service.orders.%06d', i), 1000, 'segment', 100, 1000000, i + 1 FROM n;
             UPDATE id_alloc_revision SET revision = {TAGS};"
        ),
    );
    let node = setup.start();
    let known = node.connect().call(&["DBSIZE"]);
    assert_eq!(known, Value::Int(i64::try_from(TAGS).unwrap()));
    let cost = |what: &str| {
        let bytes = node.memory().saturating_sub(empty) / TAGS;
        assert!(bytes < MOST_BYTES, "a tag that is {what} costs {bytes} bytes");
        eprintln!("a tag that is {what} costs {bytes} bytes");
    };
    cost("idle");
    use_all(&node);
    cost("in use");
    node.stop();
}
