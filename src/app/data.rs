//! The database that the configuration names, opened, known to belong to this configuration, and made fit for the others.
//!
//! A server that can't be reached is tried again until it answers: it may come up after this process, or come back. What is
//! wrong with a file does not pass by itself, and ends the process.

use std::sync::Arc;
use std::time::Duration;

use super::Error;
use crate::config::Config;
use crate::engine::snowflake::layout::Layout;
use crate::health::{Health, Part, State};
use crate::registry::WorkerRegistry;
use crate::registry::sql::{Rows, SqlRegistry, create_bounds};
use crate::router::{UNIQUE, WEAK};
use crate::store::identity::{self, Identity, IdentityError};
use crate::store::mysql::MySql;
use crate::store::network::{self, Network};
use crate::store::postgres::Postgres;
use crate::store::sqlite::{self, Opened, Sqlite};
use crate::store::{Dialect, Durability, SegmentStore};

/// How long opening a database on a server may take, tables and identity included.
const OPEN_TIMEOUT: Duration = Duration::from_secs(45);

/// The pauses before a server that could not be reached is tried again: the first, doubled each time up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// An open database with what lies in it.
pub(super) struct Data {
    /// Ids and tags.
    pub(super) store: Arc<dyn SegmentStore>,
    /// The bounds of worker ids.
    pub(super) registry: Arc<dyn WorkerRegistry>,
    /// Where it is, for people; without who logs in.
    pub(super) place: String,
    /// Whether it was made just now.
    pub(super) created: bool,
    kept: Box<dyn Kept>,
}

/// What has to be closed at the end.
trait Kept: Send + Sync {
    fn close(self: Box<Self>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
}

impl Kept for Sqlite {
    fn close(self: Box<Self>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move { Sqlite::close(&self).await })
    }
}

/// A store on a server, with the connections of the registry.
struct Connected<S: Network>(S, sqlx::Pool<S::Database>);

impl<S: Network> Kept for Connected<S> {
    fn close(self: Box<Self>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            self.1.close().await;
            self.0.close().await;
        })
    }
}

impl Data {
    /// Opens the database; what does not exist is made.
    pub(super) async fn open(config: &Config) -> Result<Self, Error> {
        Self::opened(config, false).await
    }

    /// As [`Self::open`], as often as it takes until the server answers; `health` tells meanwhile what is wrong, and the log
    /// whenever that changes.
    pub(super) async fn open_when_there(config: &Config, health: &Health) -> Result<Self, Error> {
        let server = config.database.dialect().is_ok_and(|dialect| dialect != Dialect::Sqlite);
        let (mut pause, mut told) = (FIRST_PAUSE, String::new());
        loop {
            match Self::open(config).await {
                Err(Error::Failed(text)) if server => {
                    health.set(Part::Store, State::Down(text.clone()));
                    if told != text {
                        tracing::warn!(error_kind = "system", "{text}; tried again until it works");
                        told = text;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_PAUSE);
                }
                opened => return opened,
            }
        }
    }

    /// Opens a copy that is about to be made safe, and makes none.
    pub(super) async fn open_restored(config: &Config) -> Result<Self, Error> {
        Self::opened(config, true).await
    }

    async fn opened(config: &Config, restored: bool) -> Result<Self, Error> {
        match config.database.dialect().map_err(Error::Refused)? {
            Dialect::Sqlite => Self::file(config, restored).await,
            Dialect::MySql => {
                let store = MySql::open(&config.database, !restored);
                let store = async { Ok(store.await?.with_rules(super::seeded::of_mysql())) };
                // Boxed: what opens a connection is large, and is used once.
                Box::pin(Self::server(config, store)).await
            }
            Dialect::Postgres => Box::pin(Self::server(config, Postgres::open(&config.database, !restored))).await,
        }
    }

