//! The end of a node's segment tags: nothing is served any more, then the unused tails go back to the store.

use std::time::Duration;

use super::Router;
use crate::engine::Engine;

/// How long giving tails back may take in all. What is not given back by then is a gap, never a duplicate.
const RETURN_TIME: Duration = Duration::from_secs(5);

impl Router {
    /// Stops every segment tag, waiting up to `patience` for refills in flight, and gives the unused tails back.
    pub async fn stop(&self, patience: Duration) {
        let deadline = self.parts.clock.boot().plus(patience);
        let mut tails = Vec::new();
        for entry in self.catalogue.all() {
            if let Engine::Segment(segment) = entry.engine() {
                let left = deadline.since(self.parts.clock.boot());
                tails.extend(segment.stop(left).await);
            }
        }
        let deadline = self.parts.clock.boot().plus(RETURN_TIME);
        let (mut returned, mut skipped) = (0_u64, 0_u64);
        for tail in tails {
            let late = self.parts.clock.boot() >= deadline;
            let back = !late && self.parts.store.return_tail(&tail).await.unwrap_or(false);
            *(if back { &mut returned } else { &mut skipped }) += tail.unused.len();
        }
        self.parts.metrics.discarded.add("stop", skipped);
        tracing::info!(returned, skipped, "unused ids given back to the {}", self.store_name());
    }
}
