//! A node that can serve nothing yet says so, and why, to everybody who asks; it serves as soon as it can.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::node::{PATIENCE, Setup, eventually};
use crate::services::{DATABASE, MariaDb};
use crate::wire::{Conn, Value};

#[test]
fn a_node_whose_database_is_not_there_yet_says_so_and_serves_once_it_is() {
    let mut database = MariaDb::start(&[]);
    let setup = Setup::new().set("database.dsn", &database.dsn(DATABASE));
    database.stop();
    let node = setup.spawn();
    let mut conn = eventually("it accepts", PATIENCE, || Conn::try_connect(node.addr()).ok());
    for command in [&["PING"][..], &["IDGET", "order"]] {
        let reply = conn.call(command);
        assert!(reply.error().starts_with("LOADING "), "{command:?}: {reply:?}");
    }
    assert_eq!(conn.call(&["ECHO", "hello"]).text(), "hello", "what needs no ids is answered");
    let (status, page) = node.http("/readyz");
    assert!(status == 503 && page.contains("store:"), "{status} {page}");
    assert_eq!(node.http("/livez").0, 200, "a restart would not help");
    database.start_again();
    eventually("it serves", Duration::from_secs(15), || {
        (conn.call(&["PING"]) == Value::Simple("PONG".into())).then_some(())
    });
    assert_eq!(conn.call(&["IDGET", "order"]).int(), 1);
    assert_eq!(node.http("/readyz").0, 200);
}

#[test]
fn a_node_that_waits_for_its_database_stops_at_the_first_signal() {
    let mut database = MariaDb::start(&[]);
    let setup = Setup::new().set("database.dsn", &database.dsn(DATABASE)).set("server.drain_delay", "60s");
    database.stop();
    let mut node = setup.spawn();
    eventually("it accepts", PATIENCE, || Conn::try_connect(node.addr()).ok());
    node.signal(Signal::SIGTERM);
    assert_eq!(node.wait().code(), Some(0));
}
