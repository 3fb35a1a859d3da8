//! Changes to tags against ids that are already in memory: what was refused, floored or retired is never issued again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crate::load::{Dice, Load};
use crate::node::{Node, PATIENCE, Setup, Shell, eventually};
use crate::wire::{Conn, Value, request};

fn ok(reply: &Value) {
    assert_eq!(reply, &Value::Simple("OK".into()));
}

#[test]
fn after_floor_no_id_at_or_below_it_is_issued() {
    let setup = Setup::new();
    let node = setup.start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    // Inside the segment in memory (1 to 1000), then far above it; under load from other connections.
    for floor in [500, 1_000_000] {
        let load = Load::start(setup.addr(), &["order"; 2], 16, &mut Dice::new());
        eventually("ids are served", PATIENCE, || (load.answered() > 20).then_some(()));
        ok(&conn.call(&["IDTAG", "FLOOR", "order", &floor.to_string()]));
        let id = conn.call(&["IDGET", "order"]).int();
        assert!(id > floor, "{id} after FLOOR {floor}");
        let drawn = load.finish();
        crate::checkers::only_errors(&drawn, &["TRYAGAIN"]);
        crate::checkers::increasing_within_connections(&drawn);
        // Other connections have no older ids either.
        let load = Load::start(setup.addr(), &["order"; 2], 16, &mut Dice::new());
        eventually("ids are served", PATIENCE, || (load.answered() > 20).then_some(()));
        let drawn = load.finish();
        let lowest =
            drawn.iter().flat_map(|one| &one.sessions).flat_map(|session| &session.runs).map(|run| run.0).min();
        assert!(lowest.unwrap() > floor, "{lowest:?} after FLOOR {floor}");
        // A floor only raises.
        ok(&conn.call(&["IDTAG", "FLOOR", "order", "10"]));
        assert!(conn.call(&["IDGET", "order"]).int() > id);
    }
    node.stop();
    assert!(setup.start().connect().call(&["IDGET", "order"]).int() > 1_000_000);
}

#[test]
fn a_floor_far_above_needs_force() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    conn.call(&["IDGET", "order"]).int();
    let far = "2000000000000";
    let refused = conn.call(&["IDTAG", "FLOOR", "order", far]);
    assert!(refused.error().contains("FORCE"), "{refused:?}");
    assert!(conn.call(&["IDGET", "order"]).int() < 10);
    ok(&conn.call(&["IDTAG", "FLOOR", "order", far, "FORCE"]));
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(2_000_000_000_001));
}

#[test]
fn a_retired_tag_never_serves_again() {
    let setup = Setup::new();
    let node = setup.start();
    let mut conn = node.connect();
    conn.call(&["IDGET", "order"]).int();
    ok(&conn.call(&["IDTAG", "RETIRE", "order"]));
    let gone = |reply: Value| assert!(reply.error().starts_with("IDRETIRED "), "{reply:?}");
    for words in [&["IDGET", "order"][..], &["INCR", "order"], &["IDMGET", "order", "2"], &["IDTAG", "CREATE", "order"]]
    {
        gone(conn.call(words));
    }
    node.stop();
    let node = setup.start();
    gone(node.connect().call(&["IDGET", "order"]));
    gone(node.connect().call(&["IDTAG", "CREATE", "order"]));
}

