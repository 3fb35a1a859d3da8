//! The segment store in one SQLite file, held by one process.
//!
//! Guaranteed: a grant is answered only after its transaction was committed with `synchronous = FULL`, so neither a
//! crash nor a power failure takes it back. How: one connection writes, each change is one `BEGIN IMMEDIATE`
//! transaction, and before each commit the file is compared with the one that was opened, since writing into a deleted
//! file would lose everything at the next start. What fails before `COMMIT` was sent did not happen; what fails from
//! then on is unknown, a full disk included, because a complete log can be found there after a crash.
//! Rejected: `UPDATE .. RETURNING` in autocommit (the row arrives before the commit, whose failure nobody would see);
//! a pool of several connections (SQLite has one writer anyway, and a queue in front of it is fairer than `BUSY`).

use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::{Row as _, SqliteConnection, SqlitePool};

use super::{
    Alteration, Answer, Definition, Grant, Kind, MAX_TAILS, Row, SegmentStore, StoreError, Tail,
    changes::{self, Transaction as _},
    columns::{Columns as _, PAGE, ROW, blob, int, pages, row},
    nonce, rules,
};
use crate::ids::{IdRange, MAX_ID, TagName};

mod open;
mod schema;

pub use open::{OpenError, Opened};

/// The store; cheap to clone. The file stays locked until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Sqlite(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: SqlitePool,
    place: open::Place,
    statement_timeout: Duration,
    /// Dropped last, so that no second process starts while the pool still closes.
    lock: Mutex<open::Lock>,
}

impl Inner {
    /// Notes that the log may be gone from now on. Before it goes: should the process die in between, the log is still
    /// read at the next start.
    fn release(&self) {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = open::release(&mut lock) {
            tracing::warn!(error_kind = "system", "the lock file can't be written: {error}");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The pool, dropped after this, may close the last connection, which takes the log away.
        self.release();
    }
}

/// A transaction that has the file for itself.
struct Tx {
    tx: sqlx::Transaction<'static, sqlx::Sqlite>,
    store: Sqlite,
}

impl Sqlite {
    /// Opens the file at `path`, and makes it and its folder at the first start.
    ///
    /// # Errors
    /// Why not, with the fix. An existing file is not changed before it is known to be ours and sound.
    pub async fn open(path: &Path, statement_timeout: Duration) -> Result<Opened, OpenError> {
        open::open(path, statement_timeout, false).await
    }

    /// The same for a copy that has been put in the place of the database, and is about to be made safe: that there is no
    /// log beside it is no reason to refuse it.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_restored(path: &Path, statement_timeout: Duration) -> Result<Opened, OpenError> {
        open::open(path, statement_timeout, true).await
    }

