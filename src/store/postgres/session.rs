//! One connection while it is used: every statement with time limits on both sides, and no connection of doubtful state
//! given back.
//!
//! Each call sends one message of text (see `literal`), so a pooler that lends a server connection for one transaction
//! (PgBouncer in transaction mode) can't split it, and nothing is ever set for a session: the limits are `SET LOCAL` in
//! the transaction they are for. Several statements in one message are one transaction, which commits before the server
//! says that it is ready again. Rejected: prepared statements (the pooler may run them on different server connections,
//! where another client's statement has the same name), limits in the startup message (the pooler refuses them).

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgPool, PgRow};
use sqlx::{AssertSqlSafe, Postgres};
use tokio::runtime::Handle;

use super::failure::{self, Effect};
use crate::store::network::{ACQUIRE_TIMEOUT, LOCK_TIMEOUT};
use crate::store::warm::{Held, Warm};
use crate::store::{Kind, StoreError};

/// How long the server keeps a transaction in which nothing is sent: a node that hangs holds no locks for longer.
const IDLE_IN_TRANSACTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections to one server and how they are used.
#[derive(Debug)]
pub(super) struct Sessions {
    /// Those of the store.
    pub(super) warm: Warm<Postgres>,
    /// Those of the worker registry, so that a renewal never waits behind refills.
    pub(super) registry: PgPool,
    /// Host, port and database, for texts.
    pub(super) place: String,
    /// After this long without an answer the connection is closed.
    pub(super) limit: Duration,
    /// Where what outlives a call runs.
    pub(super) runtime: Handle,
}

/// One connection, inside or outside of a transaction.
pub(super) struct Session {
    /// `None` once it had to be closed.
    held: Option<Held<Postgres>>,
    sessions: Arc<Sessions>,
    state: State,
    /// After this long without an answer the connection is closed.
    limit: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No transaction: each message is one.
    Apart,
    /// A transaction is to begin with the next statement.
    Beginning,
    /// A transaction is open.
    Open,
    /// A statement of the transaction has failed: it can only be rolled back.
    Failed,
}

/// What stands before the statements of one transaction: its isolation and its limits.
pub(super) fn terms(limit: Duration) -> String {
    let (statement, lock) = limits(limit);
    format!(
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}; \
         SET LOCAL idle_in_transaction_session_timeout = {};",
        statement.as_millis(),
        lock.as_millis(),
        IDLE_IN_TRANSACTION_TIMEOUT.as_millis(),
    )
}

/// The server's limits for a statement and for a lock. Its own end comes first, since it tells that nothing happened.
fn limits(limit: Duration) -> (Duration, Duration) {
    let statement = limit * 9 / 10;
    (statement, LOCK_TIMEOUT.min(statement))
}

impl Sessions {
    /// A connection on which each message is a transaction of its own.
    pub(super) async fn session(self: &Arc<Self>) -> Result<Session, StoreError> {
        let held = self.warm.acquire().await.map_err(|error| failure::of_acquiring(&error, &self.place))?;
        Ok(self.apart(held))
    }

    /// The same for a grant, which waits for nothing but grants.
    pub(super) async fn session_for_grant(self: &Arc<Self>) -> Result<Session, StoreError> {
        let held = self.warm.acquire_for_grant().await.map_err(|error| failure::of_acquiring(&error, &self.place))?;
        Ok(self.apart(held))
    }

    fn apart(self: &Arc<Self>, held: Held<Postgres>) -> Session {
        Session { held: Some(held), sessions: Arc::clone(self), state: State::Apart, limit: self.limit }
    }

    /// A connection with a transaction, which begins with the first statement.
    pub(super) async fn transaction(self: &Arc<Self>) -> Result<Session, StoreError> {
        let mut session = self.session().await?;
        session.state = State::Beginning;
        Ok(session)
    }
}

impl Session {
    /// Waits up to `limit` for each answer from now on.
    pub(super) fn allow(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Runs `sql` and gives all rows. They count only now: a row can arrive before the commit of its statement is
    /// confirmed, so the answer is read to its very end, where the server says that it is ready again.
    pub(super) async fn run(&mut self, sql: &str, effect: Effect) -> Result<Vec<PgRow>, StoreError> {
        let place = &self.sessions.place;
        let limit = self.limit;
        let Some(held) = self.held.as_mut() else {
            return Err(StoreError::new(Kind::Transient, format!("{place}: the connection is closed")));
        };
        let message = match self.state {
            State::Apart => format!("{} {sql}", terms(self.sessions.limit)),
            State::Beginning => format!("BEGIN; {} {sql}", terms(self.sessions.limit)),
            State::Open => sql.to_owned(),
            State::Failed => {
                return Err(StoreError::new(Kind::Transient, format!("{place}: the transaction has failed")));
            }
        };
        if self.state == State::Beginning {
            self.state = State::Open;
        }
        let Some(connection) = held.connection() else {
            return Err(StoreError::new(Kind::Transient, format!("{place}: the connection is closed")));
        };
        let answer = sqlx::raw_sql(AssertSqlSafe(message)).fetch_all(connection);
        let failure = match tokio::time::timeout(limit, answer).await {
            Ok(Ok(rows)) => {
                held.settled();
                return Ok(rows);
            }
            Ok(Err(error)) => failure::of_statement(&error, effect, place),
            Err(_) => failure::of_silence(effect, place, limit),
        };
        if self.state == State::Open {
            self.state = State::Failed;
        }
        if failure.close {
            // Not a polite end, which could wait for the statement that hangs: the socket is closed here and now.
            held.close();
            self.sessions.warm.doubt();
        }
        if failure.astray {
            self.sessions.warm.forget();
        }
        Err(failure.error)
    }

    /// Commits the transaction.
    pub(super) async fn finish(mut self) -> Result<(), StoreError> {
        // Never after a failure: the server would roll back and call it a success.
        self.run("COMMIT", Effect::Commit).await?;
        self.state = State::Apart;
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let open = matches!(self.state, State::Open | State::Failed);
        let (true, Some(mut held)) = (open, self.held.take()) else { return };
        self.sessions.runtime.spawn(async move {
            let Some(connection) = held.connection() else { return };
            let rollback = sqlx::raw_sql("ROLLBACK").execute(connection);
            match tokio::time::timeout(ACQUIRE_TIMEOUT, rollback).await {
                Ok(Ok(_)) => held.settled(),
                _ => held.close(),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_limits_come_before_the_clients() {
        let millis = Duration::from_millis;
        assert_eq!(limits(Duration::from_secs(3)), (millis(2700), millis(2000)));
        assert_eq!(limits(millis(100)), (millis(90), millis(90)));
        assert_eq!(limits(Duration::from_mins(1)), (Duration::from_secs(54), millis(2000)));
    }
}
