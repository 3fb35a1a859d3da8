//! What makes ids, built before the database can be reached and taken down when no client is left.
//!
//! Clients can connect from the first moment on and are told that the node is loading, and why, until the database is open.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{Data, Error, core, seeded};
use crate::clock::Clock;
use crate::config::Config;
use crate::engine::segment::{Beside, Supply};
use crate::engine::snowflake::{Setup, Snowflake};
use crate::health::{Health, Part, Phase, State};
use crate::ids::Incarnation;
use crate::metrics::Metrics;
use crate::registry::anchored::{Anchored as Registry, Facts};
use crate::router::{Parts, Router, UNIQUE};
use crate::server;
use crate::store::Dialect;
use crate::store::anchored::Anchored as Store;

/// How long a stop waits for the refills in flight before their ids are skipped.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// The parts of a node.
pub(super) struct Node {
    store: Arc<Store>,
    registry: Arc<Registry>,
    pub(super) router: Arc<Router>,
    pub(super) snowflake: Arc<Snowflake>,
    pub(super) health: Arc<Health>,
    pub(super) metrics: Arc<Metrics>,
    background: CancellationToken,
}

impl Node {
    /// Builds everything; nothing is asked of the database yet.
    pub(super) fn build(config: &Config, clock: &Arc<dyn Clock>) -> Result<Self, Error> {
        let dialect = config.database.dialect().map_err(Error::Refused)?;
        let store = Arc::new(Store::new(dialect, Handle::current()));
        let facts = Facts { name: dialect.name(), exclusive: dialect == Dialect::Sqlite, leases: false };
        let registry = Arc::new(Registry::new(facts, Handle::current()));
        let (health, metrics) = (Arc::new(Health::default()), Arc::new(Metrics::default()));
        let incarnation = Incarnation::random().map_err(|error| Error::Failed(format!("no randomness: {error}")))?;
        let refused = |problem: &dyn std::fmt::Display| Error::Refused(problem.to_string());
        let snowflake = Snowflake::new(Setup {
            config: config.snowflake.clone(),
            layout: config.snowflake.layout().map_err(|problem| refused(&problem))?,
            registry: Arc::clone(&registry) as _,
            clock: Arc::clone(clock),
            health: Arc::clone(&health),
            incarnation,
            host: config.host.name.clone(),
            wait_max: config.server.wait_max,
        });
        let snowflake = snowflake.map_err(|problem| refused(&problem))?;
        let supply = Supply::with(
            &config.segment,
            Arc::clone(&store) as _,
            Arc::clone(clock),
            Arc::clone(&health),
            &metrics,
            Handle::current(),
            Beside { witness: None, rules: seeded::of_segments() },
        );
        let parts = Parts {
            store: Arc::clone(&store) as _,
            supply,
            snowflake: Arc::clone(&snowflake),
            clock: Arc::clone(clock),
            health: Arc::clone(&health),
            metrics: Arc::clone(&metrics),
            segment: config.segment.clone(),
            guarantee: OnceLock::new(),
        };
        let router = Arc::new(Router::new(config.tags.clone(), parts));
        let background = CancellationToken::new();
        Ok(Self { store, registry, router, snowflake, health, metrics, background })
    }

    /// Opens the database, reads the catalogue and serves.
    pub(super) async fn open(&self, config: &Config) -> Result<Data, Error> {
        let data = Data::open_when_there(config, &self.health).await?;
        let guarantee = data.guarantee(config).await?;
        self.metrics.store(self.router.store_name()).durable.set(i64::from(guarantee == UNIQUE));
        data.announce();
        self.store.open(Arc::clone(&data.store));
        self.registry.open(Arc::clone(&data.registry));
        self.router.rely_on(guarantee);
        for warning in self.router.load().await.map_err(|error| Error::Failed(error.to_string()))? {
            tracing::warn!(error_kind = "caller", "{warning}");
        }
        self.health.set(Part::Store, State::Unused);
        self.health.set(Part::Catalogue, State::Up);
        tokio::spawn(core("catalogue", Arc::clone(&self.router).keep_fresh(self.background.clone())));
        self.health.enter(Phase::Serving);
        Ok(data)
    }

    /// Tells everybody that this node is going, serves on for the delay that load balancers need, then closes the doors.
    pub(super) async fn drain(&self, config: &server::Config, closing: &CancellationToken) {
        let serving = self.health.phase() == Phase::Serving;
        self.health.enter(Phase::Draining);
        if serving && !config.drain_delay.is_zero() {
            tracing::info!("serving on for {:?} (server.drain_delay)", config.drain_delay);
            tokio::time::sleep(config.drain_delay).await;
        }
        closing.cancel();
    }

    /// Ends what is left when no client is: the worker id, the tails, the database if it was opened.
    pub(super) async fn take_down(self, data: Option<Data>) {
        self.background.cancel();
        self.snowflake.stop().await;
        if let Some(data) = data {
            self.router.stop(STOP_PATIENCE).await;
            data.close().await;
        }
    }
}