    /// The one connection that writes the file, for the other tables in it. Keep the store alive as long as it is used.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.0.pool
    }

    /// Begins the transaction that reads or writes the identity.
    ///
    /// # Errors
    /// Why not.
    pub async fn found(&self) -> Result<sqlx::Transaction<'static, sqlx::Sqlite>, sqlx::Error> {
        self.0.pool.begin_with("BEGIN IMMEDIATE").await
    }

    /// Waits for the statement that runs, writes the log back into the file and closes it.
    pub async fn close(&self) {
        self.0.release();
        self.0.pool.close().await;
    }

    async fn begin(&self) -> Result<Tx, StoreError> {
        let tx = self.run(self.0.pool.begin_with("BEGIN IMMEDIATE")).await?;
        self.0.place.check().map_err(|text| StoreError::new(Kind::Permanent, text).because("gone"))?;
        Ok(Tx { tx, store: self.clone() })
    }

    /// Runs one statement that is not a commit. Dropping the future, here at the time limit, rolls back.
    async fn run<T>(&self, statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, StoreError> {
        match tokio::time::timeout(self.0.statement_timeout, statement).await {
            Ok(result) => result.map_err(|error| self.failed(&error)),
            Err(_) => Err(StoreError::new(
                Kind::Transient,
                format!("{} did not answer within {:?}", self.0.place.path.display(), self.0.statement_timeout),
            )
            .because("timeout")),
        }
    }

    async fn end(&self, tx: Tx) -> Result<(), StoreError> {
        match tokio::time::timeout(self.0.statement_timeout, tx.tx.commit()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let failed = self.failed(&error);
                // SQLite keeps the transaction open when it says BUSY: the only refusal that surely did nothing.
                Err(if failed.reason == "busy" { failed } else { StoreError { kind: Kind::Unknown, ..failed } })
            }
            Err(_) => Err(StoreError::new(
                Kind::Unknown,
                format!("{} did not commit within {:?}", self.0.place.path.display(), self.0.statement_timeout),
            )
            .because("timeout")),
        }
    }

    /// What an error means that came before any commit was sent.
    fn failed(&self, error: &sqlx::Error) -> StoreError {
        let file = self.0.place.path.display();
        let (kind, reason) = match (error, open::code(error)) {
            (_, Some(5 | 6)) | (sqlx::Error::PoolTimedOut, _) => (Kind::Transient, "busy"),
            (_, Some(8)) => (Kind::Permanent, "readonly"),
            (_, Some(10)) => (Kind::Permanent, "io"),
            (_, Some(11 | 26)) => (Kind::Permanent, "corrupt"),
            (_, Some(13)) => (Kind::Permanent, "full"),
            (_, Some(14)) => (Kind::Permanent, "gone"),
            (_, Some(19)) => (Kind::Conflict, "constraint"),
            // A connection that was lost in the middle of a transaction: the pool opens the next one.
            (sqlx::Error::WorkerCrashed | sqlx::Error::InvalidSavePointStatement | sqlx::Error::BeginFailed, _) => {
                (Kind::Transient, "connection")
            }
            _ => (Kind::Permanent, "sql"),
        };
        StoreError::new(kind, format!("{file}: {}", open::words(error))).because(reason)
    }

    async fn grant_range(&self, tag: &TagName, count: u64) -> Result<Grant, StoreError> {
        let nonce = nonce::fresh()?;
        let mut tx = self.begin().await?;
        let whole = "UPDATE id_alloc SET max_id = max(max_id, floor) + ?1, grant_nonce = ?2, \
                     update_time = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') \
                     WHERE biz_tag = ?3 AND retired = 0 AND max(max_id, floor) <= id_limit - ?1 RETURNING max_id";
        let query = sqlx::query(whole).bind(int(count)).bind(blob(nonce)).bind(tag.as_str());
        let granted = self.run(query.fetch_optional(connection(&mut tx))).await?;
        let (last, count) = match granted {
            Some(row) => (row.number("max_id")?, count),
            None => self.grant_rest(&mut tx, tag, nonce).await?,
        };
        // Looked at once more before it counts: a row that gave anything else must not be committed.
        let range = last
            .checked_sub(count)
            .and_then(|before| IdRange::new(before + 1, last + 1))
            .ok_or_else(|| StoreError::new(Kind::Permanent, "its row gave no valid range").because("corrupt"))?;
        self.end(tx).await?;
        Ok(Grant { range, nonce })
    }

    /// The last ids below the limit, when fewer than asked for are left; the last one and how many.
    async fn grant_rest(&self, tx: &mut Tx, tag: &TagName, nonce: u128) -> Result<(u64, u64), StoreError> {
        let row = rules::live(tx.read(tag).await?.ok_or_else(|| rules::missing(tag))?)?;
        let limit = row.definition.id_limit;
        let rest = limit.saturating_sub(row.max_id);
        if rest == 0 {
            return Err(rules::exhausted(limit));
        }
        let sql = "UPDATE id_alloc SET max_id = id_limit, grant_nonce = ?, \
                   update_time = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') \
                   WHERE biz_tag = ? AND retired = 0 AND max_id = ? AND id_limit = ?";
        let query = sqlx::query(sql).bind(blob(nonce)).bind(tag.as_str()).bind(int(row.max_id)).bind(int(limit));
        if self.run(query.execute(connection(tx))).await?.rows_affected() == 1 {
            Ok((limit, rest))
        } else {
            Err(StoreError::new(Kind::Transient, "its row changed meanwhile"))
        }
    }

    async fn take_back(&self, tails: &[Tail]) -> Result<Vec<bool>, StoreError> {
        let mut taken = Vec::with_capacity(tails.len());
        let mut tx = self.begin().await?;
        for tail in tails.iter().take(MAX_TAILS) {
            taken.push(self.take_back_one(&mut tx, tail).await?);
        }
        self.end(tx).await?;
        taken.resize(tails.len(), false);
        Ok(taken)
    }

    async fn take_back_one(&self, tx: &mut Tx, tail: &Tail) -> Result<bool, StoreError> {
        let sql = "UPDATE id_alloc SET max_id = ?1, grant_nonce = ?2, \
                   update_time = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') \
                   WHERE biz_tag = ?3 AND max_id = ?4 AND grant_nonce = ?5 AND floor <= ?1 AND retired = 0";
        let query = sqlx::query(sql)
            .bind(int(tail.unused.start() - 1))
            .bind(blob(nonce::fresh()?))
            .bind(tail.tag.as_str())
            .bind(int(tail.unused.last()))
            .bind(blob(tail.nonce));
        Ok(self.run(query.execute(connection(tx))).await?.rows_affected() == 1)
    }

    async fn raise_rows(&self, by: u64) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let rows = tx.count().await?;
        let before = tx.revise(rows).await?;
        let sql = "UPDATE id_alloc SET max_id = id_limit - max(id_limit - max_id - ?1, 0), \
                   floor = id_limit - max(id_limit - max_id - ?1, 0), revision = ?2 + place.n, \
                   grant_nonce = randomblob(16), update_time = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') \
                   FROM (SELECT biz_tag AS name, row_number() OVER (ORDER BY biz_tag) AS n FROM id_alloc) AS place \
                   WHERE id_alloc.biz_tag = place.name";
        let query = sqlx::query(sql).bind(int(by)).bind(int(before));
        let changed = self.run(query.execute(connection(&mut tx))).await?.rows_affected();
        self.end(tx).await?;
        Ok(changed)
    }

    async fn weaknesses(&self) -> Result<Vec<String>, StoreError> {
        let mut found: Vec<String> = self.0.place.weakness().into_iter().collect();
        let synchronous = sqlx::query("PRAGMA synchronous").fetch_one(&self.0.pool);
        if self.run(synchronous).await?.try_get::<i64, _>(0).unwrap_or(0) < 2 {
            found.push("PRAGMA synchronous is below FULL".into());
        }
        let journal = sqlx::query("PRAGMA journal_mode").fetch_one(&self.0.pool);
        if self.run(journal).await?.try_get::<String, _>(0).unwrap_or_default() != "wal" {
            found.push("PRAGMA journal_mode is not WAL".into());
        }
        Ok(found)
    }
}

