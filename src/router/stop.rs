//! The end of a node's segment tags: nothing is served any more, then the unused tails go back to the store.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::Router;
use crate::engine::Engine;
use crate::engine::segment::Segment;
use crate::engine::segment::strict::Strict;
use crate::ids::IdRange;
use crate::store::{MAX_TAILS, Tail};

/// How long giving tails back may take in all. What is not given back by then is a gap, never a duplicate.
const RETURN_TIME: Duration = Duration::from_secs(5);

impl Router {
    /// Stops every segment tag, waiting up to `patience` for refills in flight, and gives the unused tails back.
    pub async fn stop(&self, patience: Duration) {
        let entries = self.catalogue.all();
        let segments: Vec<&Arc<Segment>> = entries
            .iter()
            .filter_map(|entry| if let Engine::Segment(segment) = entry.engine() { Some(segment) } else { None })
            .collect();
        let strict: Vec<&Arc<Strict>> = entries
            .iter()
            .filter_map(|entry| if let Engine::Strict(strict) = entry.engine() { Some(strict) } else { None })
            .collect();
        for segment in &segments {
            segment.stop();
        }
        for strict in &strict {
            strict.stop();
        }
        // All end side by side while one of them is waited for.
        let idle = async {
            for segment in &segments {
                segment.idle().await;
            }
            for strict in &strict {
                strict.idle().await;
            }
        };
        // Who is late tells it: `Segment::tail`.
        drop(tokio::time::timeout(patience, idle).await);
        let tails: Vec<Tail> = segments.iter().filter_map(|segment| segment.tail()).collect();
        self.give_back(&tails, RETURN_TIME).await;
    }

    /// Gives tails back until `time` is over.
    pub(super) async fn give_back(&self, tails: &[Tail], time: Duration) {
        let deadline = self.parts.clock.boot().plus(time);
        let (mut returned, mut skipped, mut late) = (0_u64, 0_u64, 0_usize);
        for batch in tails.chunks(MAX_TAILS) {
            if self.parts.clock.boot() >= deadline {
                late += batch.len();
                skipped += batch.iter().map(|tail| IdRange::len(tail.unused)).sum::<u64>();
                continue;
            }
            let batch = self.lower_marks(batch, &mut skipped).await;
            let taken = self.parts.store.return_tails(&batch).await.unwrap_or_else(|error| {
                tracing::warn!(error_kind = "system", "unused ids could not be given back: {error}");
                Vec::new()
            });
            for (n, tail) in batch.iter().enumerate() {
                let back = taken.get(n).copied().unwrap_or(false);
                *(if back { &mut returned } else { &mut skipped }) += tail.unused.len();
            }
        }
        self.parts.metrics.discarded.add("stop", skipped);
        tracing::info!(returned, skipped, "unused ids given back to {}", self.store_name());
        if late > 0 {
            tracing::warn!(error_kind = "system", "the unused ids of {late} tags were skipped: no time was left");
        }
    }

    /// Those of `tails` whose mark at the witness is lowered, side by side; the others may not go back to the store.
    async fn lower_marks(&self, tails: &[Tail], skipped: &mut u64) -> Vec<Tail> {
        let mut lowering = JoinSet::new();
        for tail in tails {
            let (supply, tail) = (Arc::clone(&self.parts.supply), tail.clone());
            lowering.spawn(async move { supply.lower_mark(&tail).await.then_some(tail) });
        }
        let lowered: Vec<Tail> = lowering.join_all().await.into_iter().flatten().collect();
        let ids = |tails: &[Tail]| tails.iter().map(|tail| tail.unused.len()).sum::<u64>();
        *skipped += ids(tails).saturating_sub(ids(&lowered));
        lowered
    }
}
