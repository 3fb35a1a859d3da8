//! The protocol as bytes: however they are cut, in whatever order; what is not the protocol is told so and closed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::errors::Redis;
use crate::node::{Node, PATIENCE, Setup, eventually};
use crate::wire::{Conn, Value, request};

fn reads(conn: &mut Conn, count: usize) -> Vec<Value> {
    (0..count).map(|_| conn.read()).collect()
}

/// A pipeline with every kind of framing in it; `tag` must be fresh.
fn mixed(tag: &str) -> (Vec<u8>, Vec<Value>) {
    let mut bytes = request(&["IDGET", tag]);
    bytes.extend(request(&["idget", tag]));
    bytes.extend(b"\r\n*0\r\n*-1\r\n"); // no reply
    bytes.extend(format!("INCR {tag}\r\n").into_bytes());
    bytes.extend(request(&["IDMGET", tag, "3"]));
    bytes.extend(request(&["FOO"]));
    bytes.extend(b"PING \"a b\"\n");
    bytes.extend(request(&["ECHO", "line\r\nline"]));
    let unknown = "ERR unknown command 'FOO', with args beginning with: ";
    let replies = vec![
        Value::Int(1),
        Value::Int(2),
        Value::Int(3),
        Value::Array(vec![Value::Int(4), Value::Int(5), Value::Int(6)]),
        Value::Error(unknown.into()),
        Value::Bulk("a b".into()),
        Value::Bulk("line\r\nline".into()),
    ];
    (bytes, replies)
}

#[test]
fn a_pipeline_split_at_any_byte_gives_the_same_replies() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    let length = mixed("split.000").0.len();
    for at in 0..=length {
        let (bytes, replies) = mixed(&format!("split.{at:03}"));
        conn.send(&bytes[..at]);
        std::thread::sleep(Duration::from_millis(1)); // lets the server read the first part by itself
        conn.send(&bytes[at..]);
        assert_eq!(reads(&mut conn, replies.len()), replies, "split at {at}");
    }
}

#[test]
fn a_pipeline_sent_byte_by_byte_gives_the_same_replies() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    let (bytes, replies) = mixed("bytes");
    for byte in bytes {
        conn.send(&[byte]);
    }
    assert_eq!(reads(&mut conn, replies.len()), replies);
}

#[test]
fn hello_is_a_barrier_within_a_pipeline() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    let words: [&[&str]; 7] =
        [&["GET", "x"], &["HELLO", "3"], &["GET", "x"], &["IDGET", "x"], &["HELLO", "2"], &["GET", "y"], &["PING"]];
    conn.send(&words.iter().flat_map(|words| request(words)).collect::<Vec<_>>());
    conn.stream().shutdown(std::net::Shutdown::Write).unwrap();
    let text = conn.rest();
    assert!(text.starts_with("$-1\r\n%7\r\n"), "{text:?}");
    assert!(text.contains("\r\n_\r\n:1\r\n*14\r\n"), "{text:?}");
    assert!(text.ends_with("\r\n$-1\r\n+PONG\r\n"), "{text:?}");
}

#[test]
fn a_transaction_draws_its_ids_at_exec_in_order() {
    let node = Setup::new().start();
    let (mut conn, mut other) = (node.connect(), node.connect());
    assert_eq!(conn.call(&["MULTI"]), Value::Simple("OK".into()));
    for _ in 0..2 {
        assert_eq!(conn.call(&["IDGET", "order"]), Value::Simple("QUEUED".into()));
    }
    assert_eq!(conn.call(&["IDMGET", "order", "0"]), Value::Simple("QUEUED".into()));
    assert_eq!(conn.call(&["INCRBY", "order", "3"]), Value::Simple("QUEUED".into()));
    assert_eq!(other.call(&["IDGET", "order"]), Value::Int(1), "queued commands draw nothing");
    let replies = conn.call(&["EXEC"]);
    let replies = replies.array();
    assert_eq!((&replies[0], &replies[1], &replies[3]), (&Value::Int(2), &Value::Int(3), &Value::Int(6)));
    assert!(replies[2].error().starts_with("IDCOUNT "));
    conn.call(&["MULTI"]);
    conn.call(&["IDGET", "order"]);
    assert_eq!(conn.call(&["DISCARD"]), Value::Simple("OK".into()));
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(7), "discarded commands draw nothing");
}

#[test]
fn fifty_thousand_requests_in_one_pipeline_are_answered_in_order() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    let one = request(&["IDGET", "order"]);
    let mut writer = conn.stream().try_clone().unwrap();
    let bytes = [one.repeat(25_000), request(&["FOO"]), one.repeat(25_000)].concat();
    let sender = std::thread::spawn(move || writer.write_all(&bytes));
    for id in 1..=25_000 {
        assert_eq!(conn.read(), Value::Int(id));
    }
    assert!(conn.read().error().starts_with("ERR unknown command 'FOO'"));
    for id in 25_001..=50_000 {
        assert_eq!(conn.read(), Value::Int(id));
    }
    sender.join().unwrap().unwrap();
}

