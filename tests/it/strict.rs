//! `ORDER strict` over sockets: every command works on such a tag, and a store that may lose commits can't have one.

use std::collections::BTreeSet;

use crate::node::{Setup, Shell};
use crate::wire::{Value, request};

fn ok(reply: &Value) {
    assert_eq!(reply, &Value::Simple("OK".into()));
}

#[test]
fn every_command_serves_a_strict_tag_and_tells_the_truth_about_it() {
    let setup = Setup::new();
    let node = setup.start();
    let mut conn = node.connect();
    ok(&conn.call(&["IDTAG", "CREATE", "order", "ORDER", "strict", "MAX", "200"]));
    assert_eq!(conn.call(&["GET", "order"]), Value::Nil);
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    assert_eq!(conn.call(&["IDMGET", "order", "5"]).ints(), [2, 3, 4, 5, 6]);
    assert_eq!(conn.call(&["IDRANGE", "order", "3"]).ints(), [7, 9]);
    assert_eq!(conn.call(&["INCRBY", "order", "4"]), Value::Int(13));
    assert_eq!(conn.call(&["INCR", "order"]), Value::Int(14));
    assert_eq!(conn.call(&["GET", "order"]).text(), "14");
    let before = node.metric("idgen_segment_fetch_total{biz_tag=\"order\"}").unwrap();
    conn.send(&request(&["IDGET", "order"]).repeat(20));
    assert!((15..35).all(|id| conn.read() == Value::Int(id)));
    let after = node.metric("idgen_segment_fetch_total{biz_tag=\"order\"}").unwrap();
    assert!(after - before <= 2.0, "one demand for what was read together: {before} and {after}");
    let info = conn.call(&["IDINFO", "order"]);
    for (field, expected) in [("order", "strict"), ("guarantee", "unique"), ("step_reason", "strict")] {
        assert_eq!(info.field(field).text(), expected);
    }
    for (field, expected) in [("remaining", 0), ("max_id", 34), ("next_ready", 0)] {
        assert_eq!(info.field(field).int(), expected, "{field}");
    }
    assert_eq!(node.metric("idgen_segment_remaining_ids{biz_tag=\"order\"}"), Some(0.0));
    ok(&conn.call(&["IDTAG", "FLOOR", "order", "190"]));
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(191));
    let refused = conn.call(&["IDMGET", "order", "10"]);
    assert!(refused.error().starts_with("IDEXHAUSTED ") && refused.error().contains("only 9 ids"), "{refused:?}");
    assert_eq!(conn.call(&["IDMGET", "order", "9"]).ints(), (192..=200).collect::<Vec<i64>>());
    ok(&conn.call(&["IDTAG", "RETIRE", "order"]));
    assert!(conn.call(&["IDGET", "order"]).error().starts_with("IDRETIRED "));
}

#[test]
fn many_clients_share_commits_and_nobody_shares_an_id() {
    const CLIENTS: usize = 24;
    const EACH: usize = 50;
    let node = Setup::new().start();
    ok(&node.connect().call(&["IDTAG", "CREATE", "order", "ORDER", "strict"]));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut conn = node.connect();
            std::thread::spawn(move || (0..EACH).map(|_| conn.call(&["IDGET", "order"]).int()).collect::<Vec<i64>>())
        })
        .collect();
    let mut all = BTreeSet::new();
    for client in clients {
        let ids = client.join().unwrap();
        assert!(ids.is_sorted(), "{ids:?}");
        all.extend(ids);
    }
    assert_eq!(all.len(), CLIENTS * EACH);
    let grants = node.metric("idgen_segment_fetch_total{biz_tag=\"order\"}").unwrap();
    assert!(grants < 600.0, "{grants} grants for {} requests", CLIENTS * EACH);
    assert_eq!(node.metric("idgen_circuit_state{store=\"sqlite\"}"), Some(0.0));
}

#[test]
fn a_store_that_may_lose_commits_can_have_no_strict_tag() {
    let setup = Setup::in_memory();
    let node = setup.start();
    let mut conn = node.connect();
    let refused = conn.call(&["IDTAG", "CREATE", "order", "ORDER", "strict"]);
    assert!(refused.error().starts_with("IDTYPE ORDER strict needs a database that keeps"), "{refused:?}");
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    node.stop();
    // As when the settings were right once.
    Shell::run(&setup.database(), "UPDATE id_alloc SET ordering = 'strict' WHERE biz_tag = 'order'");
    let node = setup.start();
    let mut conn = node.connect();
    let refused = conn.call(&["IDGET", "order"]);
    assert!(refused.error().starts_with("IDBACKEND tag 'order': ORDER strict needs"), "{refused:?}");
    assert_eq!(conn.call(&["IDINFO", "order"]).field("guarantee").text(), "unique-unless-store-loses-commits");
    assert!(node.log().contains("with ORDER strict"), "{}", node.log());
    assert_eq!(conn.call(&["IDGET", "other"]), Value::Int(1), "others are served");
}
