//! The segment store on a MySQL 8 or MariaDB server that nodes share.
//!
//! Guaranteed: a range is answered only after the server has confirmed the statement that reserved it, and no two callers
//! get one range. How: a grant is one `UPDATE` that commits by itself; the new `max_id` comes back in its own answer through
//! `LAST_INSERT_ID(max_id + n)`, which is the connection's and nobody else's: one round trip. What breaks off is unknown
//! and its connection is closed, so that a late answer meets nobody. Changes of tags are transactions (`changes`).
//! Rejected: `UPDATE`, then `SELECT` (two callers read the same end); a plain `SELECT` first (it may read an old
//! version); `SELECT … FOR UPDATE`, then `UPDATE` (three round trips under a row lock); `RETURNING` (MySQL has none).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlQueryResult, MySqlRow};
use sqlx::query::Query;
use sqlx::{Executor as _, Row as _};

use super::network::{Network, OpenError, REGISTRY_CONNECTIONS};
use super::{
    Alteration, Answer, Config, Definition, Grant, Kind, MAX_TAILS, Row, SegmentStore, StoreError, Tail,
    changes::{self, Transaction as _},
    columns::{Columns as _, PAGE, ROW, blob, int, pages, row},
    nonce::fresh as fresh_nonce,
    rules, warm,
};
use crate::ids::{IdRange, MAX_ID, TagName};
use errors::Phase;
use open::Settings;

mod errors;
mod open;
mod schema;

pub use schema::Founding;

/// The grant: atomic, guarded by the row's own state and limit.
const GRANT: &str = "UPDATE id_alloc SET max_id = LAST_INSERT_ID(max_id + ?), grant_nonce = ?, \
                     update_time = UTC_TIMESTAMP(3) WHERE biz_tag = ? AND retired = 0 AND max_id <= id_limit - ?";

/// The last grant of a tag: what is left below the limit, as long as nothing has changed since it was read.
const GRANT_REST: &str = "UPDATE id_alloc SET max_id = LAST_INSERT_ID(id_limit), grant_nonce = ?, \
                          update_time = UTC_TIMESTAMP(3) \
                          WHERE biz_tag = ? AND retired = 0 AND max_id = ? AND id_limit = ?";

const TAKE_BACK: &str = "UPDATE id_alloc SET max_id = ?, grant_nonce = ?, update_time = UTC_TIMESTAMP(3) \
                         WHERE biz_tag = ? AND max_id = ? AND grant_nonce = ? AND floor <= ? AND retired = 0";

const INSERT: &str = "INSERT INTO id_alloc (max_id, floor, step, min_step, max_step, id_limit, qps, burst, critical, \
                      description, retired, revision, grant_nonce, biz_tag, engine, ordering, update_time) \
                      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, UTC_TIMESTAMP(3))";

const WRITE: &str = "UPDATE id_alloc SET max_id = ?, floor = ?, step = ?, min_step = ?, max_step = ?, id_limit = ?, \
                     qps = ?, burst = ?, critical = ?, description = ?, retired = ?, revision = ?, grant_nonce = ?, \
                     update_time = UTC_TIMESTAMP(3) WHERE biz_tag = ?";

/// A grant that was made and whose end was not told. Servers tell none where a trigger ran.
const NO_END: &str = "did not say which ids it granted; a trigger on id_alloc would do that: drop it";

/// Departures from the right behaviour, for tests of the tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// B6: a grant updates the row and reads it in a second statement, so that two callers can read one end.
    pub update_then_select: bool,
}

/// The store; cheap to clone. It works on the runtime that opened it.
#[derive(Clone, Debug)]
pub struct MySql {
    warm: warm::Warm<sqlx::MySql>,
    options: Arc<MySqlConnectOptions>,
    /// Where it is, without who logs in.
    place: Arc<str>,
    statement_timeout: Duration,
    rules: Rules,
}

type Held = warm::Held<sqlx::MySql>;

/// A transaction. Dropped, it is rolled back.
struct Tx {
    /// `None` once the transaction has ended.
    held: Option<Held>,
    store: MySql,
}

impl Drop for Tx {
    fn drop(&mut self) {
        let Some(mut held) = self.held.take() else { return };
        let limit = self.store.statement_timeout;
        tokio::spawn(async move {
            let Some(connection) = held.connection() else { return };
            let rolled_back = tokio::time::timeout(limit, connection.execute("ROLLBACK")).await;
            match rolled_back {
                Ok(Ok(_)) => held.settled(),
                _ => held.close(),
            }
        });
    }
}

type Statement<'q> = Query<'q, sqlx::MySql, MySqlArguments>;