#[test]
fn protocol_errors_are_told_as_redis_tells_them_then_the_connection_is_closed() {
    let (node, redis) = (Setup::new().start(), Redis::start());
    let cases: [&[u8]; 12] = [
        b"*abc\r\n",
        b"*3000000000\r\n",
        b"*1\r\n+PING\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$abc\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$9999999999\r\n",
        b"*2\r\n$4\r\nECHO\r\n$ 1\r\nx\r\n",
        b"PING \"a\r\n",
        b"PING 'a\r\n",
        b"PING \"a\"b\r\n",
    ];
    for case in cases {
        let answer = |mut conn: Conn| {
            // A good request before it is still answered.
            conn.send(&[&request(&["PING"])[..], case].concat());
            conn.rest()
        };
        assert_eq!(answer(node.connect()), answer(redis.connect()), "{:?}", String::from_utf8_lossy(case));
    }
}

/// The text of the error, read to the end: it must arrive although more was sent than the server wanted to read.
fn refused(node: &Node, bytes: &[u8]) -> String {
    let mut conn = node.connect();
    let _ = conn.try_send(bytes);
    conn.rest()
}

#[test]
fn our_lower_limits_have_redis_texts() {
    let node = Setup::new().start();
    assert_eq!(refused(&node, b"*2000\r\n"), "-ERR Protocol error: invalid multibulk length\r\n");
    assert_eq!(refused(&node, b"*2\r\n$4\r\nECHO\r\n$65537\r\n"), "-ERR Protocol error: invalid bulk length\r\n");
    assert_eq!(refused(&node, &b"x".repeat(70_000)), "-ERR Protocol error: too big inline request\r\n");
    let count = [&b"*1"[..], &b"1".repeat(70_000)].concat();
    assert_eq!(refused(&node, &count), "-ERR Protocol error: too big mbulk count string\r\n");
    let length = [&b"*1\r\n$1"[..], &b"1".repeat(70_000)].concat();
    assert_eq!(refused(&node, &length), "-ERR Protocol error: too big bulk count string\r\n");
    let most: Vec<&str> = std::iter::once("FOO").chain(std::iter::repeat_n("x", 1024)).collect();
    assert!(node.connect().call(&most).error().starts_with("ERR unknown command 'FOO'"));
}

#[test]
fn http_is_closed_at_its_first_line_and_nothing_of_its_body_is_executed() {
    let node = Setup::new().start();
    for head in
        ["POST /x HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n", "Host: localhost\r\n", "POST / HTTP/1.0\n"]
    {
        let mut conn = node.connect();
        let body = format!("{head}Content-Length: 100\r\n\r\nIDGET order\r\nIDGET order\r\n");
        let _ = conn.try_send(body.as_bytes());
        let answer = conn.rest();
        assert!(!answer.contains(":1\r\n"), "{head:?} was answered with {answer:?}");
    }
    assert_eq!(node.connect().call(&["GET", "order"]), Value::Nil, "a body was executed");
    let errors =
        eventually("it is counted", PATIENCE, || node.metric("idgen_protocol_errors_total{kind=\"cross_protocol\"}"));
    assert!(errors >= 4.0, "{errors}");
}

#[test]
fn one_client_too_many_is_told_so_and_closed() {
    let node = Setup::new().set("server.max_clients", "3").start();
    let mut clients: Vec<Conn> = (0..3).map(|_| node.connect()).collect();
    for conn in &mut clients {
        // The one that awaited readiness may still be on its way out.
        eventually("three clients are let in", PATIENCE, || {
            if conn.try_call(&["PING"]).ok() == Some(Value::Simple("PONG".into())) {
                return Some(());
            }
            *conn = node.connect();
            None
        });
    }
    assert_eq!(node.connect().rest(), "-ERR max number of clients reached\r\n");
    clients.pop();
    eventually("a place is free again", PATIENCE, || {
        (node.connect().try_call(&["PING"]).ok()? == Value::Simple("PONG".into())).then_some(())
    });
    assert_eq!(node.http("/livez").0, 200, "the admin port is not counted");
}

#[test]
fn the_unix_socket_speaks_the_same() {
    let setup = Setup::new();
    let path = setup.folder().join("idgen.sock");
    let setup = setup.set("server.unix_socket", &path.display().to_string());
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(1));
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"IDGET order\r\nQUIT\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(text, ":2\r\n+OK\r\n");
    node.stop();
    drop(setup.start()); // a socket left behind by a kill is no obstacle
    setup.start().stop();
}

#[test]
fn quit_answers_and_closes() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    conn.send(b"PING\r\nQUIT\r\nPING\r\n");
    assert_eq!(conn.rest(), "+PONG\r\n+OK\r\n");
}
