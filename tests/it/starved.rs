//! A tag that has run out while the store stands still delays nobody else for longer than `wait_max`, and says why.

use std::time::{Duration, Instant};

use crate::node::{PATIENCE, Setup, Shell, eventually};
use crate::wire::{Conn, Value, request};

/// What `server.wait_max` is set to where waits are measured.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// What two busy cores may add to it: less than a second wait would.
const SLACK: Duration = Duration::from_millis(900);

/// One wait, and not two.
fn is_one_wait(took: Duration) -> bool {
    (WAIT_MAX.mul_f64(0.95)..WAIT_MAX + SLACK).contains(&took)
}

/// `starved` holds at most 200 ids in memory, `full` very many.
fn prepare(conn: &mut Conn) {
    let small = ["IDTAG", "CREATE", "starved", "STEP", "100", "MINSTEP", "100", "MAXSTEP", "100"];
    let large = ["IDTAG", "CREATE", "full", "STEP", "1000000", "MINSTEP", "1000000", "MAXSTEP", "1000000"];
    for words in [&small[..], &large[..]] {
        assert_eq!(conn.call(words).text(), "OK", "{words:?}");
    }
    assert_eq!(conn.call(&["IDGET", "full"]), Value::Int(1));
    assert_eq!(conn.call(&["IDGET", "starved"]), Value::Int(1));
}

/// Uses up what the node holds of `starved` while the store is locked; the last id that was given.
fn use_up(conn: &mut Conn) -> i64 {
    let mut last = 1;
    for _ in 0..1000 {
        match conn.call(&["IDGET", "starved"]) {
            Value::Int(id) => last = id,
            Value::Error(text) => {
                assert!(text.starts_with("TRYAGAIN ") || text.starts_with("IDBACKEND "), "{text}");
                return last;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("a thousand ids of a tag whose step is 100, with the database locked");
}

fn is_shortage(reply: &Value) -> bool {
    matches!(reply, Value::Error(text) if text.starts_with("TRYAGAIN ") || text.starts_with("IDBACKEND "))
}

#[test]
fn a_starved_tag_delays_a_pipeline_by_at_most_wait_max_in_all() {
    let setup = Setup::new().set("server.wait_max", "1s");
    let node = setup.start();
    let mut conn = node.connect();
    prepare(&mut conn);
    let lock = Shell::lock(&setup.database());
    let last = use_up(&mut conn);

    // All of the starved ones first, then the other.
    let (starved, full) = (request(&["IDGET", "starved"]), request(&["IDGET", "full"]));
    let start = Instant::now();
    conn.send(&[starved.repeat(100), full.clone()].concat());
    let replies: Vec<Value> = (0..100).map(|_| conn.read()).collect();
    assert!(conn.read().int() > 1);
    let took = start.elapsed();
    assert!(replies.iter().all(is_shortage), "{replies:?}");
    assert!(is_one_wait(took), "101 requests took {took:?}");

    // In turns.
    let start = Instant::now();
    conn.send(&[starved, full].concat().repeat(100));
    for _ in 0..100 {
        assert!(is_shortage(&conn.read()));
        conn.read().int();
    }
    let took = start.elapsed();
    assert!(is_one_wait(took), "200 requests in turns took {took:?}");

    // Another connection isn't delayed at all.
    let mut other = node.connect();
    conn.send(&request(&["IDGET", "starved"]).repeat(100));
    let start = Instant::now();
    other.call(&["IDGET", "full"]).int();
    let took = start.elapsed();
    assert!(took < WAIT_MAX / 2, "a request on another connection took {took:?}");
    (0..100).for_each(|_| assert!(is_shortage(&conn.read())));

    drop(lock);
    let next = eventually("the tag recovers", PATIENCE, || match conn.call(&["IDGET", "starved"]) {
        Value::Int(id) => Some(id),
        _ => None,
    });
    assert!(next > last, "{next} after {last}");
    node.stop();
}

#[test]
fn a_refill_in_flight_says_try_again_and_a_failed_one_names_the_store() {
    let setup = Setup::new().set("server.wait_max", "250ms").set("database.statement_timeout", "1s");
    let node = setup.start();
    let mut conn = node.connect();
    prepare(&mut conn);
    let _lock = Shell::lock(&setup.database());
    use_up(&mut conn);
    // The statement gives up after its time limit; from then on there is a failure to tell.
    let mut seen = Vec::new();
    eventually("the failure is told", PATIENCE, || {
        let text = conn.call(&["IDGET", "starved"]).error().to_owned();
        let failed = text.starts_with("IDBACKEND ");
        seen.push(text);
        failed.then_some(())
    });
    assert!(seen.iter().all(|text| text.starts_with("TRYAGAIN ") || text.starts_with("IDBACKEND ")), "{seen:?}");
    assert!(!seen.iter().any(|text| text.contains("READONLY")), "the word that makes clients reconnect: {seen:?}");
    // The other tag, the connection and PING know nothing of it.
    conn.call(&["IDGET", "full"]).int();
    assert_eq!(conn.call(&["PING"]), Value::Simple("PONG".into()));
    assert_eq!(node.http("/readyz").0, 200);
}
