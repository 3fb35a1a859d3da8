//! The pages as a client sees them, over real connections.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::health::{Part, State as PartState};

/// An admin listener that runs until it is dropped.
struct Running {
    addr: SocketAddr,
    health: Arc<Health>,
    _stop: tokio_util::sync::DropGuard,
}

fn start() -> Running {
    start_with(gate::HEAD_TIME)
}

fn start_with(head_time: Duration) -> Running {
    let mut admin = Admin::bind(&Config { addr: "127.0.0.1:0".into() }, "node1").unwrap().unwrap();
    admin.head_time = head_time;
    let (health, cancel) = (Arc::new(Health::default()), CancellationToken::new());
    let sight = Sight {
        metrics: Arc::new(Metrics::default()),
        health: Arc::clone(&health),
        watched: vec![tokio::runtime::Handle::current()],
    };
    let addr = admin.local_addr().unwrap();
    tokio::spawn(admin.run(sight, cancel.clone()));
    Running { addr, health, _stop: cancel.drop_guard() }
}

/// What the server says to `bytes`, until it closes.
async fn say(addr: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    String::from_utf8(answer).unwrap()
}

async fn fetch(addr: SocketAddr, path: &str) -> String {
    say(addr, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

#[tokio::test]
async fn readiness_follows_the_phase_and_names_what_is_missing() {
    let node = start();
    node.health.set(Part::Store, PartState::Down("disk full".into()));
    let loading = fetch(node.addr, "/readyz").await;
    assert_eq!((status(&loading), body(&loading)), ("503", "not ready: no tag can be served yet\nstore: disk full\n"));
    assert_eq!(status(&fetch(node.addr, "/startupz").await), "503");
    assert_eq!(status(&fetch(node.addr, "/livez").await), "200");
    node.health.enter(Phase::Serving);
    let serving = fetch(node.addr, "/readyz").await;
    assert_eq!((status(&serving), body(&serving)), ("200", "ready\nstore: disk full\n"));
    node.health.enter(Phase::Draining);
    assert_eq!(status(&fetch(node.addr, "/readyz").await), "503");
    assert_eq!(status(&fetch(node.addr, "/startupz").await), "200");
}

#[tokio::test]
async fn metrics_have_prometheus_type_and_head_has_no_body() {
    let node = start();
    let answer = fetch(node.addr, "/metrics").await;
    assert_eq!(status(&answer), "200");
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{answer}");
    assert!(body(&answer).contains("idgen_build_info{version="), "{answer}");
    let head = say(node.addr, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_eq!((status(&head), body(&head)), ("200", ""));
}

#[tokio::test]
async fn other_methods_pages_and_hosts_are_refused() {
    let node = start();
    let post = say(node.addr, b"POST /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}").await;
    assert_eq!(status(&post), "405");
    assert!(post.contains("allow: GET, HEAD\r\n"), "{post}");
    let lost = fetch(node.addr, "/metric").await;
    assert_eq!(status(&lost), "404");
    assert!(body(&lost).contains("/metrics"));
    let strange = say(node.addr, b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    assert_eq!(status(&strange), "403");
    let two = say(node.addr, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n").await;
    assert_eq!(status(&two), "403");
}

#[tokio::test]
async fn a_redis_client_is_told_that_this_is_http() {
    let node = start();
    for bytes in [&b"*1\r\n$4\r\nPING\r\n"[..], b"PING\r\n", b"\x16\x03\x01\x02\x00"] {
        assert!(say(node.addr, bytes).await.starts_with("-ERR this port speaks HTTP"), "{bytes:?}");
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let node = start();
    let mut bytes = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ".to_vec();
    bytes.resize(gate::MAX_HEAD, b'x');
    assert_eq!(status(&say(node.addr, &bytes).await), "431");
}

#[tokio::test]
async fn silent_connections_are_let_go_and_their_places_used_again() {
    let node = start_with(Duration::from_millis(50));
    let mut silent = Vec::new();
    for _ in 0..gate::MAX_CONNECTIONS {
        silent.push(TcpStream::connect(node.addr).await.unwrap());
    }
    assert_eq!(status(&fetch(node.addr, "/livez").await), "200");
    let mut answer = String::new();
    silent[1].read_to_string(&mut answer).await.unwrap();
    assert_eq!(status(&answer), "408");
}

#[tokio::test]
async fn whoever_asks_at_once_gets_in_however_many_keep_their_heads_back() {
    let node = start_with(Duration::from_mins(10));
    let mut slow = Vec::new();
    for _ in 0..4 * gate::MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(node.addr).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
        slow.push(stream);
    }
    for _ in 0..3 {
        let answer = tokio::time::timeout(Duration::from_secs(10), fetch(node.addr, "/livez")).await;
        assert_eq!(status(&answer.expect("at once")), "200");
    }
    let mut oldest = String::new();
    assert!(matches!(slow[0].read_to_string(&mut oldest).await, Ok(0) | Err(_)), "the oldest gave its place up");
}

#[tokio::test]
async fn an_empty_address_means_no_listener() {
    assert!(Admin::bind(&Config { addr: String::new() }, "").unwrap().is_none());
}

#[test]
fn it_serves_on_a_thread_of_its_own_until_it_is_stopped() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let admin = Admin::bind(&Config { addr: "127.0.0.1:0".into() }, "").unwrap().unwrap();
    let (addr, cancel) = (admin.local_addr().unwrap(), CancellationToken::new());
    let sight = Sight {
        metrics: Arc::new(Metrics::default()),
        health: Arc::new(Health::default()),
        watched: vec![runtime.handle().clone()],
    };
    let thread = admin.spawn(sight, cancel.clone()).unwrap();
    let answer = runtime.block_on(fetch(addr, "/livez"));
    assert_eq!(body(&answer), "alive\n");
    cancel.cancel();
    thread.join().unwrap();
}