impl MySql {
    /// The same store, departing from the right behaviour as `rules` say.
    #[must_use]
    pub fn with_rules(self, rules: Rules) -> Self {
        Self { rules, ..self }
    }

    async fn acquire(&self) -> Result<Held, StoreError> {
        self.warm.acquire().await.map_err(|error| self.meaning(&error, Phase::Connecting))
    }

    /// Runs one statement in time; what fails in a way that speaks against the connection closes it.
    async fn run<T>(
        &self,
        held: &mut Held,
        phase: Phase,
        statement: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        let connection = held.connection();
        let connection = connection.ok_or_else(|| StoreError::new(Kind::Transient, "the connection was closed"))?;
        let outcome = tokio::time::timeout(self.statement_timeout, statement(connection)).await;
        let failure = match outcome {
            Ok(Ok(value)) => {
                held.settled();
                return Ok(value);
            }
            Ok(Err(error)) => self.meaning(&error, phase),
            Err(_) => {
                let kind = if phase == Phase::Committing { Kind::Unknown } else { Kind::Transient };
                let text = format!("{} did not answer within {:?}", self.place, self.statement_timeout);
                StoreError::new(kind, text).because("timeout")
            }
        };
        if errors::closes(&failure) {
            held.close();
            self.warm.doubt();
        }
        if failure.reason == "readonly" {
            // The others lead to the same server: the next ones find out who is the primary now.
            self.warm.forget();
        }
        Err(failure)
    }

    fn meaning(&self, error: &sqlx::Error, phase: Phase) -> StoreError {
        errors::meaning(error, phase, &self.place)
    }

    /// A statement that commits by itself.
    async fn write(&self, held: &mut Held, statement: Statement<'_>) -> Result<MySqlQueryResult, StoreError> {
        self.run(held, Phase::Committing, async |connection: &mut MySqlConnection| statement.execute(connection).await)
            .await
    }

    /// A statement that changes nothing, or nothing yet.
    async fn rows(&self, held: &mut Held, statement: Statement<'_>) -> Result<Vec<MySqlRow>, StoreError> {
        self.run(held, Phase::Undone, async |connection: &mut MySqlConnection| statement.fetch_all(connection).await)
            .await
    }

    async fn begin(&self) -> Result<Tx, StoreError> {
        let mut tx = Tx { held: Some(self.acquire().await?), store: self.clone() };
        let begin = async |connection: &mut MySqlConnection| connection.execute("START TRANSACTION").await.map(drop);
        tx.run(Phase::Undone, begin).await?;
        Ok(tx)
    }

    async fn grant_range(&self, tag: &TagName, count: u64) -> Result<Grant, StoreError> {
        let nonce = fresh_nonce()?;
        let acquired = self.warm.acquire_for_grant().await;
        let mut held = acquired.map_err(|error| self.meaning(&error, Phase::Connecting))?;
        let grant = if self.rules.update_then_select { &GRANT.replace("LAST_INSERT_ID", "") } else { GRANT };
        let statement = sqlx::query(sqlx::AssertSqlSafe(grant)).bind(int(count)).bind(blob(nonce));
        let done = self.write(&mut held, statement.bind(tag.as_str()).bind(int(count))).await?;
        let (last, count) = match done.rows_affected() {
            0 => self.grant_rest(&mut held, tag, count, nonce).await?,
            _ if self.rules.update_then_select => (self.find_row(&mut held, tag).await?.max_id, count),
            _ => (done.last_insert_id(), count),
        };
        // Looked at once more before it counts: an answer that can't be this statement's must not become ids.
        let range = last
            .checked_sub(count)
            .filter(|_| last <= MAX_ID)
            .and_then(|before| IdRange::new(before + 1, last + 1))
            .ok_or_else(|| StoreError::new(Kind::Unknown, format!("{} {NO_END}", self.place)))?;
        Ok(Grant { range, nonce })
    }

    /// Why nothing was granted; or the last ids below the limit, when fewer than asked for are left.
    async fn grant_rest(
        &self,
        held: &mut Held,
        tag: &TagName,
        count: u64,
        nonce: u128,
    ) -> Result<(u64, u64), StoreError> {
        let row = rules::live(self.find_row(held, tag).await?)?;
        let limit = row.definition.id_limit;
        let rest = limit.saturating_sub(row.max_id);
        if rest == 0 {
            return Err(rules::exhausted(limit));
        }
        let changed = || StoreError::new(Kind::Transient, "its row changed meanwhile");
        if rest >= count {
            return Err(changed());
        }
        let statement = sqlx::query(GRANT_REST).bind(blob(nonce)).bind(tag.as_str());
        let done = self.write(held, statement.bind(int(row.max_id)).bind(int(limit))).await?;
        if done.rows_affected() == 1 { Ok((done.last_insert_id(), rest)) } else { Err(changed()) }
    }