    async fn file(config: &Config, restored: bool) -> Result<Self, Error> {
        let path = config.database.sqlite_path().map_err(Error::Refused)?;
        let timeout = config.database.statement_timeout;
        let opened = if !restored {
            Sqlite::open(&path, timeout).await
        } else if path.exists() {
            Sqlite::open_restored(&path, timeout).await
        } else {
            return Err(Error::Refused(format!(
                "{} does not exist: run after-restore where the restored database is, or name its folder with --data",
                path.display()
            )));
        };
        let refused = |error: sqlite::OpenError| failure(error.may_pass(), &error);
        let Opened { store, created, path } = opened.map_err(refused)?;
        let begun = store.found().await.map_err(|error| Error::Failed(format!("{}: {error}", path.display())))?;
        let (layout, _) = identify(config, begun).await?;
        let registry =
            SqlRegistry::new(store.pool().clone(), config.snowflake.datacenter_id, layout.workers(), timeout);
        Ok(Self {
            store: Arc::new(store.clone()),
            registry: Arc::new(registry),
            place: path.display().to_string(),
            created,
            kept: Box::new(store),
        })
    }

    /// Opens the database of a server, in time.
    async fn server<S>(
        config: &Config,
        store: impl Future<Output = Result<S, network::OpenError>>,
    ) -> Result<Self, Error>
    where
        S: Network<Database: sqlx::Database<Connection: Rows>>,
    {
        let place = config.database.server().map_err(Error::Refused)?.to_string();
        let refused = |error: network::OpenError| failure(error.may_pass(), &error);
        let opened = async {
            let store = store.await.map_err(refused)?;
            let (layout, created) = identify(config, store.found().await.map_err(refused)?).await?;
            Ok((store, layout, created))
        };
        let late = |_| Error::Failed(format!("{place} did not answer within {OPEN_TIMEOUT:?}"));
        let (store, layout, created) = tokio::time::timeout(OPEN_TIMEOUT, opened).await.map_err(late)??;
        let pool = store.registry_pool();
        let (datacenter, timeout) = (config.snowflake.datacenter_id, config.database.statement_timeout);
        let registry = SqlRegistry::new(pool.clone(), datacenter, layout.workers(), timeout);
        Ok(Self {
            store: Arc::new(store.clone()),
            registry: Arc::new(registry),
            place,
            created,
            kept: Box::new(Connected(store, pool)),
        })
    }

    /// What holds: a store whose settings may lose what it has acknowledged is told, or refused.
    pub(super) async fn guarantee(&self, config: &Config) -> Result<&'static str, Error> {
        let weaknesses = self.store.durability().await.map_err(|error| Error::Failed(error.text))?;
        if weaknesses.is_empty() {
            return Ok(UNIQUE);
        }
        let text = format!("{} may lose acknowledged grants: {}", self.place, weaknesses.join("; "));
        if config.database.durability == Durability::Strict {
            return Err(Error::Refused(format!("{text}; put it right, or set database.durability to warn")));
        }
        tracing::warn!(error_kind = "system", "{text}");
        Ok(WEAK)
    }

    /// Says which database this is.
    pub(super) fn announce(&self) {
        if self.created {
            tracing::info!("NEW database {}", self.place);
        } else {
            tracing::info!("database {}", self.place);
        }
    }

    /// Waits for the statements that run, and closes the database.
    pub(super) async fn close(self) {
        self.kept.close().await;
    }
}

/// Compares the identity, or writes it together with the worker bounds where there is none; says whether it wrote.
async fn identify<T>(config: &Config, begun: T) -> Result<(Layout, bool), Error>
where
    T: identity::Transaction<Connection: Rows>,
{
    let layout = config.snowflake.layout().map_err(|problem| Error::Refused(problem.to_string()))?;
    let datacenter = config.snowflake.datacenter_id;
    let wanted = identity::Wanted { registry: "sql", datacenter_id: u64::from(datacenter), layout: layout.text() };
    let bounds =
        async |connection: &mut T::Connection| create_bounds(connection, datacenter, layout.workers(), 0).await;
    let identity = identity::ensure(begun, &wanted, bounds).await.map_err(|error| match error {
        IdentityError::Mismatch { .. } => Error::Refused(error.to_string()),
        IdentityError::Store(_) => Error::Failed(error.to_string()),
    })?;
    let created = matches!(identity, Identity::Created(_));
    let (Identity::Created(cluster) | Identity::Same(cluster)) = identity;
    tracing::debug!(cluster, "the identity of the database");
    Ok((layout, created))
}

/// What ends the process: a matter of configuration, unless it may pass.
fn failure(may_pass: bool, error: &impl std::fmt::Display) -> Error {
    if may_pass { Error::Failed(error.to_string()) } else { Error::Refused(error.to_string()) }
}
