//! The segment store in a PostgreSQL database, which any number of nodes share.
//!
//! Guaranteed: a range leaves here only after the server has said that the transaction which took it is committed; an
//! error or silence from then on is unknown, and its range is never used. How: a grant is one guarded `UPDATE .. RETURNING`
//! in one message that is a transaction of its own, so one round trip, whose answer is read to the end before its row
//! counts. Changes of a definition hold the row of revisions first, then the tag's; tails go back in one message, by name,
//! so that two nodes lock them in the same order. Works behind PgBouncer in transaction mode; see `postgres/session.rs`.
//! Rejected: sequences (one for each tag, no nonce, no guard), and SELECT, then UPDATE (two nodes would read the same).

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;

use sqlx::postgres::{PgPool, PgRow};

use super::columns::{Columns as _, PAGE, ROW, int, pages, row, unreadable};
use super::network::{Network, OpenError};
use super::nonce::fresh as fresh_nonce;
use super::{
    Alteration, Answer, Config, Definition, Grant, Kind, MAX_TAILS, Row, SegmentStore, StoreError, Tail,
    changes::{self, Transaction as _},
    rules,
};
use crate::ids::{IdRange, MAX_ID, TagName};

mod failure;
mod literal;
mod open;
mod schema;
mod session;
#[cfg(test)]
pub(crate) mod testing;

use failure::Effect;
use literal::{nonce, text};
use session::{Session, Sessions};

/// The store; cheap to clone.
#[derive(Clone, Debug)]
pub struct Postgres(Arc<Sessions>);

impl Network for Postgres {
    type Database = sqlx::Postgres;
    type Founding = sqlx::Transaction<'static, sqlx::Postgres>;

    fn open(config: &Config, may_create: bool) -> impl Future<Output = Result<Self, OpenError>> + Send {
        open::open(config, may_create)
    }

    fn found(&self) -> impl Future<Output = Result<Self::Founding, OpenError>> + Send {
        open::found(&self.0)
    }

    fn registry_pool(&self) -> PgPool {
        self.0.registry.clone()
    }

    async fn close(&self) {
        // At most as long as a statement may take: what is still out then has been given up by whoever waited for it.
        let _ = tokio::time::timeout(self.0.limit, self.0.warm.close()).await;
        let _ = tokio::time::timeout(self.0.limit, self.0.registry.close()).await;
    }
}

impl Postgres {
    async fn begin(&self) -> Result<Session, StoreError> {
        self.0.transaction().await
    }

    /// Runs one statement that only reads.
    async fn query(&self, sql: &str) -> Result<Vec<PgRow>, StoreError> {
        self.0.session().await?.run(sql, Effect::Nothing).await
    }

    /// Runs one message that commits when it ends.
    async fn execute(&self, sql: &str) -> Result<Vec<PgRow>, StoreError> {
        self.0.session().await?.run(sql, Effect::Commit).await
    }

    async fn grant_range(&self, tag: &TagName, count: u64) -> Result<Grant, StoreError> {
        let fresh = fresh_nonce()?;
        let (name, n) = (text(tag.as_str()), int(count));
        let sql = format!(
            "UPDATE id_alloc SET max_id = greatest(max_id, floor) + {n}, grant_nonce = {}, update_time = now() \
             WHERE biz_tag = {name} AND retired = 0 AND greatest(max_id, floor) <= id_limit - {n} RETURNING max_id",
            nonce(fresh)
        );
        let rows = self.0.session_for_grant().await?.run(&sql, Effect::Commit).await?;
        let (last, count) = match rows.as_slice() {
            [row] => (row.number("max_id")?, count),
            _ => self.grant_rest(tag, fresh).await?,
        };
        let range = last.checked_sub(count).and_then(|before| IdRange::new(before + 1, last + 1));
        let range = range.ok_or_else(|| unreadable(&"its grant gave no valid range"))?;
        Ok(Grant { range, nonce: fresh })
    }

    /// The last ids below the limit, when fewer than asked for are left; the last one and how many.
    async fn grant_rest(&self, tag: &TagName, fresh: u128) -> Result<(u64, u64), StoreError> {
        let row = rules::live(self.select(tag).await?.ok_or_else(|| rules::missing(tag))?)?;
        let limit = row.definition.id_limit;
        let rest = limit.saturating_sub(row.max_id);
        if rest == 0 {
            return Err(rules::exhausted(limit));
        }
        // Guarded by what was read: whoever came in between has given away a part of it.
        let sql = format!(
            "UPDATE id_alloc SET max_id = id_limit, grant_nonce = {}, update_time = now() \
             WHERE biz_tag = {} AND retired = 0 AND max_id = {} AND id_limit = {} RETURNING max_id",
            nonce(fresh),
            text(tag.as_str()),
            int(row.max_id),
            int(limit)
        );
        match self.execute(&sql).await?.as_slice() {
            [row] if row.number("max_id")? == limit => Ok((limit, rest)),
            _ => Err(StoreError::new(Kind::Transient, "its row changed meanwhile")),
        }
    }

