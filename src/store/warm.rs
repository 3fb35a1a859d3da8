//! Connections to a database server that are ready: a statement is one round trip, with none before and none after it.
//!
//! Guaranteed: what is handed out has answered within [`TRUSTED_IDLE`], or is asked first; at most as many connections are
//! open as were allowed, and a few are open before somebody needs one. How: a connection whose last answer was read to its
//! end stays here in place of going back to the driver's pool, and a task asks those that lie idle, one at a time.
//! Rejected: the driver's pool alone. It asks each connection that comes back whether it still works, so that on a slow
//! network it is of no use for as long as the statement took, and the next statement opens another one, which takes five
//! round trips or more; and it tries what has lain idle before it hands it out, which makes two of each rare statement.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Database, Pool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::network::{ACQUIRE_TIMEOUT, IDLE_TIMEOUT, MAX_LIFETIME, TRUSTED_IDLE};
use crate::clock::{Boot, Clock as _, SystemClock};

/// How many connections are kept open and asked, so that one is there while another one is out or is being asked.
const KEPT: usize = 2;

/// How often one of those is asked. Each of them comes up within [`TRUSTED_IDLE`], if an answer takes less than half of
/// that between two turns.
const CARE_EVERY: Duration = Duration::from_millis(500);

/// How long the next connection waits when one could not be made.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// How long a connection that is asked may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// An open connection that nobody uses.
#[derive(Debug)]
struct Ready<DB: Database> {
    connection: PoolConnection<DB>,
    opened: Boot,
    used: Boot,
    /// When it has answered last; 0 where that is worth nothing any more.
    answered: Boot,
}

#[derive(Debug)]
struct State<DB: Database> {
    ready: Vec<Ready<DB>>,
    closed: bool,
}

#[derive(Debug)]
struct Shared<DB: Database> {
    pool: Pool<DB>,
    most: usize,
    /// One for each connection that is in use, so that nobody waits for the pool while a connection lies here.
    permits: Arc<Semaphore>,
    /// One for each that is in use for anything but a grant: half of them at most. Changes of tags queue for a row that
    /// one of them holds, and look-ups of unknown tags come in crowds; the refill of a tag in use waits for neither.
    others: Arc<Semaphore>,
    state: Mutex<State<DB>>,
}

/// The connections to one server.
#[derive(Debug)]
pub(super) struct Warm<DB: Database>(Arc<Shared<DB>>);

impl<DB: Database> Clone for Warm<DB> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A connection in use. It stays open when its last answer was read to the end, see [`Held::settled`].
#[derive(Debug)]
pub(super) struct Held<DB: Database> {
    ready: Option<Ready<DB>>,
    settled: bool,
    shared: Arc<Shared<DB>>,
    // Given back after the connection.
    _permits: [Option<OwnedSemaphorePermit>; 2],
}

impl<DB: Database> Warm<DB> {
    /// The connections of `pool`, `most` at once, which nobody else uses. To be called on the runtime that they live on.
    pub(super) fn new(pool: Pool<DB>, most: u32) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        let state = Mutex::new(State { ready: Vec::new(), closed: false });
        let (permits, others) = (Arc::new(Semaphore::new(most)), Arc::new(Semaphore::new(most.div_ceil(2))));
        let shared = Arc::new(Shared { pool, most, permits, others, state });
        tokio::spawn(keep(Arc::downgrade(&shared)));
        Self(shared)
    }

    /// A connection that works as far as is known, for anything but a grant.
    ///
    /// # Errors
    /// The driver's, when there is none within about [`ACQUIRE_TIMEOUT`].
    pub(super) async fn acquire(&self) -> Result<Held<DB>, sqlx::Error> {
        let other = permit(&self.0.others).await?;
        self.acquire_with(Some(other)).await
    }

    /// A connection for a grant, which may be any of them.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub(super) async fn acquire_for_grant(&self) -> Result<Held<DB>, sqlx::Error> {
        self.acquire_with(None).await
    }

    async fn acquire_with(&self, other: Option<OwnedSemaphorePermit>) -> Result<Held<DB>, sqlx::Error> {
        let shared = &self.0;
        let permits = [Some(permit(&shared.permits).await?), other];
        let held = |ready| Held { ready: Some(ready), settled: false, shared: Arc::clone(shared), _permits: permits };
        while let Some(mut ready) = shared.freshest() {
            if SystemClock.boot().since(ready.answered) <= TRUSTED_IDLE || answers::<DB>(&mut ready.connection).await {
                return Ok(held(ready));
            }
            drop(ready.connection.detach());
            shared.doubt();
        }
        shared.open().await.map(held)
    }

    /// Whatever lies idle is asked before it is used: another connection has just failed.
    pub(super) fn doubt(&self) {
        self.0.doubt();
    }

    /// Closes whatever lies idle: the name of the server is looked up again for the next connection.
    pub(super) fn forget(&self) {
        self.0.forget();
    }

    /// Closes all connections, once those in use have come back.
    pub(super) async fn close(&self) {
        let ready = {
            let mut state = self.0.state();
            state.closed = true;
            std::mem::take(&mut state.ready)
        };
        // The pool says goodbye, and counts them until then.
        for ready in ready {
            retire(ready.connection);
        }
        self.0.pool.close().await;
    }
}

