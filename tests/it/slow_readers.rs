//! T20: clients that ask for much and read nothing cost bounded memory, alone and together, and get every reply once they
//! read.

use std::io::{ErrorKind, Write};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::node::{Node, PATIENCE, Setup, eventually};
use crate::soak;
use crate::wire::{Conn, Value, request};

/// What a connection may hold in memory in all: 8 MiB of unsent output, 1 MiB of input, and room for allocators.
const BOUND: u64 = 48 << 20;

/// How many requests for 10 000 ids one transaction holds: 36 KB that ask for 220 MB.
const REQUESTS: usize = 1000;

/// The time that a buffer without a limit needs to grow past [`BOUND`], many times over.
const WATCHED: Duration = Duration::from_secs(2);

const MANY: [&str; 3] = ["IDMGET", "order", "10000"];

/// A tag whose segments last for millions of ids, so that no test here is about refills, and whose ids are as long as ids
/// get, so that a reply to [`MANY`] has 220 KB.
fn create_large(node: &Node) {
    let steps = ["STEP", "1000000", "MINSTEP", "1000000", "MAXSTEP", "1000000"];
    let create = [&["IDTAG", "CREATE", "order", "START", "4000000000000000000"][..], &steps].concat();
    assert_eq!(node.connect().call(&create).text(), "OK");
}

/// Sends a transaction whose reply is far larger than any buffer and does not read: the connection, and how many bytes of
/// memory the server has used for it at most.
fn growth(node: &Node) -> (Conn, u64) {
    create_large(node);
    let mut conn = node.connect();
    // Once around, so that what every connection needs anyway is not counted.
    assert_eq!(conn.call(&MANY).array().len(), 10_000);
    let before = node.memory();
    conn.send(&[request(&["MULTI"]), request(&MANY).repeat(REQUESTS), request(&["EXEC"])].concat());
    let (start, mut most) = (Instant::now(), before);
    while start.elapsed() < WATCHED && most <= before + BOUND {
        most = most.max(node.memory());
        std::thread::sleep(Duration::from_millis(10)); // a leak has to be given time to show
    }
    (conn, most - before)
}

#[test]
fn the_time_a_client_takes_to_read_is_no_waiting_for_ids() {
    let node = Setup::new().set("server.wait_max", "250ms").start();
    // Small segments: every request needs a refill, and so some waiting.
    assert_eq!(node.connect().call(&["IDTAG", "CREATE", "order", "START", "4000000000000000000"]).text(), "OK");
    let mut conn = node.connect();
    conn.send(&request(&MANY).repeat(100));
    std::thread::sleep(Duration::from_secs(1)); // a slow reader: four times what the requests may wait
    let mut last = 0;
    for at in 0..100 {
        let ids = conn.read().ints();
        assert!(ids.len() == 10_000 && ids[0] > last, "request {at}");
        last = ids[9_999];
    }
}

#[test]
fn t20_a_client_that_reads_late_costs_bounded_memory_and_misses_nothing() {
    let node = Setup::new().start();
    let (mut conn, growth) = growth(&node);
    assert!(growth <= BOUND, "{} MiB more for one client", growth >> 20);
    assert_eq!(node.connect().call(&["IDGET", "other"]).int(), 1, "others are served");
    assert_eq!(conn.read().text(), "OK");
    (0..REQUESTS).for_each(|_| assert_eq!(conn.read().text(), "QUEUED"));
    assert_eq!(conn.read_length(), REQUESTS);
    let mut last = 0;
    for at in 0..REQUESTS {
        let ids = conn.read().ints();
        let follows = ids.len() == 10_000 && ids.is_sorted() && ids[0] > last;
        assert!(follows, "reply {at} starts at {} after {last}", ids[0]);
        last = ids[9_999];
    }
    assert_eq!(conn.call(&["PING"]), Value::Simple("PONG".into()));
}

/// The same check on a server whose output has no limit.
#[test]
fn t20_catches_b18_replies_that_pile_up_without_a_limit() {
    let node = Setup::new().env("IDGEN_TEST_BUG", "B18").start();
    let (_conn, growth) = growth(&node);
    assert!(growth > BOUND, "only {} MiB more: the check finds nothing", growth >> 20);
}

/// A connection whose kernel takes next to nothing, so that replies wait in the server.
fn narrow(node: &Node) -> Conn {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&node.addr().into()).unwrap();
    Conn::over(socket.into()).unwrap()
}

