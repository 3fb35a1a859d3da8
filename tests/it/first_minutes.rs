//! What a newcomer sees in the first minutes: 1, 2, 3, and what restarts do to that.

use crate::node::{Node, Setup, Shell};
use crate::wire::{Conn, Value};

fn next(node: &Node, tag: &str) -> i64 {
    node.connect().call(&["IDGET", tag]).int()
}

/// Both protocol versions, on the same node.
fn both(node: &Node) -> [(&'static str, Conn); 2] {
    [("resp2", node.connect()), ("resp3", node.connect().resp3())]
}

#[test]
fn a_fresh_start_counts_1_2_3() {
    let node = Setup::new().start();
    assert_eq!([next(&node, "order"), next(&node, "order"), next(&node, "order")], [1, 2, 3]);
}

#[test]
fn after_a_kill_the_next_id_is_larger() {
    let setup = Setup::new();
    let node = setup.start();
    let last = (0..3).map(|_| next(&node, "order")).fold(0, i64::max);
    node.kill();
    let node = setup.start();
    assert!(next(&node, "order") > last);
}

#[test]
fn after_a_clean_stop_the_next_id_is_4() {
    let setup = Setup::new();
    let node = setup.start();
    assert_eq!((0..3).map(|_| next(&node, "order")).collect::<Vec<_>>(), [1, 2, 3]);
    node.stop();
    assert_eq!(next(&setup.start(), "order"), 4);
}

#[test]
fn ten_clean_restarts_leave_no_gap() {
    let setup = Setup::new();
    let mut ids = Vec::new();
    for round in 1..=10 {
        let node = setup.start();
        // More each round, so that also restarts with a preloaded segment and just after a refill are among them.
        let mut conn = node.connect();
        ids.extend((0..round * 150).map(|_| conn.call(&["IDGET", "order"]).int()));
        drop(conn);
        node.stop();
    }
    assert!(ids.iter().copied().eq(1..=i64::try_from(ids.len()).unwrap()), "a gap in {} ids", ids.len());
}

#[test]
fn a_start_without_a_data_folder_makes_one_and_says_so() {
    let setup = Setup::new();
    let node = setup.start();
    assert!(setup.database().exists());
    assert!(node.log().contains("NEW database"), "the start does not announce the new database:\n{}", node.log());
    node.stop();
    let node = setup.start();
    assert!(!node.log().contains("NEW database"), "an old database is announced as new:\n{}", node.log());
}

#[test]
fn idmget_gives_n_increasing_ids() {
    let node = Setup::new().start();
    for (proto, mut conn) in both(&node) {
        assert_eq!(conn.call(&["IDMGET", proto, "5"]).ints(), [1, 2, 3, 4, 5]);
        let text = conn.call(&["IDMGET", proto, "2", "STR"]);
        assert_eq!(text, Value::Array(vec![Value::Bulk("6".into()), Value::Bulk("7".into())]));
        let most = conn.call(&["IDMGET", proto, "10000"]).ints();
        assert!(most.len() == 10_000 && most.is_sorted_by(|a, b| a < b) && most[0] > 7);
    }
}

#[test]
fn idrange_gives_exactly_n_ids_in_few_runs() {
    let node = Setup::new().start();
    for (proto, mut conn) in both(&node) {
        let ends = conn.call(&["IDRANGE", proto, "5000"]).ints();
        assert!(ends.len().is_multiple_of(2) && ends.len() <= 6, "{ends:?}");
        assert!(ends.is_sorted(), "{ends:?}");
        assert_eq!(ends.chunks(2).map(|run| run[1] - run[0] + 1).sum::<i64>(), 5000, "{ends:?}");
        assert!(
            conn.call(&["IDRANGE", proto, "1", "STR"]).array()[0].text().parse::<i64>().unwrap() > ends[ends.len() - 1]
        );
    }
}

#[test]
fn incr_counts_as_idget_does() {
    let node = Setup::new().start();
    for (proto, mut conn) in both(&node) {
        let ids = ["INCR", "IDGET", "incr", "idget"].map(|name| conn.call(&[name, proto]).int());
        assert_eq!(ids, [1, 2, 3, 4]);
    }
}

#[test]
fn incrby_gives_the_last_of_n_consecutive_ids() {
    let node = Setup::new().start();
    for (proto, mut conn) in both(&node) {
        assert_eq!(conn.call(&["INCRBY", proto, "10"]), Value::Int(10));
        assert_eq!(conn.call(&["IDGET", proto]), Value::Int(11));
    }
}

#[test]
fn incrby_stays_consecutive_with_3_ids_left_in_the_segment_and_above_the_step() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    let create = ["IDTAG", "CREATE", "order", "STEP", "100", "MINSTEP", "100", "MAXSTEP", "100"];
    assert_eq!(conn.call(&create).text(), "OK");
    let last = conn.call(&["IDMGET", "order", "97"]).ints()[96];
    assert_eq!(last, 97);
    // The ten ids up to v belong to this request alone: nothing before and nothing after may fall among them.
    let v = conn.call(&["INCRBY", "order", "10"]).int();
    assert!(v - 10 + 1 > last, "{v}");
    let after = conn.call(&["IDGET", "order"]).int();
    assert!(after > v, "{after} after {v}");
    let v = conn.call(&["INCRBY", "order", "1234"]).int();
    assert!(v - 1234 + 1 > after, "{v} after {after}");
    assert!(conn.call(&["IDGET", "order"]).int() > v);
}

