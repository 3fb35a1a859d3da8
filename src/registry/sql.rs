//! The registry in a SQL database: a row for each worker id (`worker_bound`), written only by guarded single updates.
//!
//! Each write is one `UPDATE … WHERE` the whole record is the expected one and the bound grows; how many rows it has
//! changed decides. There are no leases: a process that did not stop cleanly stays the owner of its row, which counts
//! only until its bound has passed. The rows are created once, by `init`, and a missing row stays missing. Rejected:
//! read, then write in a transaction (two owners at the usual isolation levels), and rows made on demand (a lost row
//! would start at 0 again).

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection, SqlitePool};

use super::{Answer, Bound, Owner, RegistryError, Swap, Worker, WorkerRegistry};
use crate::ids::Incarnation;

/// Characters of a host name that are kept: the column's limit.
const HOST_MAX: usize = 255;

/// SQLite's primary result codes of statements that have not happened: busy, locked, read-only, cannot open, not a
/// database, constraint, full disk (the statement was rolled back).
const NOT_DONE: [u32; 7] = [5, 6, 8, 14, 26, 19, 13];

const RAISE: &str = "UPDATE worker_bound SET hi = ?1, incarnation = ?2, n = ?3, wall_ms = ?4, host = ?5, released = 0 \
                     WHERE dc = ?6 AND w = ?7 AND hi = ?8 AND incarnation = ?9 AND n = ?10 AND hi < ?1";

/// The bounds of one datacenter in the embedded SQLite file.
#[derive(Clone, Debug)]
pub struct SqlRegistry {
    pool: SqlitePool,
    datacenter: u32,
    workers: u32,
}

/// Creates the rows of `datacenter` for worker ids `0 .. workers` with the bound `hi` (Unix milliseconds; 0 on a first
/// installation). Belongs into the transaction that records the identity of the cluster, and nowhere else.
///
/// # Errors
/// When one of the rows exists, or the database can't be written.
pub async fn create_bounds(
    connection: &mut SqliteConnection,
    datacenter: u32,
    workers: u32,
    hi: u64,
) -> Result<(), sqlx::Error> {
    // A loop of its own in SQL: one statement for up to 2^14 rows.
    let insert = "WITH RECURSIVE ids(w) AS (SELECT 0 UNION ALL SELECT w + 1 FROM ids WHERE w + 1 < ?2) \
                  INSERT INTO worker_bound (dc, w, hi, incarnation, n, wall_ms, host, released) \
                  SELECT ?1, w, ?3, ?4, 0, 0, '', 1 FROM ids";
    sqlx::query(insert)
        .bind(datacenter)
        .bind(workers)
        .bind(signed(hi))
        .bind(Incarnation(0).to_string())
        .execute(connection)
        .await
        .map(drop)
}

impl SqlRegistry {
    /// The rows of `datacenter` for worker ids `0 .. workers` behind `pool`, whose connections must make a commit
    /// durable before they report it (`synchronous = FULL`) and belong to the one process that holds the file.
    pub fn new(pool: SqlitePool, datacenter: u32, workers: u32) -> Self {
        Self { pool, datacenter, workers }
    }

    async fn rows(&self) -> Result<Vec<Worker>, RegistryError> {
        let select = "SELECT w, hi, incarnation, n, wall_ms, host, released FROM worker_bound WHERE dc = ? ORDER BY w";
        let rows =
            sqlx::query(select).bind(self.datacenter).fetch_all(&self.pool).await.map_err(|error| not_read(&error))?;
        let rows: Vec<Worker> = rows.iter().map(worker).collect::<Result<_, _>>()?;
        let mut rows = rows.into_iter().peekable();
        // A row that has vanished is shown without a bound, so that it is told.
        let found = |id| rows.next_if(|row| row.id == id).unwrap_or(Worker { id, bound: None, owner: None });
        Ok((0..self.workers).map(found).collect())
    }