/// Two connections draw from `order` while `change` is made on a third; every reply to a request that was sent after it
/// was acknowledged, on these two, on the third and on one that has used the tag before.
fn replies_after(node: &Node, change: impl FnOnce(&mut Conn)) -> (Vec<Value>, Vec<Value>) {
    const AFTER: usize = 200;
    let addr = node.addr();
    let mut idle = node.connect();
    idle.call(&["IDGET", "order"]).int();
    let (made, drawn) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let clients = [(); 2].map(|()| {
        let (made, drawn) = (Arc::clone(&made), Arc::clone(&drawn));
        std::thread::spawn(move || {
            let mut conn = Conn::try_connect(addr).unwrap();
            let (mut before, mut after) = (Vec::new(), Vec::new());
            while after.len() < AFTER {
                // Looked at before the requests are sent: what follows is later than the acknowledgement.
                let late = made.load(Ordering::SeqCst);
                conn.send(&request(&["IDGET", "order"]).repeat(10));
                let replies = (0..10).map(|_| conn.read());
                if late { &mut after } else { &mut before }.extend(replies);
                drawn.fetch_add(10, Ordering::Relaxed);
            }
            (before, after)
        })
    });
    eventually("ids are served", PATIENCE, || (drawn.load(Ordering::Relaxed) > 2000).then_some(()));
    let mut conn = node.connect();
    change(&mut conn);
    made.store(true, Ordering::SeqCst);
    let mut after: Vec<Value> = [&mut idle, &mut conn].into_iter().map(|conn| conn.call(&["IDGET", "order"])).collect();
    let mut before = Vec::new();
    for client in clients {
        let (early, late) = client.join().unwrap();
        before.extend(early);
        after.extend(late);
    }
    assert!(after.len() >= 2 * AFTER + 2 && before.len() >= 2000);
    (before, after)
}

#[test]
fn after_retire_no_connection_is_given_an_id() {
    for _ in 0..5 {
        let node = Setup::new().start();
        let (before, after) = replies_after(&node, |conn| ok(&conn.call(&["IDTAG", "RETIRE", "order"])));
        let retired = |reply: &Value| matches!(reply, Value::Error(text) if text.starts_with("IDRETIRED "));
        let late = after.iter().find(|reply| !retired(reply));
        assert!(late.is_none(), "{late:?} to a request that was sent after RETIRE was acknowledged");
        let expected = |reply: &&Value| {
            !matches!(reply, Value::Int(_)) && !retired(reply) && !reply.error().starts_with("TRYAGAIN ")
        };
        assert_eq!(before.iter().find(expected), None);
    }
}

#[test]
fn after_alter_max_no_connection_is_given_an_id_above_it() {
    let node = Setup::new().start();
    let mut most = 0;
    let (before, after) = replies_after(&node, |conn| {
        // Just above what has been given away, which the others go on raising: as often as it takes.
        most = eventually("MAX is set", PATIENCE, || {
            let most = conn.call(&["IDINFO", "order"]).field("max_id").int() + 2000;
            (conn.call(&["IDTAG", "ALTER", "order", "MAX", &most.to_string()]) == Value::Simple("OK".into()))
                .then_some(most)
        });
    });
    for reply in before.iter().chain(&after) {
        match reply {
            Value::Int(id) => assert!(*id <= most, "{id} above MAX {most}"),
            other => {
                let text = other.error();
                assert!(text.starts_with("IDEXHAUSTED ") || text.starts_with("TRYAGAIN "), "{text}");
            }
        }
    }
    let mut conn = node.connect();
    eventually("the ids end", PATIENCE, || match conn.call(&["IDMGET", "order", "10"]) {
        Value::Array(ids) => {
            assert!(ids[9].int() <= most, "{:?} above MAX {most}", ids[9]);
            None
        }
        other => other.error().starts_with("IDEXHAUSTED ").then_some(()),
    });
}

#[test]
fn alter_max_holds_for_ids_in_memory() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    ok(&conn.call(&["IDTAG", "CREATE", "order", "STEP", "100", "MINSTEP", "100", "MAXSTEP", "100", "MAX", "250"]));
    let ids: Vec<Value> = (0..251).map(|_| conn.call(&["IDGET", "order"])).collect();
    let (last, served) = ids.split_last().unwrap();
    assert!(served.iter().map(Value::int).eq(1..=250), "the last partial range is used whole");
    assert!(last.error().starts_with("IDEXHAUSTED "), "{last:?}");
    ok(&conn.call(&["IDTAG", "ALTER", "order", "MAX", "251"]));
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(251));
    let lower = conn.call(&["IDTAG", "ALTER", "order", "MAX", "100"]);
    assert!(matches!(lower, Value::Error(_)), "MAX below what is given away: {lower:?}");
    for fixed in [["ENGINE", "snowflake"], ["START", "5"], ["ORDER", "strict"]] {
        assert!(matches!(conn.call(&["IDTAG", "ALTER", "order", fixed[0], fixed[1]]), Value::Error(_)), "{fixed:?}");
    }
}