impl<DB: Database> Held<DB> {
    /// The connection, unless it was closed. Until [`Self::settled`] is said, an answer may still be on its way.
    pub(super) fn connection(&mut self) -> Option<&mut DB::Connection> {
        self.settled = false;
        self.ready.as_mut().map(|ready| &mut *ready.connection)
    }

    /// Says that the last answer was read to its end, and was no error.
    pub(super) const fn settled(&mut self) {
        self.settled = true;
    }

    /// Closes it at once, without a word that could wait for an answer.
    pub(super) fn close(&mut self) {
        if let Some(ready) = self.ready.take() {
            drop(ready.connection.detach());
        }
    }
}

impl<DB: Database> Drop for Held<DB> {
    fn drop(&mut self) {
        // What is not settled goes to the driver's pool, which looks at it.
        if let Some(ready) = self.ready.take().filter(|_| self.settled) {
            let now = SystemClock.boot();
            self.shared.put(Ready { used: now, answered: now, ..ready });
        }
    }
}

impl<DB: Database> Shared<DB> {
    fn state(&self) -> MutexGuard<'_, State<DB>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self) -> Result<Ready<DB>, sqlx::Error> {
        let connection = self.pool.acquire().await?;
        let now = SystemClock.boot();
        Ok(Ready { connection, opened: now, used: now, answered: now })
    }

    /// Keeps a connection, unless it is old or all are to be closed.
    fn put(&self, ready: Ready<DB>) {
        let mut state = self.state();
        if state.closed || SystemClock.boot().since(ready.opened) > MAX_LIFETIME {
            drop(state);
            retire(ready.connection);
        } else {
            state.ready.push(ready);
        }
    }

    /// The one that has answered last.
    fn freshest(&self) -> Option<Ready<DB>> {
        let mut state = self.state();
        let (at, _) = state.ready.iter().enumerate().max_by_key(|(_, ready)| ready.answered)?;
        Some(state.ready.swap_remove(at))
    }

    fn doubt(&self) {
        for ready in &mut self.state().ready {
            ready.answered = Boot(0);
        }
    }

    fn forget(&self) {
        let ready = std::mem::take(&mut self.state().ready);
        for ready in ready {
            drop(ready.connection.detach());
        }
    }

    /// Closes what is too old, or has been of no use for long, opens what is missing, and asks one of the [`KEPT`] that
    /// have answered last; whether what was missing could be opened.
    async fn care(&self) -> bool {
        let now = SystemClock.boot();
        let mut ready = std::mem::take(&mut self.state().ready);
        ready.sort_by_key(|ready| std::cmp::Reverse(ready.answered));
        for (at, ready) in ready.into_iter().enumerate() {
            if at >= KEPT && now.since(ready.used) > IDLE_TIMEOUT {
                retire(ready.connection);
            } else {
                self.put(ready);
            }
        }
        // None is left: all are in use, which is as good.
        let Ok(_permit) = self.permits.try_acquire() else { return true };
        while self.open_now() < KEPT.min(self.most) {
            match self.open().await {
                Ok(ready) => self.put(ready),
                Err(_) => return false,
            }
        }
        let Some(mut asked) = self.least_sure() else { return true };
        if answers::<DB>(&mut asked.connection).await {
            self.put(Ready { answered: SystemClock.boot(), ..asked });
        } else {
            drop(asked.connection.detach());
            self.doubt();
        }
        true
    }

    /// How many connections there are, but for the one that the caller may open.
    fn open_now(&self) -> usize {
        let used = self.most.saturating_sub(self.permits.available_permits()).saturating_sub(1);
        self.state().ready.len() + used
    }

    /// Of those that are kept, the one that has answered least lately, if it is time to ask it.
    fn least_sure(&self) -> Option<Ready<DB>> {
        let mut state = self.state();
        state.ready.sort_by_key(|ready| std::cmp::Reverse(ready.answered));
        let at = state.ready.len().min(KEPT).checked_sub(1)?;
        let due = SystemClock.boot().since(state.ready.get(at)?.answered) >= CARE_EVERY;
        due.then(|| state.ready.swap_remove(at))
    }
}

