//! Nodes for tests: the engines of one process over a store in memory, with clocks that a test moves.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::strict::Strict;
use super::{Beside, Config, Segment, Supply};
use crate::clock::{Boot, Clock, ManualClock, Wall};
use crate::engine::{Demand, Engine, Refusal, Shortage, Waited};
use crate::health::Health;
use crate::ids::{IdRange, MAX_ID, TagName, push_range};
use crate::metrics::{Metrics, TagMetrics};
use crate::store::memory::Memory;
use crate::store::{Definition, EngineKind, Order, Row, SegmentStore};

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// One process.
pub(super) struct Node {
    pub(super) store: Memory,
    pub(super) clock: ManualClock,
    pub(super) health: Arc<Health>,
    pub(super) metrics: Metrics,
    pub(super) supply: Arc<Supply>,
}

pub(super) fn tag(name: &str) -> TagName {
    TagName::new(name.as_bytes()).expect("a tag")
}

pub(super) fn range(first: u64, last: u64) -> IdRange {
    IdRange::new(first, last + 1).expect("a range")
}

/// A definition with this order and step.
pub(super) fn definition(order: Order, step: u64) -> Definition {
    Definition {
        engine: EngineKind::Segment,
        order,
        step,
        min_step: 1,
        max_step: 1_000_000,
        id_limit: MAX_ID,
        qps: 0,
        burst: 0,
        critical: false,
        description: String::new(),
    }
}

/// The ranges of ids that were issued, of which no two may share one.
pub(super) fn twice(issued: &[IdRange]) -> Option<(IdRange, IdRange)> {
    let mut sorted = issued.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).find(|pair| pair[0].end() > pair[1].start()).map(|pair| (pair[0], pair[1]))
}

/// Waits until `condition` holds.
pub(super) async fn until(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, holds).await.expect("it happens");
}

impl Node {
    pub(super) fn new() -> Self {
        Self::on(&Memory::default(), &Config::default(), Beside::default())
    }

    /// A process on `store`, which may be others' too.
    pub(super) fn on(store: &Memory, config: &Config, beside: Beside) -> Self {
        let clock = ManualClock::new(Boot(1_000_000_000), Wall(0));
        let (health, metrics) = (Arc::new(Health::default()), Metrics::default());
        let (shared, clocks) = (Arc::new(store.clone()), Arc::new(clock.clone()));
        let supply = Supply::with(config, shared, clocks, health.clone(), &metrics, Handle::current(), beside);
        Self { store: store.clone(), clock, health, metrics, supply }
    }

    /// The engine of a tag, which is created unless it stands.
    pub(super) async fn engine(&self, name: &str, definition: &Definition) -> Engine {
        let (row, _) = self.store.create(&tag(name), definition, 1, 100_000).await.expect("create");
        self.engine_of(&row, Arc::default())
    }

    pub(super) fn engine_of(&self, row: &Row, metrics: Arc<TagMetrics>) -> Engine {
        match row.definition.order {
            Order::Node => Engine::Segment(Segment::new(row, self.supply.clone(), metrics)),
            Order::Strict => Engine::Strict(Strict::new(row, self.supply.clone(), metrics, None)),
        }
    }

    /// The engine of a strict tag.
    pub(super) async fn strict(&self, name: &str) -> Arc<Strict> {
        match self.engine(name, &definition(Order::Strict, 10)).await {
            Engine::Strict(strict) => strict,
            other => panic!("{other:?}"),
        }
    }

    /// Takes ids as a request does, waiting without a deadline.
    pub(super) async fn take(&self, engine: &Engine, demand: Demand) -> Result<Vec<IdRange>, Refusal> {
        take(engine, self.clock.boot(), demand).await
    }

    /// What was discarded for `reason`.
    pub(super) fn discarded(&self, reason: &str) -> u64 {
        self.metrics.discarded.get().iter().find(|(name, _)| *name == reason).map_or(0, |(_, n)| *n)
    }

    pub(super) fn regressions(&self) -> u64 {
        self.metrics.store("memory").regressions.get()
    }
}

/// Takes ids as a request does, waiting without a deadline.
pub(super) async fn take(engine: &Engine, now: Boot, demand: Demand) -> Result<Vec<IdRange>, Refusal> {
    let mut all = Vec::new();
    loop {
        let mut out = Vec::new();
        let had: u64 = crate::ids::total(&all);
        let rest = if let Demand::Singles(n) = demand { Demand::Singles(n - had) } else { demand };
        let answer = engine.take(rest, now, &mut out);
        for range in out {
            push_range(&mut all, range);
        }
        let later = match answer {
            Ok(()) => return Ok(all),
            Err(Shortage::Refused(refusal)) => return Err(refusal),
            Err(Shortage::Later(later)) => later,
        };
        match tokio::time::timeout(PATIENCE, later.wait()).await.expect("something happens") {
            Waited::AskAgain => {}
            Waited::Refused(refusal) => return Err(refusal),
            Waited::Ids(ids) => {
                push_range(&mut all, ids);
                if crate::ids::total(&all) == demand.count() {
                    return Ok(all);
                }
            }
        }
    }
}