#[test]
fn a_row_deleted_under_a_running_server_closes_the_tag() {
    let setup = Setup::new();
    let node = setup.start();
    let mut conn = node.connect();
    conn.call(&["IDGET", "order"]).int();
    Shell::run(&setup.database(), "DELETE FROM id_alloc WHERE biz_tag = 'order'");
    let mut last = 1;
    eventually("the tag is closed", PATIENCE, || match conn.call(&["IDMGET", "order", "100"]) {
        Value::Error(text) => {
            assert!(text.starts_with("IDBACKEND ") || text.starts_with("TRYAGAIN "), "{text}");
            text.starts_with("IDBACKEND ").then_some(())
        }
        ids => {
            assert!(ids.ints()[0] > last, "{:?} after {last}", ids.ints()[0]);
            last = *ids.ints().last().unwrap();
            None
        }
    });
    // It stays closed: no one may start it at 1 again.
    for words in [&["IDGET", "order"][..], &["INCR", "order"]] {
        assert!(conn.call(words).error().starts_with("IDBACKEND "), "{words:?}");
    }
    let other = conn.call(&["IDGET", "other"]);
    assert_eq!(other, Value::Int(1), "other tags go on");
}

#[test]
fn a_row_deleted_before_this_run_has_drawn_is_not_created_again_by_command() {
    let setup = Setup::new().set("tags.refresh", "1s");
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(1));
    assert_eq!(node.connect().call(&["IDGET", "gauge"]), Value::Int(1));
    node.stop();
    // This run knows the tag from the store alone; it has drawn nothing.
    let node = setup.start();
    let mut conn = node.connect();
    Shell::run(&setup.database(), "DELETE FROM id_alloc WHERE biz_tag = 'order'");
    let refused = |reply: Value| assert!(reply.error().starts_with("IDBACKEND "), "{reply:?}");
    refused(conn.call(&["IDTAG", "CREATE", "order"]));
    refused(conn.call(&["IDGET", "order"]));
    // The node reads the whole catalogue again from time to time; it does not forget the tag by that.
    let age = "idgen_tag_catalogue_age_seconds";
    let start = Instant::now();
    eventually("the catalogue was read again", PATIENCE, || {
        (node.metric(age)? < start.elapsed().as_secs_f64() - 0.1).then_some(())
    });
    for words in [&["IDTAG", "CREATE", "order"][..], &["IDGET", "order"], &["INCR", "order"], &["IDMGET", "order", "2"]]
    {
        refused(conn.call(words));
    }
    assert_eq!(Shell::run(&setup.database(), "SELECT count(*) FROM id_alloc WHERE biz_tag = 'order'"), "0");
    assert_eq!(conn.call(&["IDGET", "gauge"]), Value::Int(2), "other tags go on");
}

#[test]
fn keys_with_a_reply_above_the_limit_is_an_error_that_names_scan() {
    let setup = Setup::new();
    setup.start().stop();
    // 80 000 names of 125 bytes are 10 MB, and the limit is 8 MiB.
    let names = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 80000)
        INSERT INTO id_alloc (biz_tag, step, engine, min_step, max_step, revision)
        SELECT printf('%0125d', i), 1000, 'segment', 1000, 1000, i + 1000 FROM n;
        UPDATE id_alloc_revision SET revision = 100000";
    Shell::run(&setup.database(), names);
    let node = setup.start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["DBSIZE"]), Value::Int(80_000));
    let reply = conn.try_call(&["KEYS", "*"]).expect("a reply, not the end of the connection");
    assert!(matches!(&reply, Value::Error(text) if text.contains("SCAN")), "no error that names SCAN");
    assert_eq!(conn.call(&["KEYS", "*00001"]), Value::Array(vec![Value::Bulk(format!("{:0125}", 1))]));
    let page = conn.call(&["SCAN", "0", "COUNT", "1000"]);
    assert!(page.array()[1].array().len() >= 900, "SCAN goes on: {} names", page.array()[1].array().len());
    // Within a transaction it is one error among the replies.
    conn.send(&[request(&["MULTI"]), request(&["KEYS", "*"]), request(&["PING"]), request(&["EXEC"])].concat());
    (0..3).for_each(|_| assert!(matches!(conn.read(), Value::Simple(_))));
    let replies = conn.read();
    assert!(replies.array()[0].error().contains("SCAN"));
    assert_eq!(replies.array()[1], Value::Simple("PONG".into()));
}

