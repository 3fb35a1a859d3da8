//! The admin port: metrics that Prometheus' own checker finds no fault with, and health in words.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::node::{PATIENCE, Setup, Shell, eventually};
use crate::wire::Value;

/// What `promtool check metrics` finds wrong; nothing if all is well.
fn promtool(metrics: &str) -> String {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing: `tests/install test` installs it");
    child.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let mut text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        text.insert_str(0, &format!("{}: ", output.status));
    }
    text
}

#[test]
fn the_metrics_pass_promtool_and_count_what_happened() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDMGET", "order", "5"]).array().len(), 5);
    assert_eq!(conn.call(&["IDTAG", "CREATE", "event", "ENGINE", "snowflake"]).text(), "OK");
    assert!(conn.call(&["IDGET", "event"]).int() > 1 << 40);
    assert_eq!(conn.call(&["IDTAG", "CREATE", "tiny", "MAX", "1"]).text(), "OK");
    assert_eq!(conn.call(&["IDGET", "tiny"]), Value::Int(1));
    assert!(conn.call(&["IDGET", "tiny"]).error().starts_with("IDEXHAUSTED "));
    let (status, metrics) = node.http("/metrics");
    assert_eq!(status, 200);
    assert_eq!(promtool(&metrics), "", "{metrics}");
    let value = |name: &str| eventually(name, PATIENCE, || node.metric(name));
    let counts = [
        ("idgen_ids_issued_total{biz_tag=\"order\",engine=\"segment\"}", 5.0),
        ("idgen_ids_issued_total{biz_tag=\"event\",engine=\"snowflake\"}", 1.0),
        ("idgen_requests_total{biz_tag=\"order\",engine=\"segment\",status=\"ok\"}", 1.0),
        ("idgen_requests_total{biz_tag=\"tiny\",engine=\"segment\",status=\"idexhausted\"}", 1.0),
        ("idgen_segment_fetch_total{biz_tag=\"order\"}", 1.0),
        ("idgen_store_up{store=\"sqlite\"}", 1.0),
        ("idgen_store_durable{store=\"sqlite\"}", 1.0),
        ("idgen_segment_remaining_ids{biz_tag=\"order\"}", 995.0),
    ];
    for (name, expected) in counts {
        assert!((value(name) - expected).abs() < 0.5, "{name} is {}, not {expected}", value(name));
    }
    assert!(value("idgen_connections") >= 1.0);
    assert!(value("idgen_worker_window_remaining_seconds") > 0.0);
    assert!(value("idgen_clock_offset_seconds").abs() < 5.0);
    assert!(value("process_resident_memory_bytes") > 1e6);
    assert!(value("idgen_snowflake_exhaustion_timestamp_seconds") > 3e9, "the timestamp bits end after 2065");
    for name in ["idgen_build_info", "idgen_request_duration_seconds_bucket", "idgen_segment_step"] {
        assert!(metrics.contains(&format!("\n{name}{{")), "no {name}");
    }
}

#[test]
fn callers_can_not_make_labels() {
    let node = Setup::new().set("tags.unknown", "refuse").start();
    let mut conn = node.connect();
    for at in 0..300 {
        assert!(conn.call(&["IDGET", &format!("stranger.{at}")]).error().starts_with("IDNOTAG "));
    }
    let (_, metrics) = node.http("/metrics");
    assert!(!metrics.contains("stranger"), "{metrics}");
    assert!(metrics.contains("biz_tag=\"_unknown\""), "{metrics}");
}

#[test]
fn health_is_told_with_reasons() {
    let node = Setup::new().start();
    for path in ["/livez", "/readyz", "/startupz"] {
        let (status, body) = node.http(path);
        assert_eq!(status, 200, "{path}: {body}");
        assert!(!body.contains(env!("CARGO_PKG_VERSION")), "versions are not told to strangers: {body}");
    }
    assert_eq!(node.http("/nothing").0, 404);
}

#[test]
fn a_start_that_waits_for_its_database_says_so() {
    let setup = Setup::new().set("database.statement_timeout", "3s");
    setup.start().stop();
    let lock = Shell::lock_whole(&setup.database());
    let mut node = setup.spawn();
    let (status, body) = eventually("/startupz answers while the database is locked", PATIENCE, || {
        assert!(node.poll().is_none(), "it ended before it said anything:\n{}", node.log());
        node.try_http("/startupz")
    });
    assert_eq!(status, 503, "{body}");
    assert!(!body.trim().is_empty(), "no reason is given");
    assert_eq!(node.try_http("/readyz").map(|(status, _)| status), Some(503));
    assert_eq!(
        node.try_http("/livez").map(|(status, _)| status),
        Some(200),
        "a start that takes long is no reason to kill"
    );
    drop(lock);
    // It serves, or it had given up by then and says that starting again may help.
    let serves = eventually("it serves or ends", PATIENCE, || match node.poll() {
        Some(status) => {
            assert_eq!(status.code(), Some(1), "{}", node.log());
            Some(false)
        }
        None => (node.try_http("/startupz")?.0 == 200).then_some(true),
    });
    if serves {
        assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(1));
    } else {
        assert!(node.log().contains("locked"), "{}", node.log());
    }
}

#[test]
fn only_get_is_answered_and_garbage_is_closed() {
    let node = Setup::new().start();
    for text in [
        "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        "*1\r\n$4\r\nPING\r\n",
        "\r\n\r\n\u{0}\u{1}\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(node.admin()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(text.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.starts_with("HTTP/1.1 2"), "{text:?}: {answer}");
    }
    assert_eq!(node.connect().call(&["PING"]), Value::Simple("PONG".into()));
    assert_eq!(node.http("/livez").0, 200);
}
