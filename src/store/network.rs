//! What the stores on database servers have alike besides ids: how they are opened, and what is opened with them.
//!
//! Nodes share such a database, so nothing may be decided outside it: tables are made, and the identity and the worker
//! bounds written, under a lock that the server keeps. Several first starts at once all succeed and agree.

use std::future::Future;
use std::time::Duration;

use sqlx::{Database, Pool};

use super::identity::{self, Table};
use super::{Config, SegmentStore};

/// How long a statement waits for a connection, with everything that making one takes.
pub(super) const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(2);

/// How old a connection may get: a node finds its way to another server behind the same name, or behind a balancer.
pub(super) const MAX_LIFETIME: Duration = Duration::from_mins(5);

/// How long a connection may lie idle: below what servers and the proxies before them allow.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_mins(1);

/// A connection that has been silent for longer is tried before it is used, since it may have been closed meanwhile.
pub(super) const TRUSTED_IDLE: Duration = Duration::from_secs(2);

/// How long a statement waits for a row that somebody else holds.
pub(super) const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a start waits for another one that is making the tables.
pub(super) const SCHEMA_LOCK_TIMEOUT: Duration = Duration::from_secs(20);

/// Connections that the worker registry has for itself, so that renewals never wait behind refills.
pub(super) const REGISTRY_CONNECTIONS: u32 = 2;

/// A store on a database server.
pub trait Network: SegmentStore + Clone {
    /// The driver.
    type Database: Database<Connection: Table>;

    /// A transaction that no other start has at the same time.
    type Founding: identity::Transaction<Connection = <Self::Database as Database>::Connection>;

    /// Connects, refuses a server that can't be written, and brings the tables up to date. Without `may_create`, tables
    /// that don't exist are an error.
    ///
    /// # Errors
    /// Why not, with the fix.
    fn open(config: &Config, may_create: bool) -> impl Future<Output = Result<Self, OpenError>> + Send;

    /// Begins the transaction that reads or writes the identity.
    ///
    /// # Errors
    /// Why not.
    fn found(&self) -> impl Future<Output = Result<Self::Founding, OpenError>> + Send;

    /// Connections for the worker registry, as durable and as impatient as the store's own.
    fn registry_pool(&self) -> Pool<Self::Database>;

    /// Closes all connections.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Why a database on a server could not be opened. Each text names the server, never who logs in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The DSN can't be used.
    #[error("{0}")]
    Dsn(String),
    /// Nothing answers, or not in time.
    #[error("{0} can't be reached: {1}; look whether the server runs, and at database.dsn")]
    Unreachable(String, String),
    /// The server does not let this user in, or to this database.
    #[error("{0} refuses the login: {1}; look at the user, the password and the database in database.dsn")]
    Login(String, String),
    /// The certificate can't be verified.
    #[error("{0} can't be verified: {1}; name the authority that signed its certificate in database.ca_file")]
    Certificate(String, String),
    /// A replica, or a server that was made read-only.
    #[error("{0} is read-only ({1}): ids can't be reserved there; name the primary server in database.dsn")]
    ReadOnly(String, String),
    /// There are no tables of ours.
    #[error("{0} holds no tables of idgen; name the restored database in database.dsn")]
    Empty(String),
    /// The tables were made by a newer program.
    #[error("{0} was written by a newer idgen (schema {1}, this program knows {2}); run that version or a later one")]
    Newer(String, i64, i64),
    /// Another start holds the lock on the tables.
    #[error("{0}: another node has been preparing the tables for over {1:?}; try again")]
    Busy(String, Duration),
    /// Anything else that the server says.
    #[error("{0} can't be opened: {1}")]
    Sql(String, String),
}

impl OpenError {
    /// Whether it may pass without anybody putting the configuration or the data right: trying again makes sense.
    #[must_use]
    pub const fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable(..) | Self::Busy(..) | Self::Sql(..) => true,
            Self::Dsn(_)
            | Self::Login(..)
            | Self::Certificate(..)
            | Self::ReadOnly(..)
            | Self::Empty(_)
            | Self::Newer(..) => false,
        }
    }
}