    async fn row(&self, worker_id: u32) -> Result<Option<Bound>, RegistryError> {
        let select = "SELECT w, hi, incarnation, n, wall_ms, host, released FROM worker_bound WHERE dc = ? AND w = ?";
        let query = sqlx::query(select).bind(self.datacenter).bind(worker_id);
        let row = query.fetch_optional(&self.pool).await.map_err(|error| not_read(&error))?;
        row.as_ref().map(worker).transpose().map(|worker| worker.and_then(|worker| worker.bound))
    }

    async fn raise(&self, worker: u32, expected: &Bound, next: &Bound) -> Result<Swap, RegistryError> {
        let update = sqlx::query(RAISE)
            .bind(signed(next.hi))
            .bind(next.incarnation.to_string())
            .bind(signed(next.n))
            .bind(signed(next.wall_ms))
            .bind(next.host.chars().take(HOST_MAX).collect::<String>())
            .bind(self.datacenter)
            .bind(worker)
            .bind(signed(expected.hi))
            .bind(expected.incarnation.to_string())
            .bind(signed(expected.n));
        let done = update.execute(&self.pool).await.map_err(|error| not_written(&error))?;
        Ok(if done.rows_affected() == 1 { Swap::Done } else { Swap::Refused })
    }
}

impl WorkerRegistry for SqlRegistry {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn exclusive(&self) -> bool {
        true
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
        let update = "UPDATE worker_bound SET released = 1 WHERE dc = ? AND w = ? AND incarnation = ?";
        let query = sqlx::query(update).bind(self.datacenter).bind(worker).bind(incarnation.to_string());
        Box::pin(async move { query.execute(&self.pool).await.map(drop).map_err(|error| not_written(&error)) })
    }

    fn raise_all(&self, hi: u64) -> Answer<'_, u64> {
        let update = "UPDATE worker_bound SET hi = max(hi, ?), n = n + 1, released = 1 WHERE dc = ?";
        let query = sqlx::query(update).bind(signed(hi)).bind(self.datacenter);
        Box::pin(async move {
            query.execute(&self.pool).await.map(|done| done.rows_affected()).map_err(|error| not_written(&error))
        })
    }
}

fn worker(row: &SqliteRow) -> Result<Worker, RegistryError> {
    let read = || -> Result<(Worker, String), sqlx::Error> {
        let text: String = row.try_get("incarnation")?;
        let bound = Bound {
            hi: unsigned(row.try_get("hi")?),
            incarnation: Incarnation(0),
            n: unsigned(row.try_get("n")?),
            wall_ms: unsigned(row.try_get("wall_ms")?),
            host: row.try_get("host")?,
        };
        let released: bool = row.try_get("released")?;
        let owner = (!released).then(|| Owner { incarnation: Incarnation(0), host: bound.host.clone() });
        Ok((Worker { id: row.try_get("w")?, bound: Some(bound), owner }, text))
    };
    let (mut worker, text) = read().map_err(|error| not_read(&error))?;
    let incarnation = u128::from_str_radix(&text, 16).map(Incarnation).map_err(|_| {
        RegistryError::Unavailable(format!(
            "the row of worker id {} in worker_bound has no valid incarnation",
            worker.id
        ))
    })?;
    if let Some(bound) = &mut worker.bound {
        bound.incarnation = incarnation;
    }
    if let Some(owner) = &mut worker.owner {
        owner.incarnation = incarnation;
    }
    Ok(worker)
}

/// The table's CHECKs keep everything in the range of both types.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn not_read(error: &sqlx::Error) -> RegistryError {
    RegistryError::Unavailable(describe(error))
}

/// Whether a failed write may have happened. What is not known to be harmless is unknown.
fn not_written(error: &sqlx::Error) -> RegistryError {
    let primary = error
        .as_database_error()
        .and_then(|error| error.code().and_then(|code| code.parse::<u32>().ok()))
        .map(|code| code & 0xff);
    let not_sent = matches!(error, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed);
    if not_sent || primary.is_some_and(|code| NOT_DONE.contains(&code)) {
        RegistryError::Unavailable(describe(error))
    } else {
        RegistryError::Unknown(describe(error))
    }
}

fn describe(error: &sqlx::Error) -> String {
    error.to_string().replace(['\r', '\n'], " ")
}