impl changes::Transaction for Tx {
    async fn revise(&mut self, count: u64) -> Result<u64, StoreError> {
        let sql = "UPDATE id_alloc_revision SET revision = revision + ? WHERE one = 1 RETURNING revision";
        let query = sqlx::query(sql).bind(int(count));
        let row = self.store.run(query.fetch_one(&mut *self.tx)).await?;
        Ok(row.number("revision")?.saturating_sub(count))
    }

    async fn read(&mut self, tag: &TagName) -> Result<Option<Row>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT {ROW} FROM id_alloc WHERE biz_tag = ?"));
        let query = sqlx::query(sql).bind(tag.as_str());
        let found = self.store.run(query.fetch_optional(&mut *self.tx)).await?;
        found.as_ref().map(row).transpose()
    }

    async fn count(&mut self) -> Result<u64, StoreError> {
        let query = sqlx::query("SELECT count(*) AS n FROM id_alloc");
        self.store.run(query.fetch_one(&mut *self.tx)).await?.number("n")
    }

    async fn insert(&mut self, row: &Row) -> Result<(), StoreError> {
        let Definition { engine, order, step, min_step, max_step, id_limit, .. } = row.definition;
        let sql = "INSERT INTO id_alloc (biz_tag, engine, ordering, step, min_step, max_step, id_limit, revision) \
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        let query = sqlx::query(sql).bind(row.tag.as_str()).bind(engine.name()).bind(order.name());
        let query = query.bind(int(step)).bind(int(min_step)).bind(int(max_step)).bind(int(id_limit));
        self.store.run(query.bind(int(row.revision)).execute(&mut *self.tx)).await?;
        self.write(row).await.map(drop)
    }

    async fn write(&mut self, row: &Row) -> Result<u64, StoreError> {
        let Definition { step, min_step, max_step, id_limit, qps, burst, critical, ref description, .. } =
            row.definition;
        let sql = "UPDATE id_alloc SET max_id = ?, floor = ?, step = ?, min_step = ?, max_step = ?, id_limit = ?, \
                   qps = ?, burst = ?, critical = ?, description = ?, retired = ?, revision = ?, grant_nonce = ?, \
                   update_time = strftime('%Y-%m-%dT%H:%M:%fZ', 'now') WHERE biz_tag = ?";
        let mut query = sqlx::query(sql);
        for value in [row.max_id, row.floor, step, min_step, max_step, id_limit, qps, burst] {
            query = query.bind(int(value));
        }
        let query = query.bind(critical).bind(description).bind(row.retired).bind(int(row.revision));
        let query = query.bind(blob(nonce::fresh()?)).bind(row.tag.as_str());
        Ok(self.store.run(query.execute(&mut *self.tx)).await?.rows_affected())
    }

    async fn commit(self) -> Result<(), StoreError> {
        let store = self.store.clone();
        store.end(self).await
    }
}

