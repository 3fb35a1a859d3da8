//! A client that asks for much and reads nothing costs bounded memory, and gets every reply once it reads.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use crate::node::{PATIENCE, Setup, eventually};
use crate::wire::request;

/// What a connection may hold in memory in all: 8 MiB of unsent output, 1 MiB of input, and room for allocators.
const BOUND: u64 = 48 << 20;

#[test]
fn a_client_that_reads_late_costs_bounded_memory_and_misses_nothing() {
    const REQUESTS: usize = 600;
    let node = Setup::new().start();
    let mut conn = node.connect();
    // Once around, so that what every connection needs anyway is not counted.
    assert_eq!(conn.call(&["IDMGET", "order", "10000"]).array().len(), 10_000);
    let before = node.memory();
    // 23 KB that ask for some 60 MB.
    conn.send(&request(&["IDMGET", "order", "10000"]).repeat(REQUESTS));
    let mut most = 0;
    for _ in 0..100 {
        most = most.max(node.memory());
        std::thread::sleep(Duration::from_millis(10)); // all the time that an unbounded buffer needs to grow
    }
    assert!(most < before + BOUND, "{} MiB more for one client", (most - before) >> 20);
    assert_eq!(node.connect().call(&["IDGET", "other"]).int(), 1, "others are served");
    let mut last = 10_000;
    for at in 0..REQUESTS {
        let ids = conn.read().ints();
        assert!(
            ids.len() == 10_000 && ids.is_sorted() && ids[0] > last,
            "reply {at} starts at {} after {last}",
            ids[0]
        );
        last = ids[9_999];
    }
}

#[test]
fn the_server_stops_reading_from_a_client_that_does_not_read() {
    let node = Setup::new().start();
    let conn = node.connect();
    let mut stream = conn.stream();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let before = node.memory();
    let bytes = request(&["IDMGET", "order", "10000"]).repeat(1000);
    let mut sent = 0;
    // Up to 64 MB of requests: the socket buffers of both sides take a few MB, the server at most 1 MiB.
    let blocked = (0..1700).any(|_| match stream.write(&bytes) {
        Ok(count) => {
            sent += count;
            false
        }
        Err(error) => matches!(
            error.kind(),
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
    });
    assert!(blocked, "the server took {sent} bytes of requests whose replies nobody reads");
    assert!(node.memory() < before + BOUND, "{} MiB more for one client", (node.memory() - before) >> 20);
    assert_eq!(node.connect().call(&["IDGET", "other"]).int(), 1, "others are served");
}

#[test]
#[ignore = "takes over a minute: make soak"]
fn a_client_that_never_reads_is_closed_after_a_minute() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    conn.send(&request(&["IDMGET", "order", "10000"]).repeat(600));
    let rejected = "idgen_connections_rejected_total{reason=\"output\"}";
    eventually("it is closed", Duration::from_secs(90), || (node.metric(rejected)? >= 1.0).then_some(()));
    drop(conn);
}

#[test]
fn many_idle_clients_cost_little() {
    const CLIENTS: usize = 1000;
    let node = Setup::new().start();
    let before = node.memory();
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| node.connect()).collect();
    for conn in &mut clients {
        conn.call(&["PING"]);
    }
    let each = (node.memory().saturating_sub(before)) / CLIENTS as u64;
    assert!(each < 32 << 10, "{each} bytes for each idle client");
    drop(clients);
    eventually("they are gone", PATIENCE, || (node.metric("idgen_connections")? < 5.0).then_some(()));
}
