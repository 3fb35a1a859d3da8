//! From a tag to its engine.
//!
//! The store's catalogue says which tags exist; this node keeps the ones it has met in memory and polls for changes. An
//! unknown tag is looked up in the store before anything is said about it, so that a tag created on one node can be used
//! on another at once. Every change is made in the store first and applied here after it is durable.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::{Boot, Clock};
use crate::engine::Engine;
use crate::engine::segment::strict::Strict;
use crate::engine::segment::{self, Segment, Supply};
use crate::engine::snowflake::{self, Snowflake};
use crate::health::Health;
use crate::ids::TagName;
use crate::metrics::Metrics;
use crate::store::{Kind, Row, SegmentStore, StoreError};

mod catalogue;
mod creation;
mod entry;
mod refresh;
mod stop;

pub use crate::engine::snowflake::WorkerView;
pub use crate::engine::{Demand, Later, Refusal, Shortage, Waited};
pub use crate::store::{Alteration, EngineKind, MAX_DESCRIPTION_LEN, Order};
pub use entry::{EngineInfo, Entry, Info};

use catalogue::Catalogue;
use creation::{difference, refuse_segment_options};

/// The most a FLOOR may lie above the last id without FORCE: a typing error there can't be taken back.
pub const MAX_FLOOR_JUMP: u64 = 1_000_000_000_000;

/// Section `tags` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What the first request for an unknown tag does.
    pub unknown: Unknown,
    /// Which engine a new tag gets: the first rule whose pattern matches decides.
    pub rules: Vec<Rule>,
    /// Tags that are created at start when they don't exist.
    pub declared: Vec<Declared>,
    /// How often the store is asked for changes.
    #[serde(with = "humantime_serde")]
    pub refresh: Duration,
    /// How many tags there may be, retired ones included.
    pub max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            unknown: Unknown::Create,
            rules: vec![Rule { pattern: "*".into(), engine: EngineKind::Segment }],
            declared: Vec::new(),
            refresh: Duration::from_secs(1),
            max: 100_000,
        }
    }
}

/// What the first request for an unknown tag does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unknown {
    /// The tag is created with the defaults.
    Create,
    /// The request is refused with `-IDNOTAG`.
    Refuse,
}

/// Which engine the tags of a pattern get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A glob over tags, as Redis writes them.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The engine.
    pub engine: EngineKind,
}

/// A tag as the configuration wants it. What is left out takes the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Declared {
    /// The tag.
    pub tag: String,
    /// `ENGINE`
    pub engine: Option<EngineKind>,
    /// `ORDER`
    pub order: Option<Order>,
    /// `STEP`
    pub step: Option<u64>,
    /// `MINSTEP`
    pub min_step: Option<u64>,
    /// `MAXSTEP`
    pub max_step: Option<u64>,
    /// `START`
    pub start: Option<u64>,
    /// `MAX`
    pub max: Option<u64>,
    /// `QPS`
    pub qps: Option<u64>,
    /// `BURST`
    pub burst: Option<u64>,
    /// `CRITICAL`
    pub critical: Option<bool>,
    /// `DESC`
    pub description: Option<String>,
}

/// What `IDTAG CREATE` names; what is `None` takes the default and is not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// `ENGINE`
    pub engine: Option<EngineKind>,
    /// `ORDER`
    pub order: Option<Order>,
    /// `START`: the first id
    pub start: Option<u64>,
    /// The other options.
    pub fields: Alteration,
}

/// Why the router did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An engine's refusal.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The tag does not exist and is not created.
    #[error("{0}")]
    NoTag(String),
    /// The request contradicts the tag as it stands, or a limit.
    #[error("{0}")]
    Conflict(String),
    /// The command does not fit the tag's engine, or asks for what no store here can promise.
    #[error("{0}")]
    WrongType(String),
}

