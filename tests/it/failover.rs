//! `ORDER strict` over several nodes while their database is killed, comes back and fails over to a replica: requests
//! wait or are refused, and what is answered stays in order.
//!
//! The failover is one that loses nothing, as `ORDER strict` demands: the primary waits for its replica, connections are
//! cut at a random moment, and the replica takes over with what was confirmed. What was in flight then may have happened
//! or not, and no client has an answer to it.

use std::net::SocketAddr;

use crate::chaos::{Protocol, Proxy};
use crate::fleet::{Fleet, is_strict};
use crate::history::Clients;
use crate::load::Dice;
use crate::node::{PATIENCE, eventually};
use crate::services::{DATABASE, MariaDb, Postgres};
use crate::soak;

/// What requests may be told besides ids.
const SHORTAGES: &[&str] = &["LOADING", "TRYAGAIN", "IDBACKEND"];

/// What the two databases do each in its own way.
trait Server: Sized {
    /// The name of its store.
    const STORE: &str;
    /// A primary that waits for its replica.
    fn pair() -> (Self, Self);
    fn addr(&self) -> SocketAddr;
    fn dsn_at(addr: SocketAddr) -> String;
    fn kill9(&mut self);
    fn start_again(&mut self);
    /// Makes the replica the primary, with all that `primary` has confirmed.
    fn succeed(&self, primary: &Self);
}

const SEMI_SYNC: &[&str] = &[
    "--server-id=1",
    "--log-bin",
    "--rpl-semi-sync-master-enabled=1",
    "--rpl-semi-sync-master-timeout=3600000",
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
];

impl Server for MariaDb {
    const STORE: &str = "mysql";

    fn pair() -> (Self, Self) {
        let mut primary = Self::start(&["--server-id=1", "--log-bin"]);
        let replica = Self::replica_of(&primary);
        replica.sql("STOP SLAVE; SET GLOBAL rpl_semi_sync_slave_enabled = 1; START SLAVE");
        primary.stop();
        primary.start_again_with(SEMI_SYNC);
        (primary, replica)
    }

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

    fn succeed(&self, primary: &Self) {
        self.await_position(primary);
        self.promote();
    }
}

impl Server for Postgres {
    const STORE: &str = "postgres";

    fn pair() -> (Self, Self) {
        let primary = Self::start(&[]);
        let replica = Self::replica_of(&primary);
        for (server, setting) in
            [(&primary, "synchronous_standby_names = '*'"), (&replica, "wal_retrieve_retry_interval = '200ms'")]
        {
            server.sql(&format!("ALTER SYSTEM SET {setting}"));
            server.sql("SELECT pg_reload_conf()");
        }
        (primary, replica)
    }

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

    fn succeed(&self, primary: &Self) {
        self.await_position(primary);
        self.promote();
    }
}

fn order_is_kept<S: Server>() {
    let (mut primary, replica) = S::pair();
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
    for _ in 0..if soak() { 50 } else { 3 } {
        std::thread::sleep(dice.millis(50, 500)); // the random moment
        primary.kill9();
        std::thread::sleep(dice.millis(0, 1000)); // it is away for a while
        primary.start_again();
        serves("ids are served after a kill");
    }
    std::thread::sleep(dice.millis(50, 500)); // the random moment
    proxy.refuse();
    proxy.reset();
    replica.succeed(&primary);
    proxy.repoint(replica.addr());
    proxy.pass();
    serves("ids are served after the failover");
    let regressions = fleet.sum(&format!("idgen_store_regression_total{{store=\"{}\"}}", S::STORE));
    assert_eq!(regressions.to_string(), "0", "commits were lost");
    let mut history = clients.finish();
    history.verdict(3, SHORTAGES);
    is_strict(&history);
}

#[test]
fn strict_order_outlives_kills_and_a_failover_of_mariadb() {
    order_is_kept::<MariaDb>();
}

#[test]
fn strict_order_outlives_kills_and_a_failover_of_postgresql() {
    order_is_kept::<Postgres>();
}