    async fn find_row(&self, held: &mut Held, tag: &TagName) -> Result<Row, StoreError> {
        self.look_up(held, tag, "").await?.ok_or_else(|| rules::missing(tag))
    }

    async fn look_up(&self, held: &mut Held, tag: &TagName, lock: &str) -> Result<Option<Row>, StoreError> {
        let sql = sqlx::AssertSqlSafe(format!("SELECT {ROW} FROM id_alloc WHERE biz_tag = ? {lock}"));
        let rows = self.rows(held, sqlx::query(sql).bind(tag.as_str())).await?;
        rows.first().map(row).transpose()
    }

    async fn counted(&self, held: &mut Held) -> Result<u64, StoreError> {
        let rows = self.rows(held, sqlx::query("SELECT COUNT(*) AS n FROM id_alloc")).await?;
        rows.first().map_or(Ok(0), |row| row.number("n"))
    }

    async fn take_back(&self, tails: &[Tail]) -> Result<Vec<bool>, StoreError> {
        let mut taken = vec![false; tails.len()];
        let mut sorted: Vec<(&Tail, &mut bool)> = tails.iter().zip(&mut taken).take(MAX_TAILS).collect();
        // In one order everywhere: two nodes that stop together must not wait for each other. Equal ones stay in turn.
        sorted.sort_by(|(one, _), (other, _)| one.tag.cmp(&other.tag));
        if sorted.is_empty() {
            return Ok(taken);
        }
        let mut tx = self.begin().await?;
        for (tail, taken) in sorted {
            let before = int(tail.unused.start() - 1);
            let statement = sqlx::query(TAKE_BACK).bind(before).bind(blob(fresh_nonce()?)).bind(tail.tag.as_str());
            let statement = statement.bind(int(tail.unused.last())).bind(blob(tail.nonce)).bind(before);
            *taken = tx.execute(statement).await?.rows_affected() == 1;
        }
        tx.commit().await?;
        Ok(taken)
    }

    async fn raise_rows(&self, by: u64) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        // The order in which a statement assigns several columns is not the same everywhere, so each has its own.
        let before = tx.revise(0).await?;
        let rows = tx.count().await?;
        tx.revise(rows).await?;
        let raise = "UPDATE id_alloc SET max_id = id_limit - GREATEST(id_limit - max_id - ?, 0), \
                     grant_nonce = RANDOM_BYTES(16), update_time = UTC_TIMESTAMP(3)";
        let changed = tx.execute(sqlx::query(raise).bind(int(by))).await?.rows_affected();
        let tell = "UPDATE id_alloc JOIN (SELECT biz_tag AS name, ROW_NUMBER() OVER (ORDER BY biz_tag) AS n \
                    FROM id_alloc) AS place ON id_alloc.biz_tag = place.name \
                    SET floor = max_id, revision = ? + place.n";
        tx.execute(sqlx::query(tell).bind(int(before))).await?;
        tx.commit().await?;
        Ok(changed)
    }

    /// The server's settings, and how many replicas it has.
    async fn settings(&self) -> Result<Settings, StoreError> {
        let mut held = self.acquire().await?;
        let mut settings = Settings::default();
        for query in [Settings::QUERY, Settings::REPLICAS] {
            let ask = async |connection: &mut MySqlConnection| sqlx::raw_sql(query).fetch_all(connection).await;
            for row in self.run(&mut held, Phase::Undone, ask).await? {
                let pair = row.try_get(0).and_then(|name| Ok((name, row.try_get(1)?)));
                settings.0.extend(pair.map_err(|error| self.meaning(&error, Phase::Undone)));
            }
        }
        Ok(settings)
    }
}

fn live(held: &mut Option<Held>) -> Result<&mut Held, StoreError> {
    held.as_mut().ok_or_else(|| StoreError::new(Kind::Transient, "the transaction has ended"))
}