/// Adds `count` connections that ask for much and read nothing, and returns once the output of all of them is full: when
/// no more ids are drawn.
fn add_slow_readers(node: &Node, clients: &mut Vec<Conn>, count: usize) {
    clients.extend((0..count).map(|_| {
        let mut conn = narrow(node);
        let _ = conn.try_send(&request(&MANY).repeat(100));
        conn
    }));
    let mut last = (0.0, Instant::now());
    eventually("every output is full", 3 * PATIENCE, || {
        let now = node.metric("idgen_ids_issued_total{biz_tag=\"order\",engine=\"segment\"}")?;
        if now > last.0 {
            last = (now, Instant::now());
        }
        (last.1.elapsed() > Duration::from_millis(500)).then_some(())
    });
    let replies = last.0 / 10_000.0;
    assert!(replies >= 2.0 * number(clients.len()), "{replies} replies for {} clients: some got none", clients.len());
    assert_eq!(node.connect().call(&["IDGET", &format!("other.{}", clients.len())]).int(), 1, "others are served");
}

#[test]
fn t20_many_slow_readers_cost_less_than_a_mebibyte_each() {
    const CLIENTS: usize = 100;
    let node = Setup::new().start();
    create_large(&node);
    let (before, mut clients) = (node.memory(), Vec::new());
    add_slow_readers(&node, &mut clients, CLIENTS);
    let growth = node.memory().saturating_sub(before);
    assert!(growth < (CLIENTS as u64) << 20, "{} MiB more for {CLIENTS} clients", growth >> 20);
    drop(clients);
    eventually("they are gone", PATIENCE, || (node.metric("idgen_connections")? < 5.0).then_some(()));
}

/// The bound on memory is 512 MiB for unsent output, 16 KiB a client and 64 MiB. How much the kernel takes differs, so there
/// are more and more clients until the server closes some.
#[test]
#[ignore = "needs 1 GB: make soak"]
fn t20_all_slow_readers_together_keep_the_limit_of_the_process() {
    raise_open_files();
    let node = Setup::new().start();
    create_large(&node);
    let (before, mut clients) = (node.memory(), Vec::new());
    let closed = || node.metric("idgen_connections_rejected_total{reason=\"output\"}").unwrap_or_default();
    while closed() < 100.0 {
        assert!(clients.len() < 8000, "{} were closed of {} clients: no limit was reached", closed(), clients.len());
        add_slow_readers(&node, &mut clients, 500);
    }
    let growth = node.memory().saturating_sub(before);
    let bound = (512 << 20) + clients.len() as u64 * (16 << 10) + (64 << 20);
    assert!(growth <= bound, "{} MiB more for {} clients", growth >> 20, clients.len());
}

#[test]
fn t20_the_server_stops_reading_from_a_client_that_does_not_read() {
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
fn t20_a_client_that_never_reads_is_closed_after_a_minute() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    conn.send(&request(&["IDMGET", "order", "10000"]).repeat(600));
    let rejected = "idgen_connections_rejected_total{reason=\"output\"}";
    eventually("it is closed", Duration::from_secs(90), || (node.metric(rejected)? >= 1.0).then_some(()));
    drop(conn);
}

fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

/// Lets this process have as many connections as the system allows it; how many that is.
fn raise_open_files() -> usize {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    usize::try_from(most).unwrap_or(usize::MAX)
}

#[test]
fn t20_an_idle_client_costs_less_than_16_kib() {
    // Other tests of this process have files open too.
    let count = if soak() { raise_open_files().saturating_sub(3000).min(10_000) } else { 1000 };
    assert!(count >= 1000, "the limit on open files leaves only {count} clients");
    let node = Setup::new().set("server.max_clients", "11000").start();
    let before = node.memory();
    let mut clients: Vec<_> = (0..count).map(|_| node.connect()).collect();
    for conn in &mut clients {
        assert_eq!(conn.call(&["PING"]), Value::Simple("PONG".into()));
    }
    assert!(node.metric("idgen_connections").is_some_and(|open| open >= number(count)));
    let each = (node.memory().saturating_sub(before)) / count as u64;
    println!("{each} bytes for each of {count} idle clients");
    assert!(each < 16 << 10, "{each} bytes for each of {count} idle clients");
    drop(clients);
    eventually("they are gone", PATIENCE, || (node.metric("idgen_connections")? < 5.0).then_some(()));
}
