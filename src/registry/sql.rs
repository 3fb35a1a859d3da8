//! The registry in a SQL database: a row for each worker id (`worker_bound`), written only by guarded single updates.
//!
//! Each write is one `UPDATE … WHERE` the whole record is the expected one and the bound grows; how many rows it has
//! changed decides. There are no leases: a process that did not stop cleanly stays the owner of its row, which counts
//! only until its bound has passed. The rows are created once, by `init`, and a missing row stays missing. Rejected:
//! read, then write in a transaction (two owners at the usual isolation levels), and rows made on demand (a lost row
//! would start at 0 again).

use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};

use super::{Answer, Bound, Owner, RegistryError, Swap, Worker, WorkerRegistry};
use crate::ids::Incarnation;

mod rows;

pub use rows::{Record, Rows, Value};

/// Characters of a host name that are kept: the column's limit.
const HOST_MAX: usize = 255;

/// Rows that one statement of `init` creates.
const ROWS_AT_ONCE: usize = 1000;

const LIST: &str = "SELECT w, hi, incarnation, n, wall_ms, host, released FROM worker_bound WHERE dc = ? ORDER BY w";

const READ: &str = "SELECT w, hi, incarnation, n, wall_ms, host, released FROM worker_bound WHERE dc = ? AND w = ?";

const RAISE: &str = "UPDATE worker_bound SET hi = ?, incarnation = ?, n = ?, wall_ms = ?, host = ?, released = 0 \
                     WHERE dc = ? AND w = ? AND hi = ? AND incarnation = ? AND n = ? AND hi < ?";

const RELEASE: &str = "UPDATE worker_bound SET released = 1 WHERE dc = ? AND w = ? AND incarnation = ?";

const RAISE_ALL: &str = "UPDATE worker_bound SET hi = CASE WHEN hi < ? THEN ? ELSE hi END, n = n + 1, released = 1 \
                         WHERE dc = ?";

/// The bounds of one datacenter in a SQL database.
#[derive(Debug)]
pub struct SqlRegistry<DB: Database> {
    pool: Pool<DB>,
    datacenter: u32,
    workers: u32,
    statement_timeout: Duration,
}

/// Creates the rows of `datacenter` for worker ids `0 .. workers` with the bound `hi` (Unix milliseconds; 0 on a first
/// installation). Belongs into the transaction that records the identity of the cluster, and nowhere else.
///
/// # Errors
/// When one of the rows exists, or the database can't be written.
pub async fn create_bounds(
    connection: &mut impl Rows,
    datacenter: u32,
    workers: u32,
    hi: u64,
) -> Result<(), sqlx::Error> {
    let (hi, nobody) = (signed(hi), Incarnation(0));
    let row = |w: u32| format!("({datacenter}, {w}, {hi}, '{nobody}', 0, 0, '', 1)");
    for first in (0..workers).step_by(ROWS_AT_ONCE) {
        let rows: Vec<String> = (first..workers).take(ROWS_AT_ONCE).map(row).collect();
        let insert = "INSERT INTO worker_bound (dc, w, hi, incarnation, n, wall_ms, host, released) VALUES";
        connection.run(format!("{insert} {}", rows.join(", "))).await?;
    }
    Ok(())
}

impl<DB: Database<Connection: Rows>> SqlRegistry<DB> {
    /// The rows of `datacenter` for worker ids `0 .. workers` behind `pool`, whose connections must make a commit
    /// durable before they report it. A statement that takes longer than `statement_timeout` may have happened. For SQLite
    /// the pool must belong to the one process that holds the file.
    pub fn new(pool: Pool<DB>, datacenter: u32, workers: u32, statement_timeout: Duration) -> Self {
        Self { pool, datacenter, workers, statement_timeout }
    }

    /// Waits for a connection: whatever happens here, no statement was sent.
    async fn connection(&self) -> Result<PoolConnection<DB>, RegistryError> {
        let acquired = tokio::time::timeout(self.statement_timeout, self.pool.acquire()).await;
        let late = || RegistryError::Unavailable(format!("no connection within {:?}", self.statement_timeout));
        acquired.map_err(|_| late())?.map_err(|error| RegistryError::Unavailable(describe(&error)))
    }

    /// Ends a statement, in time. A connection to a server on which one has failed is closed: it may lead to a server that
    /// is the primary no more, or hold an answer that comes too late.
    fn ended<T>(
        &self,
        connection: PoolConnection<DB>,
        outcome: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
    ) -> Result<T, RegistryError> {
        let failure = match outcome {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => not_written::<DB>(&error),
            Err(_) => RegistryError::Unknown(format!("no answer within {:?}", self.statement_timeout)),
        };
        if !DB::Connection::EXCLUSIVE {
            drop(connection.detach());
        }
        Err(failure)
    }