/// What the router is built from.
pub struct Parts {
    /// The catalogue and the segment counters.
    pub store: Arc<dyn SegmentStore>,
    /// What all segment tags share.
    pub supply: Arc<Supply>,
    /// The node's Snowflake generator.
    pub snowflake: Arc<Snowflake>,
    /// The clocks.
    pub clock: Arc<dyn Clock>,
    /// The node's state.
    pub health: Arc<Health>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The defaults of new segment tags.
    pub segment: segment::Config,
    /// `unique`, or what a store's weak settings leave of it; empty until the store is open.
    pub guarantee: OnceLock<&'static str>,
}

/// From a tag to its engine.
pub struct Router {
    config: Config,
    parts: Parts,
    catalogue: Catalogue,
    revision: AtomicU64,
    /// When the catalogue was last read, by the boot clock; 0: never.
    fresh_at: AtomicU64,
    admissions: tokio::sync::Semaphore,
    /// Whether the store's settings were found weak after its start.
    weakened: AtomicBool,
}

/// The guarantee of a store that keeps what it has confirmed.
pub const UNIQUE: &str = "unique";

/// What remains of [`UNIQUE`] where the store's settings may lose what it has confirmed.
pub const WEAK: &str = "unique-unless-store-loses-commits";

/// How many unknown tags may be asked of the store at once; the rest wait for their turn.
const MAX_ADMISSIONS: usize = 8;

impl Router {
    /// A router that knows no tag yet: [`Self::load`] reads the catalogue.
    pub fn new(config: Config, parts: Parts) -> Self {
        Self {
            config,
            parts,
            catalogue: Catalogue::default(),
            revision: AtomicU64::new(0),
            fresh_at: AtomicU64::new(0),
            admissions: tokio::sync::Semaphore::new(MAX_ADMISSIONS),
            weakened: AtomicBool::new(false),
        }
    }

    /// Says what the store guarantees, once it is open; to be said before [`Self::load`], and only the first word counts.
    pub fn rely_on(&self, guarantee: &'static str) {
        let _ = self.parts.guarantee.set(guarantee);
    }

