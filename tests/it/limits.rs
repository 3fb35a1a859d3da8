//! Rate limits over the wire: they hold under load, at once after a change, for whom they are meant and for nobody else.

use std::time::{Duration, Instant};

use crate::node::{Node, PATIENCE, Setup, eventually};
use crate::wire::{Conn, Value, request};

/// SHA-256 of `secret`.
const SECRET: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

fn ok(reply: &Value) {
    assert_eq!(reply, &Value::Simple("OK".into()));
}

/// Asks for `count` ids of `tag` in one pipeline: how many came. The others are refused by `limit`.
fn pipeline(conn: &mut Conn, tag: &str, count: usize, limit: &str) -> u64 {
    conn.send(&request(&["IDGET", tag]).repeat(count));
    let replies: Vec<Value> = (0..count).map(|_| conn.read()).collect();
    let got = replies.iter().filter(|reply| matches!(reply, Value::Int(_))).count();
    for refused in replies.iter().filter(|reply| !matches!(reply, Value::Int(_))) {
        let text = refused.error();
        assert!(text.starts_with(&format!("IDLIMIT {limit}: retry after ")) && text.ends_with(" ms"), "{text}");
    }
    assert!(replies[..got].iter().all(|reply| matches!(reply, Value::Int(_))), "a refusal between ids");
    got as u64
}

/// Fails unless `got` ids are a burst of `burst` and at most what has come in since `start`, at one a second.
fn is_burst(got: u64, burst: u64, start: Instant) {
    let most = burst + start.elapsed().as_secs() + 1;
    assert!((burst..=most).contains(&got), "{got} ids with a burst of {burst} in {:?}", start.elapsed());
}

/// Draws until the burst is gone.
fn drain(conn: &mut Conn, tag: &str, limit: &str) {
    eventually("the burst is gone", PATIENCE, || (pipeline(conn, tag, 500, limit) < 250).then_some(()));
}

#[test]
fn the_rate_is_kept_under_load_and_others_notice_nothing() {
    let node = Setup::new().start();
    let (mut conn, mut other) = (node.connect(), node.connect());
    for (tag, engine) in [("order", "segment"), ("event", "snowflake")] {
        ok(&conn.call(&["IDTAG", "CREATE", tag, "ENGINE", engine, "QPS", "4000"]));
        let limit = format!("tag '{tag}' may give 4000 ids per second on this node");
        drain(&mut conn, tag, &limit);
        let (start, mut got) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(2) {
            got += pipeline(&mut conn, tag, 200, &limit);
            other.call(&["IDMGET", "free", "50"]).ints();
        }
        let rate = f64::from(u32::try_from(got).unwrap()) / start.elapsed().as_secs_f64();
        assert!((3800.0..4200.0).contains(&rate), "{tag}: {rate} ids per second");
        let refused = node.metric(&format!("idgen_rate_limited_total{{scope=\"tag\",biz_tag=\"{tag}\"}}"));
        assert!(refused.is_some_and(|ids| ids >= 1.0), "{refused:?}");
        let limit = node.metric(&format!("idgen_rate_limit_ids_per_second{{scope=\"tag\",biz_tag=\"{tag}\"}}"));
        assert_eq!(limit, Some(4000.0));
    }
    assert_eq!(node.metric("idgen_rate_limited_total{scope=\"tag\",biz_tag=\"free\"}"), None);
}

#[test]
fn a_changed_limit_holds_at_once() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    ok(&conn.call(&["IDTAG", "CREATE", "order", "QPS", "1", "BURST", "20"]));
    assert_eq!(pipeline(&mut conn, "order", 20, ""), 20);
    let wait = conn.call(&["IDMGET", "order", "20"]);
    assert!(wait.error().starts_with("IDLIMIT tag 'order' may give 1 id per second on this node: retry after "));
    // 20 ids would take 20 s.
    ok(&conn.call(&["IDTAG", "ALTER", "order", "QPS", "1000"]));
    eventually("the new rate", Duration::from_secs(5), || {
        matches!(conn.call(&["IDMGET", "order", "20"]), Value::Array(_)).then_some(())
    });
    assert_eq!(conn.call(&["IDINFO", "order"]).field("burst"), &Value::Int(20));
    ok(&conn.call(&["IDTAG", "ALTER", "order", "QPS", "0"]));
    assert_eq!(pipeline(&mut conn, "order", 5000, ""), 5000);
    assert_eq!(conn.call(&["IDINFO", "order"]).field("qps"), &Value::Int(0));
}

#[test]
fn a_limit_outlives_the_process() {
    let setup = Setup::new();
    let node = setup.start();
    ok(&node.connect().call(&["IDTAG", "CREATE", "order", "QPS", "1", "BURST", "3"]));
    node.stop();
    let start = Instant::now();
    let node = setup.start();
    let limit = "tag 'order' may give 1 id per second on this node";
    is_burst(pipeline(&mut node.connect(), "order", 100, limit), 3, start);
}