impl<DB: Database> Drop for Shared<DB> {
    fn drop(&mut self) {
        // Not by way of the pool, which would need a runtime for that.
        self.forget();
    }
}

async fn permit(of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, sqlx::Error> {
    let permit = tokio::time::timeout(ACQUIRE_TIMEOUT, Arc::clone(of).acquire_owned()).await;
    permit.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)
}

/// Closes a connection with a word to the server, without waiting for it.
fn retire<DB: Database>(mut connection: PoolConnection<DB>) {
    connection.close_on_drop();
}

async fn answers<DB: Database>(connection: &mut DB::Connection) -> bool {
    matches!(tokio::time::timeout(PATIENCE, connection.ping()).await, Ok(Ok(())))
}

/// Keeps connections ready for as long as somebody may want one.
async fn keep<DB: Database>(shared: Weak<Shared<DB>>) {
    loop {
        let Some(shared) = shared.upgrade().filter(|shared| !shared.state().closed) else { return };
        let pause = if shared.care().await { CARE_EVERY } else { AFTER_FAILURE };
        drop(shared);
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::{Sqlite, SqlitePoolOptions};

    use super::*;

    fn warm(most: u32) -> Warm<Sqlite> {
        let pool = SqlitePoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE_TIMEOUT);
        Warm::new(pool.connect_lazy("sqlite::memory:").expect("a pool"), most)
    }

    async fn used(warm: &Warm<Sqlite>) -> Held<Sqlite> {
        let mut held = warm.acquire_for_grant().await.expect("a connection");
        let connection = held.connection().expect("open");
        sqlx::raw_sql("CREATE TABLE IF NOT EXISTS used (n)").execute(connection).await.expect("run");
        held.settled();
        held
    }

    async fn until(what: impl Fn() -> bool) {
        let met = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), met).await.expect("in time");
    }

    #[tokio::test]
    async fn two_connections_are_ready_before_anybody_needs_one() {
        let warm = warm(8);
        until(|| warm.0.state().ready.len() == KEPT).await;
        assert_eq!(warm.0.pool.size(), 2);
    }

    #[tokio::test]
    async fn what_is_settled_is_used_again_and_what_is_not_goes_to_the_pool() {
        let warm = warm(1);
        drop(used(&warm).await);
        until(|| warm.0.state().ready.len() == 1).await;
        let mut held = warm.acquire().await.expect("the same");
        let table = sqlx::raw_sql("SELECT * FROM used").execute(held.connection().expect("open")).await;
        table.expect("the table of the connection's own database");
        drop(held); // not settled
        assert!(warm.0.state().ready.is_empty());
        let mut held = used(&warm).await;
        held.close();
        drop(held);
        drop(used(&warm).await);
        assert!(warm.0.pool.size() <= 1, "the one that was closed has made room");
    }

    #[tokio::test]
    async fn other_work_leaves_half_of_the_connections_to_grants() {
        let warm = warm(4);
        let others = (warm.acquire().await.expect("one"), warm.acquire().await.expect("another"));
        let third = warm.acquire();
        tokio::pin!(third);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut third).await.is_err(), "half of them are out");
        let grants = (used(&warm).await, used(&warm).await);
        drop(grants);
        drop(others);
        third.await.expect("its turn");
    }

    #[tokio::test]
    async fn closing_ends_and_nothing_is_handed_out_after_it() {
        let warm = warm(4);
        let held = used(&warm).await;
        let closing = tokio::spawn({
            let warm = warm.clone();
            async move { warm.close().await }
        });
        until(|| warm.0.state().closed).await;
        drop(held);
        tokio::time::timeout(Duration::from_secs(10), closing).await.expect("in time").expect("closed");
        assert!(warm.acquire_for_grant().await.is_err());
    }

    #[test]
    fn a_store_may_be_dropped_where_no_runtime_is() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let warm = runtime.block_on(async {
            let warm = warm(4);
            until(|| warm.0.state().ready.len() == KEPT).await;
            warm
        });
        drop(runtime);
        drop(warm);
    }
}