    async fn select(&self, tag: &TagName) -> Result<Option<Row>, StoreError> {
        let sql = format!("SELECT {ROW} FROM id_alloc WHERE biz_tag = {}", text(tag.as_str()));
        self.query(&sql).await?.first().map(row).transpose()
    }

    async fn take_back(&self, tails: &[Tail]) -> Result<Vec<bool>, StoreError> {
        let mut order: Vec<(usize, &Tail)> = tails.iter().take(MAX_TAILS).enumerate().collect();
        order.sort_by(|(_, one), (_, other)| one.tag.as_str().cmp(other.tag.as_str()));
        let mut taken = vec![false; tails.len()];
        let mut sql = String::new();
        for (place, tail) in &order {
            let before = int(tail.unused.start() - 1);
            // Writing to a string never fails.
            let _ = write!(
                sql,
                "UPDATE id_alloc SET max_id = {before}, grant_nonce = {}, update_time = now() WHERE biz_tag = {} \
                 AND max_id = {} AND grant_nonce = {} AND floor <= {before} AND retired = 0 \
                 RETURNING {place}::BIGINT AS place; ",
                nonce(fresh_nonce()?),
                text(tail.tag.as_str()),
                int(tail.unused.last()),
                nonce(tail.nonce),
            );
        }
        if order.is_empty() {
            return Ok(taken);
        }
        for row in self.execute(&sql).await? {
            let place = usize::try_from(row.number("place")?).map_err(|error| unreadable(&error))?;
            if let Some(taken) = taken.get_mut(place) {
                *taken = true;
            }
        }
        Ok(taken)
    }

    async fn raise_rows(&self, by: u64) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        // Nobody adds a row once this lock is held.
        tx.revise(0).await?;
        let rows = changes::Transaction::count(&mut tx).await?;
        let before = tx.revise(rows).await?;
        let raised = format!("id_limit - greatest(id_limit - max_id - {}, 0)", int(by));
        let sql = format!(
            "UPDATE id_alloc SET max_id = {raised}, floor = {raised}, revision = {} + place.n, grant_nonce = {}, \
             update_time = now() \
             FROM (SELECT biz_tag AS name, row_number() OVER (ORDER BY biz_tag) AS n FROM id_alloc) AS place \
             WHERE id_alloc.biz_tag = place.name RETURNING place.n",
            int(before),
            nonce(fresh_nonce()?)
        );
        let changed = tx.run(&sql, Effect::Nothing).await?.len();
        tx.commit().await?;
        Ok(u64::try_from(changed).unwrap_or(u64::MAX))
    }

    async fn weaknesses(&self) -> Result<Vec<String>, StoreError> {
        // Copies for others than a successor (logical ones) lose nothing. A user without `pg_monitor` sees no replicas.
        let sql = "SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS commit, \
                   current_setting('full_page_writes') AS pages, current_setting('synchronous_standby_names') AS waited, \
                   (SELECT count(*) FROM pg_stat_replication AS replica WHERE state = 'streaming' AND NOT EXISTS \
                   (SELECT 1 FROM pg_replication_slots WHERE active_pid = replica.pid AND slot_type = 'logical')) \
                   AS replicas, \
                   coalesce((SELECT relpersistence FROM pg_class WHERE oid = to_regclass('id_alloc')), 'p')::text AS kept";
        let rows = self.query(sql).await?;
        let row = rows.first().ok_or_else(|| unreadable(&"no settings"))?;
        let mut found = Vec::new();
        if row.text("fsync")? != "on" {
            found.push("fsync is off: a power failure can lose or damage everything".into());
        }
        let commit = row.text("commit")?;
        if !["on", "remote_apply"].contains(&commit.as_str()) {
            found.push(format!("synchronous_commit is {commit}, not on: a crash or failover loses the last commits"));
        }
        if row.text("pages")? != "on" {
            found.push("full_page_writes is off: a power failure can tear a page".into());
        }
        let replicas = row.number("replicas")?;
        if replicas > 0 && row.text("waited")?.trim().is_empty() {
            found.push(format!(
                "{replicas} replicas copy without being waited for (synchronous_standby_names is empty): a failover loses \
                 the last commits"
            ));
        }
        if row.text("kept")? != "p" {
            found.push("the table id_alloc is UNLOGGED: a crash empties it".into());
        }
        Ok(found)
    }
}