    /// What the store guarantees; nothing before it is open.
    fn guarantee(&self) -> &'static str {
        if self.weakened.load(Ordering::Relaxed) {
            return WEAK;
        }
        self.parts.guarantee.get().copied().unwrap_or_default()
    }

    /// The entry of `tag`, if this node knows it.
    pub fn find(&self, tag: &[u8]) -> Option<Arc<Entry>> {
        self.catalogue.find(tag)
    }

    /// The entry of a tag that this node may not know yet: it is looked up in the store, and created there by the rules
    /// when it is nowhere and `tags.unknown` allows it.
    ///
    /// # Errors
    /// `NoTag` when it does not exist and is not created, or why the store could not tell.
    pub async fn admit(&self, tag: &TagName) -> Result<Arc<Entry>, Error> {
        if let Some(entry) = self.catalogue.find(tag.as_str().as_bytes()) {
            return Ok(entry);
        }
        let now = self.parts.clock.boot();
        if self.catalogue.is_unknown(tag, now) {
            return Err(self.no_tag(tag));
        }
        let _turn = self.admissions.acquire().await.map_err(|_| Refusal::Backend("the node is stopping".into()))?;
        let found = self.parts.store.find(tag).await.map_err(|error| self.store_error(tag, &error))?;
        let row = match found {
            Some(row) => row,
            None if self.config.unknown == Unknown::Create => match self.create_row(tag, &Wanted::default()).await {
                Ok((row, _)) => row,
                Err(Error::NoTag(text)) => {
                    self.catalogue.remember_unknown(tag, now, now.plus(self.config.refresh));
                    return Err(Error::NoTag(text));
                }
                Err(error) => return Err(error),
            },
            None => {
                self.catalogue.remember_unknown(tag, now, now.plus(self.config.refresh));
                return Err(self.no_tag(tag));
            }
        };
        self.enter(row)
    }

    /// `IDTAG CREATE`: idempotent; only what `wanted` names is compared with a tag that stands.
    ///
    /// # Errors
    /// `Conflict` naming the difference, `WrongType` for what a Snowflake tag has not, `Retired`, or why the store could not do it.
    pub async fn create(&self, tag: &TagName, wanted: &Wanted) -> Result<(), Error> {
        let (row, created) = self.create_row(tag, wanted).await?;
        self.catalogue.forget_unknown(tag);
        if row.retired {
            return Err(Refusal::Retired.into());
        }
        let difference = if created { None } else { difference(&row, wanted) };
        let entry = self.enter(row.clone())?;
        entry.apply(&row, self.now());
        difference.map_or(Ok(()), Err)
    }

    /// `IDTAG ALTER`: changes what is named; the engine, the order and the start stay as created.
    ///
    /// # Errors
    /// `Conflict` for a MAX below what is given away or steps out of order, or why the store could not do it.
    pub async fn alter(&self, tag: &TagName, change: &Alteration) -> Result<(), Error> {
        let entry = self.known(tag).await?;
        if entry.kind() == EngineKind::Snowflake {
            refuse_segment_options(tag, change, None, None)?;
        }
        let row = self.parts.store.alter(tag, change).await.map_err(|error| self.store_error(tag, &error))?;
        entry.apply(&row, self.now());
        Ok(())
    }

    /// `IDTAG FLOOR`: later ids of the tag are larger than `floor`, on every node once this has returned.
    ///
    /// # Errors
    /// `Conflict` for a floor far above the last id without `force` or above the tag's MAX, `WrongType` for a Snowflake
    /// tag, or why the store could not do it.
    pub async fn floor(&self, tag: &TagName, floor: u64, force: bool) -> Result<(), Error> {
        let entry = self.known(tag).await?;
        if entry.kind() == EngineKind::Snowflake {
            return Err(Error::WrongType(format!(
                "tag '{tag}' is a Snowflake tag: its ids follow the time and have no floor"
            )));
        }
        let row = self.parts.store.find(tag).await.map_err(|error| self.store_error(tag, &error))?;
        let row = row.ok_or_else(|| self.vanished(tag))?;
        let reach = row.max_id.saturating_add(MAX_FLOOR_JUMP);
        if floor > reach && !force {
            return Err(Error::Conflict(format!(
                "FLOOR {floor} is more than {MAX_FLOOR_JUMP} above the last id {}: if that is meant, add FORCE",
                row.max_id
            )));
        }
        let row = self.parts.store.raise_floor(tag, floor).await.map_err(|error| self.store_error(tag, &error))?;
        entry.apply(&row, self.now());
        // Last, so that a floor that is only half raised shows in the reply and can be raised again.
        let raised = self.parts.supply.raise_mark(tag, floor).await;
        raised.map_err(|error| {
            Refusal::Backend(format!("the floor is raised, but not at the witness: {}", error.text))
        })?;
        self.settle_everywhere().await;
        Ok(())
    }

    /// `IDTAG RETIRE`: no id of the tag is issued on any node once this has returned, for ever.
    ///
    /// # Errors
    /// `NoTag`, or why the store could not do it.
    pub async fn retire(&self, tag: &TagName) -> Result<(), Error> {
        let entry = self.known(tag).await?;
        let row = self.parts.store.retire(tag).await.map_err(|error| self.store_error(tag, &error))?;
        entry.apply(&row, self.now());
        self.parts.metrics.retire(tag);
        self.settle_everywhere().await;
        Ok(())
    }

    /// One step of a scan over the tags that are not retired: the next cursor (0 at the end) and the names.
    pub fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<TagName>) {
        let (next, entries) = self.catalogue.scan(cursor, count);
        (next, entries.iter().filter(|entry| !entry.retired()).map(|entry| entry.name().clone()).collect())
    }

    /// How many tags this node knows, retired ones included.
    pub fn len(&self) -> usize {
        self.catalogue.len()
    }

    /// Whether this node knows no tag.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything `IDINFO` tells of a tag.
    pub fn info(&self, entry: &Entry) -> Info {
        entry.info(self.guarantee())
    }

    /// The node's Snowflake generator.
    pub fn snowflake(&self) -> &Arc<Snowflake> {
        &self.parts.snowflake
    }

    /// All worker ids of the datacenter.
    ///
    /// # Errors
    /// `Backend` when the registry could not say.
    pub async fn workers(&self) -> Result<Vec<WorkerView>, Error> {
        let workers = self.parts.snowflake.workers().await;
        workers.map_err(|error| Refusal::Backend(error.to_string()).into())
    }

    /// The name of the store, such as `sqlite`.
    pub fn store_name(&self) -> &'static str {
        self.parts.store.name()
    }

    /// The parts of an id by the node's layout; `None` for a number that is no id of it.
    pub fn decode(&self, id: u64) -> Option<snowflake::layout::Parts> {
        self.parts.snowflake.layout().decompose(id)
    }

    /// The entry of a tag that has to exist: looked up in the store where this node doesn't know it, never created.
    ///
    /// # Errors
    /// `NoTag`, or why the store could not tell.
    pub async fn known(&self, tag: &TagName) -> Result<Arc<Entry>, Error> {
        if let Some(entry) = self.catalogue.find(tag.as_str().as_bytes()) {
            return Ok(entry);
        }
        let row = self.parts.store.find(tag).await.map_err(|error| self.store_error(tag, &error))?;
        self.enter(row.ok_or_else(|| missing(tag))?)
    }

    /// The entry of `row`'s tag; made from the row when this node did not know the tag.
    fn enter(&self, row: Row) -> Result<Arc<Entry>, Error> {
        let name = row.tag.clone();
        let entry = self.catalogue.insert(&name, || Arc::new(self.build(row)));
        entry.ok_or_else(|| Refusal::Backend("the catalogue is damaged".into()).into())
    }

    fn build(&self, row: Row) -> Entry {
        let kind = row.definition.engine;
        let metrics = self.parts.metrics.tag(&row.tag, kind.name());
        let engine = match kind {
            EngineKind::Segment if row.definition.order == Order::Strict => {
                let supply = Arc::clone(&self.parts.supply);
                Engine::Strict(Strict::new(&row, supply, Arc::clone(&metrics), self.strict_refusal()))
            }
            EngineKind::Segment => {
                Engine::Segment(Segment::new(&row, Arc::clone(&self.parts.supply), Arc::clone(&metrics)))
            }
            EngineKind::Snowflake => {
                self.parts.snowflake.want();
                Engine::Snowflake(Arc::clone(&self.parts.snowflake))
            }
        };
        Entry::new(row, engine, metrics, self.now())
    }

    fn now(&self) -> Boot {
        self.parts.clock.boot()
    }

    fn no_tag(&self, tag: &TagName) -> Error {
        match self.config.unknown {
            Unknown::Refuse => missing(tag),
            Unknown::Create => self.no_room(tag),
        }
    }

    fn no_room(&self, tag: &TagName) -> Error {
        let most = self.config.max;
        Error::NoTag(format!(
            "tag '{tag}' does not exist and there are already {most} tags: raise tags.max to allow more"
        ))
    }

    /// Closes `tag`, whose row is gone from the store, and says so.
    fn vanished(&self, tag: &TagName) -> Error {
        match self.catalogue.find(tag.as_str().as_bytes()) {
            Some(entry) => entry.vanish(self.store_name()).into(),
            None => missing(tag),
        }
    }

    fn store_error(&self, tag: &TagName, error: &StoreError) -> Error {
        match error.kind {
            Kind::Retired => Refusal::Retired.into(),
            Kind::Missing => self.vanished(tag),
            Kind::Exhausted => Refusal::Exhausted(error.text.clone()).into(),
            Kind::Conflict => Error::Conflict(error.text.clone()),
            Kind::TooMany => self.no_room(tag),
            Kind::Transient | Kind::Unknown | Kind::Permanent => Refusal::Backend(error.text.clone()).into(),
        }
    }

    /// Waits until every other node with a working database has seen a change: none when the store has no other nodes.
    async fn settle_everywhere(&self) {
        if self.parts.store.shared() {
            tokio::time::sleep(self.config.refresh * 2).await;
        }
    }
}

fn missing(tag: &TagName) -> Error {
    Error::NoTag(format!("tag '{tag}' does not exist: create it with IDTAG CREATE {tag}"))
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
