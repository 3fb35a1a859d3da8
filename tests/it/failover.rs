//! `ORDER strict` over several nodes while their database is killed, comes back and fails over to a replica: requests
//! wait or are refused, and what is answered stays in order.
//!
//! The failover is one that loses nothing: connections are cut at a random moment, the replica gets what the primary has
//! confirmed, and takes its place. What was in flight then may have happened or not, and no client has an answer to it.

use std::net::SocketAddr;

use crate::chaos::{Protocol, Proxy};
use crate::fleet::{Fleet, is_strict};
use crate::history::Clients;
use crate::load::Dice;
use crate::node::{PATIENCE, eventually};
use crate::services::{DATABASE, MariaDb, Postgres};

/// What requests may be told besides ids.
const SHORTAGES: &[&str] = &["LOADING", "TRYAGAIN", "IDBACKEND"];

/// What the two databases have alike.
trait Server {
    fn addr(&self) -> SocketAddr;
    fn dsn_at(addr: SocketAddr) -> String;
    fn kill9(&mut self);
    fn start_again(&mut self);
    fn await_position(&self, primary: &Self);
    fn promote(&self);
}

macro_rules! server {
    ($name:ident) => {
        impl Server for $name {
            fn addr(&self) -> SocketAddr {
                self.addr()
            }

            fn dsn_at(addr: SocketAddr) -> String {
                Self::dsn_at(addr, DATABASE)
            }

            fn kill9(&mut self) {
                self.kill9();
            }

            fn start_again(&mut self) {
                self.start_again();
            }

            fn await_position(&self, primary: &Self) {
                self.await_position(primary);
            }

            fn promote(&self) {
                self.promote();
            }
        }
    };
}

server!(MariaDb);
server!(Postgres);

fn order_is_kept<S: Server>(mut primary: S, replica: &S) {
    let mut dice = Dice::new();
    let proxy = Proxy::start(Protocol::Bytes, primary.addr());
    let fleet = Fleet::start(&S::dsn_at(proxy.addr()), 3, |setup| setup.set("server.wait_max", "1s"));
    let tags = fleet.create_tags(&["ORDER", "strict"]);
    let clients = Clients::start(&fleet.addrs(), &tags, 24, 8, &mut dice);
    let serves = |what: &str| {
        let before = clients.answered();
        eventually(what, PATIENCE, || (clients.answered() > before + 1000).then_some(()));
    };
    serves("ids are served");
    for _ in 0..3 {
        std::thread::sleep(dice.millis(50, 500)); // the random moment
        primary.kill9();
        std::thread::sleep(dice.millis(0, 1000)); // it is away for a while
        primary.start_again();
        serves("ids are served after a kill");
    }
    std::thread::sleep(dice.millis(50, 500)); // the random moment
    proxy.refuse();
    proxy.reset();
    replica.await_position(&primary);
    replica.promote();
    proxy.repoint(replica.addr());
    proxy.pass();
    serves("ids are served after the failover");
    let mut history = clients.finish();
    history.verdict(3, SHORTAGES);
    is_strict(&history);
}

#[test]
fn strict_order_outlives_kills_and_a_failover_of_mariadb() {
    let primary = MariaDb::start(&["--server-id=1", "--log-bin"]);
    let replica = MariaDb::replica_of(&primary);
    order_is_kept(primary, &replica);
}

#[test]
fn strict_order_outlives_kills_and_a_failover_of_postgresql() {
    let primary = Postgres::start(&[]);
    let replica = Postgres::replica_of(&primary);
    order_is_kept(primary, &replica);
}
