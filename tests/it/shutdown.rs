//! A stop loses nothing: what was read is answered, tails go back, and a second signal ends everything at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::checkers;
use crate::load::{Dice, Load};
use crate::node::{PATIENCE, Setup, eventually};
use crate::wire::Value;

#[test]
fn stops_under_load_tear_no_reply_and_repeat_no_id() {
    let setup = Setup::new();
    let mut dice = Dice::new();
    let mut node = setup.start();
    let load = Load::start(setup.addr(), &["order"; 8], 128, &mut dice);
    for _ in 0..5 {
        let before = load.answered();
        eventually("ids are served", PATIENCE, || (load.answered() > before + 2000).then_some(()));
        std::thread::sleep(dice.millis(0, 100));
        node.stop();
        node = setup.start();
    }
    let drawn = load.finish();
    node.stop();
    // Besides errors, this refuses torn replies: a connection ends between two of them.
    checkers::only_errors(&drawn, &["LOADING", "TRYAGAIN"]);
    checkers::unique(&drawn);
    checkers::increasing_over_restarts(&drawn);
}

#[test]
fn quiet_clients_do_not_hold_up_a_stop() {
    let node = Setup::new().start();
    let mut quiet = node.connect();
    assert_eq!(quiet.call(&["IDGET", "order"]), Value::Int(1));
    // A peer counts as quiet after a second without a request.
    let idle = || node.connect().call(&["CLIENT", "LIST"]).text().lines().any(|line| line.contains(" idle=2 "));
    eventually("the client has been quiet", PATIENCE, || idle().then_some(()));
    let asked = Instant::now();
    node.stop();
    assert!(asked.elapsed() < Duration::from_secs(1), "the stop took {:?}", asked.elapsed());
}

#[test]
fn executed_requests_are_all_answered_so_that_no_id_is_missing() {
    let setup = Setup::new();
    let mut ids = Vec::new();
    for _ in 0..5 {
        let node = setup.start();
        let addr = setup.addr();
        let answered = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let answered = Arc::clone(&answered);
                std::thread::spawn(move || {
                    let mut conn = crate::wire::Conn::try_connect(addr).unwrap();
                    let bytes = crate::wire::request(&["IDGET", "order"]).repeat(100);
                    let mut ids = Vec::new();
                    while conn.try_send(&bytes).is_ok() {
                        for _ in 0..100 {
                            match conn.try_read() {
                                Ok(Value::Int(id)) => {
                                    ids.push(id);
                                    answered.fetch_add(1, Ordering::Relaxed);
                                }
                                Ok(Value::Error(text)) => assert!(text.starts_with("TRYAGAIN "), "{text}"),
                                Ok(other) => panic!("{other:?}"),
                                // Whole replies only: a torn one is another kind of error.
                                Err(error) => {
                                    assert!(crate::wire::closed(&error), "{error}");
                                    return ids;
                                }
                            }
                        }
                    }
                    ids
                })
            })
            .collect();
        eventually("ids are served", PATIENCE, || (answered.load(Ordering::Relaxed) > 5000).then_some(()));
        node.stop();
        for client in clients {
            let drawn = client.join().unwrap();
            assert!(!drawn.is_empty(), "a client drew nothing");
            ids.extend(drawn);
        }
    }
    let node = setup.start();
    ids.push(node.connect().call(&["IDGET", "order"]).int());
    ids.sort_unstable();
    let expected = i64::try_from(ids.len()).unwrap();
    let missing = ids.iter().zip(1..).find(|(id, at)| *id != at);
    assert!(missing.is_none(), "of 1 to {expected}: {missing:?} (the id, and what it should be)");
}

#[test]
fn a_draining_node_answers_loading_to_ping_and_still_serves_ids() {
    let mut node = Setup::new().set("server.drain_delay", "2s").start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    assert_eq!(node.http("/readyz").0, 200);
    node.signal(Signal::SIGTERM);
    eventually("PING says that the node drains", PATIENCE, || match conn.call(&["PING"]) {
        Value::Error(text) => {
            assert!(text.starts_with("LOADING "), "{text}");
            Some(())
        }
        _ => None,
    });
    let (status, reason) = node.http("/readyz");
    assert_eq!(status, 503, "{reason}");
    assert_eq!(node.http("/livez").0, 200);
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(2));
    let info = conn.call(&["INFO"]);
    assert!(info.text().contains("redis_version:"), "{info:?}");
    assert_eq!(node.wait().code(), Some(0));
    assert!(conn.is_closed());
}

#[test]
fn a_second_signal_ends_at_once() {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut node = Setup::new().set("server.drain_delay", "60s").start();
        let mut conn = node.connect();
        node.signal(signal);
        eventually("the node drains", PATIENCE, || matches!(conn.call(&["PING"]), Value::Error(_)).then_some(()));
        assert!(node.poll().is_none(), "the first signal ends it in spite of the drain delay");
        let start = Instant::now();
        node.signal(signal);
        assert_eq!(node.wait().code(), Some(code), "{signal}");
        assert!(start.elapsed() < Duration::from_secs(2), "{signal}: {:?}", start.elapsed());
    }
}

#[test]
fn an_idle_client_does_not_hold_up_a_stop() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["PING"]), Value::Simple("PONG".into()));
    let start = Instant::now();
    node.stop();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(conn.is_closed());
}