impl changes::Transaction for Session {
    async fn revise(&mut self, count: u64) -> Result<u64, StoreError> {
        let count_sql = int(count);
        let sql =
            format!("UPDATE id_alloc_revision SET revision = revision + {count_sql} WHERE one = 1 RETURNING revision");
        let rows = self.run(&sql, Effect::Nothing).await?;
        let row = rows.first().ok_or_else(|| unreadable(&"id_alloc_revision is empty"))?;
        Ok(row.number("revision")?.saturating_sub(count))
    }

    async fn read(&mut self, tag: &TagName) -> Result<Option<Row>, StoreError> {
        // With the lock, or a grant could come between this and the write.
        let sql = format!("SELECT {ROW} FROM id_alloc WHERE biz_tag = {} FOR UPDATE", text(tag.as_str()));
        self.run(&sql, Effect::Nothing).await?.first().map(row).transpose()
    }

    async fn count(&mut self) -> Result<u64, StoreError> {
        let rows = self.run(COUNT, Effect::Nothing).await?;
        rows.first().ok_or_else(|| unreadable(&"no count"))?.number("n")
    }

    async fn insert(&mut self, row: &Row) -> Result<(), StoreError> {
        let Definition { engine, order, step, min_step, max_step, id_limit, qps, burst, critical, ref description } =
            row.definition;
        let sql = format!(
            "INSERT INTO id_alloc ({ROW}, grant_nonce) VALUES ({}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, \
             {}, {})",
            text(row.tag.as_str()),
            int(row.max_id),
            int(step),
            text(description),
            text(engine.name()),
            text(order.name()),
            int(min_step),
            int(max_step),
            int(id_limit),
            int(qps),
            int(burst),
            u8::from(critical),
            int(row.floor),
            u8::from(row.retired),
            int(row.revision),
            nonce(fresh_nonce()?),
        );
        self.run(&sql, Effect::Nothing).await.map(drop)
    }

    async fn write(&mut self, row: &Row) -> Result<u64, StoreError> {
        let Definition { step, min_step, max_step, id_limit, qps, burst, critical, ref description, .. } =
            row.definition;
        let sql = format!(
            "UPDATE id_alloc SET max_id = {}, floor = {}, step = {}, min_step = {}, max_step = {}, id_limit = {}, \
             qps = {}, burst = {}, critical = {}, description = {}, retired = {}, revision = {}, grant_nonce = {}, \
             update_time = now() WHERE biz_tag = {} RETURNING 1 AS one",
            int(row.max_id),
            int(row.floor),
            int(step),
            int(min_step),
            int(max_step),
            int(id_limit),
            int(qps),
            int(burst),
            u8::from(critical),
            text(description),
            u8::from(row.retired),
            int(row.revision),
            nonce(fresh_nonce()?),
            text(row.tag.as_str()),
        );
        let rows = self.run(&sql, Effect::Nothing).await?;
        Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
    }

    async fn commit(self) -> Result<(), StoreError> {
        self.finish().await
    }
}

const COUNT: &str = "SELECT count(*) AS n FROM id_alloc";

impl SegmentStore for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn shared(&self) -> bool {
        true
    }

    fn grant<'a>(&'a self, tag: &'a TagName, count: u64) -> Answer<'a, Grant> {
        Box::pin(self.grant_range(tag, count.clamp(1, MAX_ID)))
    }

    fn return_tails<'a>(&'a self, tails: &'a [Tail]) -> Answer<'a, Vec<bool>> {
        Box::pin(self.take_back(tails))
    }

    fn find<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Option<Row>> {
        Box::pin(self.select(tag))
    }

    fn changed_since(&self, revision: u64) -> Answer<'_, Vec<Row>> {
        Box::pin(pages(revision, move |after| async move {
            let after = int(after);
            let sql = format!("SELECT {ROW} FROM id_alloc WHERE revision > {after} ORDER BY revision LIMIT {PAGE}");
            self.query(&sql).await?.iter().map(row).collect()
        }))
    }

    fn count(&self) -> Answer<'_, u64> {
        Box::pin(async move {
            let rows = self.query(COUNT).await?;
            rows.first().ok_or_else(|| unreadable(&"no count"))?.number("n")
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
            // A number that is skipped: a transaction that writes nothing would not find a server that is read-only.
            let sql = "UPDATE id_alloc_revision SET revision = revision + 1 WHERE one = 1 RETURNING 1 AS one";
            let rows = self.execute(sql).await?;
            if rows.is_empty() { Err(unreadable(&"id_alloc_revision is empty")) } else { Ok(()) }
        })
    }

    fn durability(&self) -> Answer<'_, Vec<String>> {
        Box::pin(self.weaknesses())
    }
}

#[cfg(test)]
mod tests;