impl SegmentStore for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn shared(&self) -> bool {
        false
    }

    fn grant<'a>(&'a self, tag: &'a TagName, count: u64) -> Answer<'a, Grant> {
        Box::pin(self.grant_range(tag, count.clamp(1, MAX_ID)))
    }

    fn return_tails<'a>(&'a self, tails: &'a [Tail]) -> Answer<'a, Vec<bool>> {
        Box::pin(self.take_back(tails))
    }

    fn find<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Option<Row>> {
        Box::pin(async move {
            let sql = sqlx::AssertSqlSafe(format!("SELECT {ROW} FROM id_alloc WHERE biz_tag = ?"));
            let found = self.run(sqlx::query(sql).bind(tag.as_str()).fetch_optional(&self.0.pool)).await?;
            found.as_ref().map(row).transpose()
        })
    }

    fn changed_since(&self, revision: u64) -> Answer<'_, Vec<Row>> {
        Box::pin(pages(revision, move |after| async move {
            let sql = format!("SELECT {ROW} FROM id_alloc WHERE revision > ? ORDER BY revision LIMIT {PAGE}");
            let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(int(after));
            self.run(query.fetch_all(&self.0.pool)).await?.iter().map(row).collect()
        }))
    }

    fn count(&self) -> Answer<'_, u64> {
        Box::pin(async move {
            let count = sqlx::query("SELECT count(*) AS n FROM id_alloc").fetch_one(&self.0.pool);
            self.run(count).await?.number("n")
        })
    }

    fn create<'a>(
        &'a self,
        tag: &'a TagName,
        definition: &'a Definition,
        start: u64,
        most: u64,
    ) -> Answer<'a, (Row, bool)> {
        Box::pin(async move { changes::create(self.begin().await?, tag, definition, start, most).await })
    }

    fn alter<'a>(&'a self, tag: &'a TagName, alteration: &'a Alteration) -> Answer<'a, Row> {
        Box::pin(async move { changes::alter(self.begin().await?, tag, alteration).await })
    }

    fn raise_floor<'a>(&'a self, tag: &'a TagName, floor: u64) -> Answer<'a, Row> {
        Box::pin(async move { changes::raise_floor(self.begin().await?, tag, floor).await })
    }

    fn retire<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Row> {
        Box::pin(async move { changes::retire(self.begin().await?, tag).await })
    }

    fn raise_all(&self, by: u64) -> Answer<'_, u64> {
        Box::pin(self.raise_rows(by.min(MAX_ID)))
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut tx = self.begin().await?;
            // A number that is skipped: a transaction that writes nothing would not find a full disk.
            tx.revise(1).await?;
            self.end(tx).await
        })
    }

    fn durability(&self) -> Answer<'_, Vec<String>> {
        Box::pin(self.weaknesses())
    }
}

fn connection(tx: &mut Tx) -> &mut SqliteConnection {
    &mut tx.tx
}

#[cfg(test)]
mod tests;
