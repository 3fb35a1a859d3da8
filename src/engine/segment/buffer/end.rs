//! The end of a buffer: closed for good, emptied, and what of it goes back to the store.
//!
//! Guaranteed: a closed buffer serves nothing, and its tail leaves once. How: closing takes the rest of `current` out of the
//! reach of the fast path, so that no take needs to look whether the buffer is closed.

use super::Buffer;
use crate::engine::Refusal;
use crate::ids::IdRange;

impl Buffer {
    /// Serves nothing from now on but answers `refusal`; what is here stays for [`Self::tail`].
    pub fn close(&mut self, refusal: Refusal) {
        self.closed.get_or_insert(refusal);
        self.stash();
    }

    /// Drops every id here, counted under `reason`: nobody may have them any more.
    pub fn clear(&mut self, reason: &'static str) {
        self.lose(reason, self.queued);
        self.skip(reason, self.end);
        self.queue.clear();
        (self.queued, self.nonce) = (0, None);
        self.arm();
    }

    /// Takes `current` out of the reach of the fast path.
    fn stash(&mut self) {
        if let Some(range) = IdRange::new(self.cursor, self.end) {
            self.queue.push_front(range);
            self.queued += range.len();
            self.end = self.cursor;
        }
        self.arm();
    }

    /// The unused ids at the end of the last grant, with its nonce, and empties the buffer: a run without a gap up to
    /// that end. Only once the buffer is closed and no refill is in flight.
    pub fn tail(&mut self) -> Option<(IdRange, u128)> {
        self.closed.as_ref()?;
        self.stash();
        let (nonce, last) = (self.nonce.take(), self.queue.pop_back());
        let tail = nonce.zip(last).filter(|(_, last)| last.end() == self.highest).map(|(nonce, last)| {
            let mut start = last.start();
            while self.queue.back().is_some_and(|range| range.end() == start) {
                start = self.queue.pop_back().map_or(start, IdRange::start);
            }
            (start, last.end(), nonce)
        });
        let kept = tail.map_or(0, |(start, end, _)| end - start);
        self.lose("stop", self.queued - kept);
        self.queue.clear();
        self.queued = 0;
        tail.and_then(|(start, end, nonce)| IdRange::new(start, end).map(|range| (range, nonce)))
    }
}