#[test]
fn idget_str_gives_the_digits_as_text() {
    let node = Setup::new().start();
    for (proto, mut conn) in both(&node) {
        assert_eq!(conn.call(&["IDGET", proto, "STR"]), Value::Bulk("1".into()));
        assert_eq!(conn.call(&["IDGET", proto, "str"]), Value::Bulk("2".into()));
    }
}

#[test]
fn get_tells_the_last_id_and_takes_none() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["GET", "order"]), Value::Nil);
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    assert_eq!(conn.call(&["GET", "order"]), Value::Bulk("1".into()));
    assert_eq!(conn.call(&["GET", "order"]), Value::Bulk("1".into()));
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(2));
}

#[test]
fn iddecode_takes_a_snowflake_id_apart() {
    let node = Setup::new().start();
    for (proto, mut conn) in both(&node) {
        let tag = format!("event-{proto}");
        assert_eq!(conn.call(&["IDTAG", "CREATE", &tag, "ENGINE", "snowflake"]).text(), "OK");
        let id = conn.call(&["IDGET", &tag]).int();
        let parts = conn.call(&["IDDECODE", &id.to_string()]);
        // 41/5/5/12 from 2020-01-01T00:00+08:00, as documented.
        assert_eq!(parts.field("timestamp_ms").int(), (id >> 22) + 1_577_808_000_000);
        assert_eq!(parts.field("datacenter").int(), (id >> 17) & 31);
        assert_eq!(parts.field("worker").int(), (id >> 12) & 31);
        assert_eq!(parts.field("sequence").int(), id & 4095);
        let now = i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap();
        assert!((parts.field("timestamp_ms").int() - now).abs() < 60_000, "{parts:?} at {now}");
        assert!(parts.field("time").text().ends_with('Z'), "{parts:?}");
        assert!(conn.call(&["IDDECODE", "1", proto]).error().starts_with("IDNOTAG "));
        conn.call(&["IDGET", proto]);
        assert!(conn.call(&["IDDECODE", "1", proto]).error().starts_with("IDTYPE "));
    }
}

#[test]
fn idinfo_tells_the_state_of_a_tag() {
    let node = Setup::new().start();
    for (proto, mut conn) in both(&node) {
        assert_eq!(conn.call(&["IDTAG", "CREATE", proto, "STEP", "500", "DESC", "orders"]).text(), "OK");
        assert_eq!(conn.call(&["IDMGET", proto, "3"]).ints(), [1, 2, 3]);
        let info = conn.call(&["IDINFO", proto]);
        let expected = [("tag", proto), ("engine", "segment"), ("order", "node"), ("description", "orders")];
        for (field, value) in expected {
            assert_eq!(info.field(field).text(), value, "{info:?}");
        }
        assert_eq!(info.field("step").int(), 500, "{info:?}");
        assert_eq!(info.field("issued").int(), 3, "{info:?}");
        let all = "guarantee step_reason min_step max_step max remaining next_ready max_id floor qps burst critical revision \
                   retired";
        all.split_whitespace().for_each(|field| drop(info.field(field).clone()));
        let snow = format!("snow-{proto}");
        assert_eq!(conn.call(&["IDTAG", "CREATE", &snow, "ENGINE", "snowflake"]).text(), "OK");
        conn.call(&["IDGET", &snow]).int();
        let info = conn.call(&["IDINFO", &snow]);
        assert_eq!(info.field("engine").text(), "snowflake");
        "worker datacenter window_remaining_ms".split(' ').for_each(|field| drop(info.field(field).clone()));
    }
}

#[test]
fn idnode_and_idworkers_tell_who_this_node_is() {
    let node = Setup::new().start();
    for (proto, mut conn) in both(&node) {
        let tag = format!("event-{proto}");
        assert_eq!(conn.call(&["IDTAG", "CREATE", &tag, "ENGINE", "snowflake"]).text(), "OK");
        conn.call(&["IDGET", &tag]).int();
        let workers = conn.call(&["IDWORKERS"]);
        assert_eq!(workers.array().len(), 32, "one row for each of the 2^5 worker ids");
        let mine = workers.array().iter().filter(|row| row.field("state").text() == "mine").count();
        assert_eq!(mine, 1, "{workers:?}");
        let node = conn.call(&["IDNODE"]);
        assert!(
            matches!(node, Value::Map(_) | Value::Array(_)) && !node.field("version").text().is_empty(),
            "{node:?}"
        );
    }
}

#[test]
fn the_database_knows_what_was_given_away() {
    let setup = Setup::new();
    let node = setup.start();
    assert_eq!(next(&node, "order"), 1);
    let max_id = || Shell::run(&setup.database(), "SELECT max_id FROM id_alloc WHERE biz_tag = 'order'");
    assert_eq!(max_id().parse::<i64>().unwrap(), 1000, "the first grant is one default step");
    node.stop();
    assert_eq!(max_id(), "1", "the tail was returned");
}