#[test]
fn create_is_idempotent_and_a_difference_is_a_conflict() {
    let setup = Setup::new();
    let node = setup.start();
    let mut conn = node.connect();
    let create = ["IDTAG", "CREATE", "order", "STEP", "500", "START", "1001"];
    ok(&conn.call(&create));
    ok(&conn.call(&create));
    ok(&conn.call(&["IDTAG", "CREATE", "order"])); // only what is named is compared
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1001));
    let conflict = conn.call(&["IDTAG", "CREATE", "order", "STEP", "600"]);
    assert!(conflict.error().starts_with("IDCONFLICT "), "{conflict:?}");
    assert!(conflict.error().to_lowercase().contains("step"), "the difference is not named: {conflict:?}");
    let conflict = conn.call(&["IDTAG", "CREATE", "order", "ENGINE", "snowflake"]);
    assert!(conflict.error().starts_with("IDCONFLICT ") && conflict.error().to_lowercase().contains("engine"));
}

#[test]
fn tags_are_case_sensitive_also_in_the_database() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    let ids = ["order", "Order", "ORDER", "order"].map(|tag| conn.call(&["IDGET", tag]).int());
    assert_eq!(ids, [1, 1, 1, 2]);
}

#[test]
fn unknown_tags_are_refused_where_the_configuration_says_so() {
    let node = Setup::new().set("tags.unknown", "refuse").start();
    let mut conn = node.connect();
    for words in [&["IDGET", "order"][..], &["INCR", "order"], &["IDMGET", "order", "3"], &["IDINFO", "order"]] {
        let reply = conn.call(words);
        assert!(reply.error().starts_with("IDNOTAG "), "{words:?}: {reply:?}");
    }
    ok(&conn.call(&["IDTAG", "CREATE", "order"]));
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    assert_eq!(conn.call(&["GET", "nobody"]), Value::Nil);
}

#[test]
fn at_tags_max_no_more_are_created() {
    let node = Setup::new().set("tags.max", "3").start();
    let mut conn = node.connect();
    for tag in ["a", "b", "c"] {
        assert_eq!(conn.call(&["IDGET", tag]), Value::Int(1));
    }
    assert!(conn.call(&["IDGET", "d"]).error().starts_with("IDNOTAG "));
    assert_eq!(conn.call(&["IDGET", "a"]), Value::Int(2));
}

#[test]
fn rules_choose_the_engine_of_a_new_tag() {
    let yaml =
        "tags:\n  rules:\n    - { match: \"event*\", engine: snowflake }\n    - { match: \"*\", engine: segment }\n";
    let node = Setup::new().config(yaml).start();
    let mut conn = node.connect();
    assert!(
        eventually("a Snowflake id", PATIENCE, || match conn.call(&["IDGET", "event.click"]) {
            Value::Int(id) => Some(id),
            _ => None,
        }) > 1 << 40
    );
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    assert_eq!(conn.call(&["IDINFO", "event.click"]).field("engine").text(), "snowflake");
}

#[test]
fn list_walks_over_all_tags() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    let tags: Vec<String> = (0..45).map(|at| format!("list.{at:02}")).collect();
    for tag in &tags {
        conn.call(&["IDGET", tag]).int();
    }
    conn.call(&["IDGET", "other"]).int();
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let page = conn.call(&["IDTAG", "LIST", "MATCH", "list.*", "COUNT", "10", "CURSOR", &cursor]);
        found.extend(page.array()[1].array().iter().map(|tag| tag.text().to_owned()));
        page.array()[0].text().clone_into(&mut cursor);
        if cursor == "0" {
            break;
        }
        assert!(found.len() <= 45, "the walk does not end");
    }
    found.sort();
    assert_eq!(found, tags);
}