#[test]
fn more_than_the_burst_never_passes_and_is_told_so() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    ok(&conn.call(&["IDTAG", "CREATE", "order", "QPS", "1000", "BURST", "10"]));
    let never = "IDCOUNT tag 'order' may give at most 10 ids at once on this node: ask for fewer, or raise it with \
                 IDTAG ALTER order BURST n";
    for command in ["IDMGET", "IDRANGE", "INCRBY"] {
        assert_eq!(conn.call(&[command, "order", "11"]).error(), never);
    }
    assert_eq!(conn.call(&["IDMGET", "order", "10"]).ints().len(), 10, "and nothing was used up");
}

/// A node with a limit of its own and two users, of whom one is limited.
fn with_users() -> Node {
    let user = |name: &str, more: &str| {
        format!("    - {{ name: {name}, token_sha256: [\"{SECRET}\"], acl: \"~order ~free +@all\"{more} }}\n")
    };
    let users = user("bob", ", qps: 1, burst: 30") + &user("eve", "") + &user("root", "").replace("~order ~free", "~*");
    let yaml = format!("rate_limit: {{ qps: 1, burst: 100 }}\nauth:\n  users:\n{users}");
    let node = Setup::new().config(&yaml).spawn();
    eventually("the node is ready", PATIENCE, || {
        let mut conn = Conn::try_connect(node.addr()).ok()?;
        conn.try_call(&["AUTH", "root", "secret"]).ok()?;
        (conn.try_call(&["PING"]).ok()? == Value::Simple("PONG".into())).then_some(())
    });
    node
}

fn log_in(node: &Node, name: &str) -> Conn {
    let mut conn = node.connect();
    ok(&conn.call(&["AUTH", name, "secret"]));
    conn
}

#[test]
fn a_user_and_the_node_have_limits_of_their_own() {
    let node = with_users();
    let (mut bob, mut again, mut eve) = (log_in(&node, "bob"), log_in(&node, "bob"), log_in(&node, "eve"));
    let start = Instant::now();
    let users = "user 'bob' may draw 1 id per second on this node";
    let got = pipeline(&mut bob, "order", 25, users) + pipeline(&mut again, "free", 25, users);
    // Over both connections and tags.
    is_burst(got, 30, start);
    let nodes = "this node may give 1 id per second";
    let more = pipeline(&mut eve, "order", 200, nodes);
    is_burst(got + more, 100, start);
    for (scope, limit) in [("node", 1.0), ("user", 1.0)] {
        let name = format!("idgen_rate_limit_ids_per_second{{scope=\"{scope}\",biz_tag=\"\"}}");
        assert_eq!(node.metric(&name), Some(limit), "{scope}");
    }
    let refused = node.metric("idgen_rate_limited_total{scope=\"node\",biz_tag=\"order\"}");
    assert!(refused.is_some_and(|ids| ids >= 50.0), "{refused:?}");
}

#[test]
fn strangers_take_nothing_from_a_tag() {
    let node = with_users();
    ok(&log_in(&node, "root").call(&["IDTAG", "CREATE", "secret", "QPS", "1", "BURST", "5"]));
    for mut conn in [node.connect(), log_in(&node, "eve")] {
        conn.send(&request(&["IDGET", "secret"]).repeat(50));
        for _ in 0..50 {
            let reply = conn.read();
            assert!(reply.error().starts_with("NOAUTH ") || reply.error().starts_with("NOPERM "), "{reply:?}");
        }
    }
    assert_eq!(pipeline(&mut log_in(&node, "root"), "secret", 5, ""), 5);
}

#[test]
fn a_refusal_takes_as_long_for_many_ids_as_for_one() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    ok(&conn.call(&["IDTAG", "CREATE", "order", "QPS", "1", "BURST", "10000"]));
    assert_eq!(conn.call(&["IDMGET", "order", "10000"]).ints().len(), 10_000);
    let mut time = |n: &str| {
        let start = Instant::now();
        conn.send(&request(&["IDMGET", "order", n]).repeat(500));
        for _ in 0..500 {
            let reply = conn.read();
            assert!(reply.error().starts_with("IDLIMIT "), "{reply:?}");
        }
        start.elapsed()
    };
    // The best of several, since other tests share the machine. 9000 ids that are drawn take a hundred times as long.
    let (mut few, mut many) = (Duration::MAX, Duration::MAX);
    for _ in 0..10 {
        (few, many) = (few.min(time("50")), many.min(time("9000")));
    }
    assert!(many < few * 5, "{few:?} for 50 ids each, {many:?} for 9000");
}
