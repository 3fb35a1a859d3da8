//! Routers for tests: everything in memory, clocks that a test moves.

use std::sync::Arc;
use std::time::Duration;

use super::{Config, Parts, Router};
use crate::clock::{Boot, Clock, ManualClock, Wall};
use crate::engine::segment::{self, Supply};
use crate::engine::snowflake::{self, Setup, Snowflake};
use crate::health::Health;
use crate::ids::Incarnation;
use crate::metrics::Metrics;
use crate::registry::WorkerRegistry;
use crate::registry::memory::MemoryRegistry;
use crate::store::SegmentStore;
use crate::store::memory::Memory;

/// A router over stores in memory, with what a test needs of its surroundings.
pub(crate) struct Bench<S = Memory> {
    pub(crate) router: Arc<Router>,
    pub(crate) store: Arc<S>,
    pub(crate) clock: ManualClock,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Router {
    /// A router that knows no tag, over stores in memory. Needs a tokio runtime around it.
    pub(crate) fn in_memory(config: Config) -> Bench {
        Self::over(Arc::new(Memory::default()), config)
    }

    /// A router that knows no tag, over a store that may hold some: what a restart of the process makes.
    pub(crate) fn over<S: SegmentStore>(store: Arc<S>, config: Config) -> Bench<S> {
        let clock = ManualClock::new(Boot(1_000_000_000_000), Wall(1_800_000_000_000_000_000));
        let health = Arc::new(Health::default());
        let metrics = Arc::new(Metrics::default());
        let snowflake_config = snowflake::Config::default();
        let layout = snowflake_config.layout().expect("the default layout");
        let registry: Arc<dyn WorkerRegistry> = Arc::new(MemoryRegistry::new(layout.workers(), 0, true));
        let snowflake = Snowflake::new(Setup {
            config: snowflake_config,
            layout,
            registry,
            clock: Arc::new(clock.clone()),
            health: Arc::clone(&health),
            incarnation: Incarnation(7),
            host: "test".into(),
            wait_max: Duration::from_millis(250),
        })
        .expect("a valid configuration");
        let segment = segment::Config::default();
        let clocks: Arc<dyn Clock> = Arc::new(clock.clone());
        let supply = Supply::new(
            &segment,
            Arc::clone(&store) as _,
            Arc::clone(&clocks),
            Arc::clone(&health),
            &metrics,
            tokio::runtime::Handle::current(),
        );
        let parts = Parts {
            store: Arc::clone(&store) as _,
            supply,
            snowflake,
            clock: clocks,
            health: Arc::clone(&health),
            metrics: Arc::clone(&metrics),
            segment,
            guarantee: "unique".into(),
        };
        Bench { router: Arc::new(Router::new(config, parts)), store, clock, health, metrics }
    }
}
