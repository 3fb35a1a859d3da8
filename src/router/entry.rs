//! One tag of this node: its row as last seen, its engine, and what is counted for it.
//!
//! The engine checks by itself what must never slip (a retired tag, the floor), under its own lock. What stands here is
//! for telling: definition, last id, totals.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

use crate::clock::Boot;
use crate::engine::segment::View;
use crate::engine::{Demand, Engine, Refusal, Shortage};
use crate::ids::{IdRange, TagName};
use crate::limit::Limit;
use crate::metrics::TagMetrics;
use crate::store::{EngineKind, Row};

/// One tag of this node.
#[derive(Debug)]
pub struct Entry {
    name: TagName,
    engine: Engine,
    row: ArcSwap<Row>,
    retired: AtomicBool,
    last: AtomicU64,
    limit: Limit,
    /// Held while a row is applied: of two at once the newer one has to win everywhere.
    applying: Mutex<()>,
    metrics: Arc<TagMetrics>,
}

/// Everything `IDINFO` tells of a tag.
#[derive(Clone, Debug)]
pub struct Info {
    /// The row as this node last saw it.
    pub row: Row,
    /// `unique`, or `unique-unless-store-loses-commits`.
    pub guarantee: &'static str,
    /// Ids of the tag written to clients since the start.
    pub issued: u64,
    /// What only one of the engines has.
    pub engine: EngineInfo,
}

/// What only one of the engines has to tell.
#[derive(Clone, Debug)]
pub enum EngineInfo {
    /// A segment tag.
    Segment {
        /// The step of the next grant.
        step: u64,
        /// Why the step is what it is.
        step_reason: &'static str,
        /// Ids in memory.
        remaining: u64,
        /// Whether `next` is there.
        next_ready: bool,
    },
    /// A Snowflake tag.
    Snowflake {
        /// The node's worker id, when it has one.
        worker: Option<u32>,
        /// The datacenter id.
        datacenter: u32,
        /// How much of the reserved window is left, in milliseconds.
        window_remaining_ms: u64,
    },
}

impl EngineInfo {
    /// What `view` tells, of which the last id goes into `row`.
    fn of_segment(row: &mut Row, view: View) -> Self {
        row.max_id = row.max_id.max(view.max_id);
        let View { step, step_reason, remaining, next_ready, .. } = view;
        Self::Segment { step, step_reason, remaining, next_ready }
    }
}

impl Entry {
    pub(super) fn new(row: Row, engine: Engine, metrics: Arc<TagMetrics>, now: Boot) -> Self {
        let (retired, rate) = (AtomicBool::new(row.retired), row.definition.rate());
        metrics.rate_limit.set(rate.qps());
        Self {
            name: row.tag.clone(),
            engine,
            row: ArcSwap::from_pointee(row),
            retired,
            last: AtomicU64::new(0),
            limit: Limit::new(rate, now),
            applying: Mutex::new(()),
            metrics,
        }
    }

    /// The tag.
    pub fn name(&self) -> &TagName {
        &self.name
    }

    /// Which engine makes the ids.
    pub fn kind(&self) -> EngineKind {
        match self.engine {
            Engine::Segment(_) | Engine::Strict(_) => EngineKind::Segment,
            Engine::Snowflake(_) => EngineKind::Snowflake,
        }
    }

    /// What is counted for the tag.
    pub fn metrics(&self) -> &TagMetrics {
        &self.metrics
    }

    /// How many ids of the tag this node may give: for callers of [`Self::take`] to ask before.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Appends ids to `out`: all of `demand`, or for [`Demand::Singles`] as many as there are now.
    ///
    /// # Errors
    /// Why fewer than asked for were appended; for the other demands none were.
    pub fn take(&self, demand: Demand, now: Boot, out: &mut Vec<IdRange>) -> Result<(), Shortage> {
        if self.retired.load(Ordering::Acquire) {
            return Err(Shortage::Refused(Refusal::Retired));
        }
        let before = out.len();
        let answer = self.engine.take(demand, now, out);
        if let Some(range) = out.get(before..).and_then(<[IdRange]>::last) {
            self.issued(*range);
        }
        answer
    }

    /// Remembers ids that were waited for and have come.
    pub fn issued(&self, ids: IdRange) {
        self.last.fetch_max(ids.last(), Ordering::Relaxed);
    }

    /// Why what callers wait for has failed so far, where it has.
    pub fn cause(&self) -> Option<Refusal> {
        self.engine.cause()
    }

    /// The largest id this process has issued for the tag.
    pub fn last_issued(&self) -> Option<u64> {
        Some(self.last.load(Ordering::Relaxed)).filter(|&last| last > 0)
    }

    /// Whether the tag is retired, as far as this node knows.
    pub fn retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// The row as this node last saw it.
    pub(super) fn row(&self) -> Arc<Row> {
        self.row.load_full()
    }

    /// Takes over a row of the store: definition, floor, retirement. An older row than the one known changes nothing.
    pub(super) fn apply(&self, row: &Row, now: Boot) {
        let _applying = self.applying.lock().unwrap_or_else(PoisonError::into_inner);
        if row.retired {
            self.retired.store(true, Ordering::Release);
        }
        let newer = row.revision > self.row.load().revision;
        // Floor and retirement only ever tighten, so an old row can't loosen what a newer one has said.
        match &self.engine {
            Engine::Segment(segment) => {
                segment.floor(row.floor);
                if row.retired {
                    segment.retire();
                }
                if newer {
                    segment.redefine(&row.definition);
                }
            }
            Engine::Strict(strict) => {
                strict.floor(row.floor);
                if row.retired {
                    strict.retire();
                }
                if newer {
                    strict.redefine(&row.definition);
                }
            }
            Engine::Snowflake(_) => {}
        }
        if newer {
            let rate = row.definition.rate();
            self.limit.change(rate, now);
            self.metrics.rate_limit.set(rate.qps());
        }
        self.row.rcu(|known| if row.revision > known.revision { Arc::new(Row::clone(row)) } else { Arc::clone(known) });
    }

    /// Closes the tag, whose row is gone from `store`: it must never start again at 1. Gives what callers are told.
    pub(super) fn vanish(&self, store: &str) -> Refusal {
        match &self.engine {
            Engine::Segment(segment) => segment.vanish(),
            Engine::Strict(strict) => strict.vanish(),
            Engine::Snowflake(_) => {
                Refusal::Backend(format!("its row has vanished from {store}; restore it, or use another tag"))
            }
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Everything there is to tell of the tag.
    pub fn info(&self, guarantee: &'static str) -> Info {
        let mut row = Row::clone(&self.row());
        let engine = match &self.engine {
            Engine::Segment(segment) => EngineInfo::of_segment(&mut row, segment.view()),
            Engine::Strict(strict) => EngineInfo::of_segment(&mut row, strict.view()),
            Engine::Snowflake(snowflake) => {
                let view = snowflake.view();
                EngineInfo::Snowflake {
                    worker: view.worker,
                    datacenter: view.datacenter,
                    window_remaining_ms: view.window_remaining_ms,
                }
            }
        };
        Info { row, guarantee, issued: self.metrics.issued.get(), engine }
    }
}