impl Tx {
    async fn run<T>(
        &mut self,
        phase: Phase,
        statement: impl AsyncFnOnce(&mut MySqlConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, StoreError> {
        self.store.run(live(&mut self.held)?, phase, statement).await
    }

    /// Runs a statement whose effect comes with the commit.
    async fn execute(&mut self, statement: Statement<'_>) -> Result<MySqlQueryResult, StoreError> {
        let execute = async |connection: &mut MySqlConnection| statement.execute(connection).await;
        self.run(Phase::Undone, execute).await
    }
}

impl changes::Transaction for Tx {
    async fn revise(&mut self, count: u64) -> Result<u64, StoreError> {
        let sql = "UPDATE id_alloc_revision SET revision = LAST_INSERT_ID(revision + ?) WHERE one = 1";
        let done = self.execute(sqlx::query(sql).bind(int(count))).await?;
        if done.rows_affected() != 1 {
            let text = format!("{}: the row of id_alloc_revision is gone", self.store.place);
            return Err(StoreError::new(Kind::Permanent, text).because("corrupt"));
        }
        Ok(done.last_insert_id().saturating_sub(count))
    }

    async fn read(&mut self, tag: &TagName) -> Result<Option<Row>, StoreError> {
        self.store.look_up(live(&mut self.held)?, tag, "FOR UPDATE").await
    }

    async fn count(&mut self) -> Result<u64, StoreError> {
        self.store.counted(live(&mut self.held)?).await
    }

    async fn insert(&mut self, row: &Row) -> Result<(), StoreError> {
        let statement = columns(INSERT, row)?.bind(row.definition.engine.name()).bind(row.definition.order.name());
        self.execute(statement).await.map(drop)
    }

    async fn write(&mut self, row: &Row) -> Result<u64, StoreError> {
        let statement = columns(WRITE, row)?;
        Ok(self.execute(statement).await?.rows_affected())
    }

    async fn commit(mut self) -> Result<(), StoreError> {
        let commit = async |connection: &mut MySqlConnection| connection.execute("COMMIT").await.map(drop);
        let ended = self.run(Phase::Committing, commit).await;
        if ended.is_ok() {
            // There is nothing to roll back.
            drop(self.held.take());
        }
        ended
    }
}

/// `sql` with everything of `row` that can change, a fresh nonce and the tag.
fn columns<'q>(sql: &'static str, row: &'q Row) -> Result<Statement<'q>, StoreError> {
    let Definition { step, min_step, max_step, id_limit, qps, burst, critical, ref description, .. } = row.definition;
    let mut statement = sqlx::query(sql);
    for value in [row.max_id, row.floor, step, min_step, max_step, id_limit, qps, burst, u64::from(critical)] {
        statement = statement.bind(int(value));
    }
    let statement = statement.bind(description).bind(row.retired).bind(int(row.revision));
    Ok(statement.bind(blob(fresh_nonce()?)).bind(row.tag.as_str()))
}

impl Network for MySql {
    type Database = sqlx::MySql;
    type Founding = Founding;

    async fn open(config: &Config, may_create: bool) -> Result<Self, OpenError> {
        let server = config.server().map_err(OpenError::Dsn)?;
        let (options, place) = (open::options(&server), server.to_string());
        let mut connection = open::connect(&options, &place).await?;
        // Where the driver keeps prepared statements, the first grant on a connection would take a round trip more.
        let prepared = (server.statement_cache != Some(0)).then_some(GRANT);
        let pool = open::pool(options.clone(), config.max_open_conns, config.statement_timeout, prepared);
        let store = Self {
            warm: warm::Warm::new(pool, config.max_open_conns),
            options: Arc::new(options),
            place: place.as_str().into(),
            statement_timeout: config.statement_timeout,
            rules: Rules::default(),
        };
        let settings = store.settings().await.map_err(|error| OpenError::Sql(place.clone(), error.text))?;
        if let Some(setting) = settings.read_only() {
            return Err(OpenError::ReadOnly(place, format!("{setting} is on")));
        }
        schema::prepare(&mut connection, &place, may_create).await?;
        Ok(store)
    }

    async fn found(&self) -> Result<Founding, OpenError> {
        Founding::begin(open::connect(&self.options, &self.place).await?, &self.place).await
    }

    fn registry_pool(&self) -> MySqlPool {
        open::pool(MySqlConnectOptions::clone(&self.options), REGISTRY_CONNECTIONS, self.statement_timeout, None)
    }

    fn close(&self) -> impl Future<Output = ()> + Send {
        self.warm.close()
    }
}

impl SegmentStore for MySql {
    fn name(&self) -> &'static str {
        "mysql"
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
        Box::pin(async move { self.look_up(&mut self.acquire().await?, tag, "").await })
    }

    fn changed_since(&self, revision: u64) -> Answer<'_, Vec<Row>> {
        Box::pin(pages(revision, move |after| async move {
            let sql = format!("SELECT {ROW} FROM id_alloc WHERE revision > ? ORDER BY revision LIMIT {PAGE}");
            let query = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(int(after));
            self.rows(&mut self.acquire().await?, query).await?.iter().map(row).collect()
        }))
    }

    fn count(&self) -> Answer<'_, u64> {
        Box::pin(async move { self.counted(&mut self.acquire().await?).await })
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
            tx.commit().await
        })
    }

    fn durability(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async move { Ok(self.settings().await?.weaknesses()) })
    }
}

#[cfg(test)]
mod tests;