    async fn read_rows(&self, sql: &'static str, values: &[Value]) -> Result<Vec<Worker>, RegistryError> {
        let mut connection = self.connection().await?;
        let outcome = tokio::time::timeout(self.statement_timeout, connection.read(sql, values)).await;
        let records = self.ended(connection, outcome);
        // What was only read has changed nothing.
        let records = records.map_err(|error| RegistryError::Unavailable(error.to_string()))?;
        records.into_iter().map(worker).collect()
    }

    async fn change(&self, sql: &'static str, values: &[Value]) -> Result<u64, RegistryError> {
        let mut connection = self.connection().await?;
        let outcome = tokio::time::timeout(self.statement_timeout, connection.change(sql, values)).await;
        self.ended(connection, outcome)
    }

    async fn rows(&self) -> Result<Vec<Worker>, RegistryError> {
        let rows = self.read_rows(LIST, &[int(self.datacenter)]).await?;
        let mut rows = rows.into_iter().peekable();
        // A row that has vanished is shown without a bound, so that it is told.
        let found = |id| rows.next_if(|row| row.id == id).unwrap_or(Worker { id, bound: None, owner: None });
        Ok((0..self.workers).map(found).collect())
    }

    async fn row(&self, worker_id: u32) -> Result<Option<Bound>, RegistryError> {
        let rows = self.read_rows(READ, &[int(self.datacenter), int(worker_id)]).await?;
        Ok(rows.into_iter().next().and_then(|worker| worker.bound))
    }

    async fn raise(&self, worker: u32, expected: &Bound, next: &Bound) -> Result<Swap, RegistryError> {
        let hi = Value::Int(signed(next.hi));
        let values = [
            hi.clone(),
            Value::Text(next.incarnation.to_string()),
            Value::Int(signed(next.n)),
            Value::Int(signed(next.wall_ms)),
            Value::Text(next.host.chars().take(HOST_MAX).collect()),
            int(self.datacenter),
            int(worker),
            Value::Int(signed(expected.hi)),
            Value::Text(expected.incarnation.to_string()),
            Value::Int(signed(expected.n)),
            hi,
        ];
        Ok(if self.change(RAISE, &values).await? == 1 { Swap::Done } else { Swap::Refused })
    }
}

impl<DB: Database<Connection: Rows>> WorkerRegistry for SqlRegistry<DB> {
    fn name(&self) -> &'static str {
        DB::Connection::NAME
    }

    fn exclusive(&self) -> bool {
        DB::Connection::EXCLUSIVE
    }

    fn leases(&self) -> bool {
        false
    }

    fn list(&self) -> Answer<'_, Vec<Worker>> {
        Box::pin(self.rows())
    }

    fn read(&self, worker: u32) -> Answer<'_, Option<Bound>> {
        Box::pin(self.row(worker))
    }

    fn claim<'a>(&'a self, worker: u32, expected: &'a Bound, next: &'a Bound) -> Answer<'a, Swap> {
        Box::pin(self.raise(worker, expected, next))
    }

    fn renew<'a>(&'a self, worker: u32, expected: &'a Bound, next: &'a Bound) -> Answer<'a, Swap> {
        Box::pin(self.raise(worker, expected, next))
    }

    fn release(&self, worker: u32, incarnation: Incarnation) -> Answer<'_, ()> {
        let values = [int(self.datacenter), int(worker), Value::Text(incarnation.to_string())];
        Box::pin(async move { self.change(RELEASE, &values).await.map(drop) })
    }

    fn raise_all(&self, hi: u64) -> Answer<'_, u64> {
        let hi = Value::Int(signed(hi));
        Box::pin(async move { self.change(RAISE_ALL, &[hi.clone(), hi, int(self.datacenter)]).await })
    }
}

fn worker(record: Record) -> Result<Worker, RegistryError> {
    let unusable = |what: &str| RegistryError::Unavailable(format!("a row of worker_bound has {what}"));
    let id = u32::try_from(record.w).map_err(|_| unusable("no valid worker id"))?;
    let incarnation = u128::from_str_radix(&record.incarnation, 16);
    let incarnation = incarnation.map(Incarnation).map_err(|_| unusable("no valid incarnation"))?;
    let owner = (record.released == 0).then(|| Owner { incarnation, host: record.host.clone() });
    let bound = Bound {
        hi: unsigned(record.hi),
        incarnation,
        n: unsigned(record.n),
        wall_ms: unsigned(record.wall_ms),
        host: record.host,
    };
    Ok(Worker { id, bound: Some(bound), owner })
}

fn int(value: u32) -> Value {
    Value::Int(i64::from(value))
}

/// The table's CHECKs keep everything in the range of both types.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Whether a failed write may have happened. What is not known to be harmless is unknown.
fn not_written<DB: Database<Connection: Rows>>(error: &sqlx::Error) -> RegistryError {
    let not_sent = matches!(error, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed);
    if not_sent || error.as_database_error().is_some_and(DB::Connection::not_done) {
        RegistryError::Unavailable(describe(error))
    } else {
        RegistryError::Unknown(describe(error))
    }
}

fn describe(error: &sqlx::Error) -> String {
    error.to_string().replace(['\r', '\n'], " ")
}
