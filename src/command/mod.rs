//! What a request means: from its bytes to the bytes of its reply.
//!
//! The commands are a table of data (`table.rs`); a row names who carries it out, one file a command or small family. A
//! [`Session`] is one connection: login, protocol, transaction, and the run of equal id requests that is being counted.
//! What all connections share is the [`Context`]. Nothing here touches a socket, and every error text is made in
//! `error.rs`. Requests that draw ids wait for at most the read batch's deadline, all of the batch together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::acl::Users;
use crate::clock::{Boot, Clock};
use crate::health::Health;
use crate::limit::Limit;
use crate::metrics::Metrics;
use crate::router::Router;

mod acl;
mod auth;
mod client;
mod clients;
mod cluster;
mod config;
mod draw;
mod error;
mod hello;
mod iddecode;
mod idget;
mod idinfo;
mod idmget;
mod idnode;
mod idrange;
mod idtag;
mod idworkers;
mod incr;
mod info;
mod introspect;
mod keyspace;
mod latency;
mod limits;
mod number;
mod ping;
mod pubsub;
mod rights;
mod server;
mod session;
mod slowlog;
mod spec;
mod stats;
mod table;
mod transaction;

pub use clients::{Client, Clients, Peer};
pub use error::{Error, MAX_SHOWN, Prefix, shown};
pub use rights::check_users;
pub use session::Session;
pub use spec::{Argument, Keys, Spec};
pub use stats::{BUCKETS, CommandStats, Histogram, Stats};
pub use table::table_markdown;

#[cfg(test)]
mod tests;

/// The version of Redis that is told to clients: high enough for RESP3, below the one that moves cluster clients to other
/// commands.
pub const REDIS_VERSION: &str = "7.4.2";

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// How many numbers `SELECT` accepts; all of them are the same tags.
pub const DATABASES: u8 = 16;

/// What the connection does after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// It reads on.
    Continue,
    /// It writes what has been answered, then closes.
    Close,
}

/// One read batch: the requests whose bytes were read together.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// When the bytes were read.
    pub now: Boot,
    /// Until when its requests may wait, all of them together.
    pub deadline: Boot,
    /// How long that is.
    pub wait_max: Duration,
}

impl Batch {
    /// The batch that was read at `now` and may wait for `wait_max`.
    #[must_use]
    pub fn new(now: Boot, wait_max: Duration) -> Self {
        Self { now, deadline: now.plus(wait_max), wait_max }
    }
}

/// What commands need to know of the configuration and the process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The most ids that one command may ask for.
    pub max_count: u64,
    /// How many connections there may be.
    pub max_clients: u32,
    /// After how long an idle connection is closed; zero: never.
    pub idle_timeout: Duration,
    /// The TCP port that was bound; 0: none.
    pub tcp_port: u16,
    /// The address that was bound, without the port; empty: none.
    pub bind: String,
    /// The path of the unix socket; empty: none.
    pub unix_socket: String,
    /// The configuration file; empty: none.
    pub config_file: String,
    /// A number of this run of the process: 40 hexadecimal digits.
    pub run_id: String,
    /// When the process started.
    pub started: Boot,
    /// Settings by name (`section.key`) as `CONFIG GET` shows them, without secrets.
    pub shown: BTreeMap<String, String>,
}

/// What all connections share.
pub struct Context {
    /// The tags.
    pub router: Arc<Router>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The node's state.
    pub health: Arc<Health>,
    /// What Prometheus reads.
    pub metrics: Arc<Metrics>,
    /// How many ids this node may give.
    pub limit: Limit,
    /// Who may log in.
    pub users: Users,
    /// The connections.
    pub clients: Clients,
    /// What is counted about commands.
    pub stats: Arc<Stats>,
    /// Configuration and process.
    pub settings: Settings,
}
