//! How an id is put together: timestamp, datacenter id, worker id and sequence, from the highest bit to the lowest.
//!
//! A [`Layout`] exists only with widths that were checked, so composing can't overflow and is injective: two ids are
//! equal only if all their parts are. It is a setting of the whole cluster, fixed for ever; its [`Layout::text`] is
//! what the identity of the cluster keeps and every start compares. Pure.

use std::ops::RangeInclusive;

use super::sequencer::Slots;
use crate::ids::{IdRange, push_range};

/// Allowed widths of the timestamp: 31 bits of milliseconds are 24 days, 53 are more than 285 000 years.
const TIMESTAMP_BITS: RangeInclusive<u32> = 31..=53;
/// Allowed widths of the datacenter id.
const DATACENTER_BITS: RangeInclusive<u32> = 0..=10;
/// Allowed widths of the worker id. The registry keeps a row for each worker id and reads all of them at a claim.
const WORKER_BITS: RangeInclusive<u32> = 0..=14;
/// Allowed widths of the sequence.
const SEQUENCE_BITS: RangeInclusive<u32> = 1..=22;
/// An id is a positive signed 64-bit integer.
const ID_BITS: u32 = 63;

/// A configuration key that can't be used as it stands, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {text}")]
pub struct Problem {
    /// The full key, such as `snowflake.worker_bits`.
    pub key: &'static str,
    /// What is wrong with it and what to do.
    pub text: String,
}

impl Problem {
    /// A problem with `key`.
    pub fn new(key: &'static str, text: impl Into<String>) -> Self {
        Self { key, text: text.into() }
    }
}

/// The parts of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// When the id was made, in Unix milliseconds.
    pub timestamp_ms: u64,
    /// The datacenter id.
    pub datacenter: u32,
    /// The worker id.
    pub worker: u32,
    /// The place within the tick.
    pub sequence: u32,
}

/// Epoch and bit widths, checked. One tick is one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    epoch_millis: u64,
    timestamp_bits: u32,
    datacenter_bits: u32,
    worker_bits: u32,
    sequence_bits: u32,
}

impl Layout {
    /// A layout that counts milliseconds from `epoch_millis` (Unix milliseconds), with `bits` being the widths of
    /// timestamp, datacenter id, worker id and sequence.
    ///
    /// # Errors
    /// The key whose value can't be used.
    pub fn new(epoch_millis: u64, bits: [u32; 4]) -> Result<Self, Problem> {
        let [timestamp_bits, datacenter_bits, worker_bits, sequence_bits] = bits;
        for (key, width, allowed) in [
            ("snowflake.timestamp_bits", timestamp_bits, TIMESTAMP_BITS),
            ("snowflake.datacenter_bits", datacenter_bits, DATACENTER_BITS),
            ("snowflake.worker_bits", worker_bits, WORKER_BITS),
            ("snowflake.sequence_bits", sequence_bits, SEQUENCE_BITS),
        ] {
            if !allowed.contains(&width) {
                let (least, most) = (allowed.start(), allowed.end());
                return Err(Problem::new(key, format!("{width} is not between {least} and {most}")));
            }
        }
        let sum: u32 = bits.iter().sum();
        if sum > ID_BITS {
            let text = format!("the four widths add up to {sum}, an id has {ID_BITS} bits: make one of them smaller");
            return Err(Problem::new("snowflake.timestamp_bits", text));
        }
        // Keeps every sum of an epoch and a timestamp far from the end of 64 bits.
        if epoch_millis >= 1 << 53 {
            return Err(Problem::new("snowflake.epoch_millis", "it is no date in Unix milliseconds"));
        }
        Ok(Self { epoch_millis, timestamp_bits, datacenter_bits, worker_bits, sequence_bits })
    }

    /// The layout for clients that hold numbers as doubles: ids stay below 2^53; 128 ids a millisecond and node.
    ///
    /// # Errors
    /// When the epoch is no date.
    pub fn js53(epoch_millis: u64) -> Result<Self, Problem> {
        Self::new(epoch_millis, [41, 0, 5, 7])
    }

    /// Where timestamps start, in Unix milliseconds.
    pub const fn epoch_millis(self) -> u64 {
        self.epoch_millis
    }

    /// The width of the sequence.
    pub const fn sequence_bits(self) -> u32 {
        self.sequence_bits
    }

    /// The width of the worker id.
    pub const fn worker_bits(self) -> u32 {
        self.worker_bits
    }

    /// How many datacenter ids there are.
    pub const fn datacenters(self) -> u32 {
        1 << self.datacenter_bits
    }

    /// How many worker ids a datacenter has.
    pub const fn workers(self) -> u32 {
        1 << self.worker_bits
    }

    /// The last timestamp that fits, in ticks since the epoch.
    pub const fn max_timestamp(self) -> u64 {
        (1 << self.timestamp_bits) - 1
    }

    /// The first moment without ids, in Unix milliseconds.
    pub const fn exhaustion(self) -> u64 {
        self.epoch_millis + self.max_timestamp() + 1
    }

    /// The layout as the identity of the cluster keeps it.
    pub fn text(self) -> String {
        format!(
            "epoch={} bits={}/{}/{}/{} tick=1ms",
            self.epoch_millis, self.timestamp_bits, self.datacenter_bits, self.worker_bits, self.sequence_bits
        )
    }

    /// The tick of a moment given in Unix milliseconds; 0 for one before the epoch, [`Self::max_timestamp`] + 1 for any
    /// after the last tick.
    pub const fn tick(self, unix_ms: u64) -> u64 {
        let tick = unix_ms.saturating_sub(self.epoch_millis);
        if tick > self.max_timestamp() { self.max_timestamp() + 1 } else { tick }
    }

    /// The bits that all ids of one worker id have in common; `None` when a part is too wide.
    pub const fn node(self, datacenter: u32, worker: u32) -> Option<u64> {
        if datacenter >= self.datacenters() || worker >= self.workers() {
            return None;
        }
        let above_worker = (datacenter as u64) << self.worker_bits;
        Some((above_worker | worker as u64) << self.sequence_bits)
    }

    /// The id in `slot` (a timestamp in ticks, then the sequence) of the worker id behind `node`.
    pub const fn compose(self, node: u64, slot: u64) -> u64 {
        let timestamp = slot >> self.sequence_bits;
        let sequence = slot & ((1 << self.sequence_bits) - 1);
        (timestamp << (self.datacenter_bits + self.worker_bits + self.sequence_bits)) | node | sequence
    }

    /// Appends the ids of `slots` to `out`, one run a tick.
    pub fn emit(self, node: u64, slots: Slots, out: &mut Vec<IdRange>) {
        let mut slot = slots.start();
        while slot < slots.end() {
            let tick_end = ((slot >> self.sequence_bits) + 1) << self.sequence_bits;
            let end = tick_end.min(slots.end());
            let first = self.compose(node, slot);
            // `None` only for id 0, which no sequencer gives: its word starts above tick 0.
            if let Some(range) = IdRange::new(first, first + (end - slot)) {
                push_range(out, range);
            }
            slot = end;
        }
    }

    /// The parts of `id`; `None` when it has more bits than the layout, so that it can't be one of its ids.
    pub fn decompose(self, id: u64) -> Option<Parts> {
        let low = |value: u64, bits: u32| u32::try_from(value & ((1 << bits) - 1)).ok();
        let above_sequence = id >> self.sequence_bits;
        let above_worker = above_sequence >> self.worker_bits;
        let timestamp = above_worker >> self.datacenter_bits;
        if timestamp > self.max_timestamp() {
            return None;
        }
        Some(Parts {
            timestamp_ms: self.epoch_millis + timestamp,
            datacenter: low(above_worker, self.datacenter_bits)?,
            worker: low(above_sequence, self.worker_bits)?,
            sequence: low(id, self.sequence_bits)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EPOCH: u64 = 1_577_808_000_000;

    fn default_layout() -> Layout {
        Layout::new(EPOCH, [41, 5, 5, 12]).expect("valid")
    }

    prop_compose! {
        fn any_layout()(t in 31_u32..=41, d in 0_u32..=6, w in 0_u32..=8, s in 1_u32..=12)
            (bits in Just([t, d, w, s.min(63 - t - d - w)])) -> Layout {
            Layout::new(EPOCH, bits).expect("valid")
        }
    }

    proptest! {
        #[test]
        fn decomposing_gives_back_what_was_composed(
            layout in any_layout(), tick: u64, datacenter: u32, worker: u32, sequence: u64,
        ) {
            let tick = tick % (layout.max_timestamp() + 1);
            let (datacenter, worker) = (datacenter % layout.datacenters(), worker % layout.workers());
            let sequence = sequence % (1 << layout.sequence_bits());
            let node = layout.node(datacenter, worker).expect("in range");
            let id = layout.compose(node, (tick << layout.sequence_bits()) | sequence);
            prop_assert!(id < 1 << 63);
            let parts = layout.decompose(id).expect("its own id");
            let sequence = u32::try_from(sequence).expect("narrow");
            prop_assert_eq!(parts, Parts { timestamp_ms: EPOCH + tick, datacenter, worker, sequence });
        }
    }

    #[test]
    fn widths_that_do_not_fit_are_refused_by_key() {
        for (bits, key) in [
            ([30, 5, 5, 12], "snowflake.timestamp_bits"),
            ([41, 11, 5, 6], "snowflake.datacenter_bits"),
            ([41, 0, 15, 7], "snowflake.worker_bits"),
            ([41, 5, 5, 0], "snowflake.sequence_bits"),
            ([41, 5, 6, 12], "snowflake.timestamp_bits"),
        ] {
            assert_eq!(Layout::new(EPOCH, bits).expect_err("too wide").key, key, "{bits:?}");
        }
    }

    #[test]
    fn ids_of_js53_are_exact_in_a_double() {
        let layout = Layout::js53(EPOCH).expect("valid");
        let last = (layout.max_timestamp() << 7) | 127;
        assert_eq!(layout.compose(layout.node(0, 31).expect("in range"), last), (1 << 53) - 1);
        assert_eq!(layout.decompose(1 << 53), None);
    }

    #[test]
    fn the_text_and_the_end_of_the_default_layout_are_fixed() {
        let layout = default_layout();
        assert_eq!(layout.text(), "epoch=1577808000000 bits=41/5/5/12 tick=1ms");
        assert_eq!(crate::clock::rfc3339(layout.exhaustion()), "2089-09-06T07:47:35.552Z");
        assert_eq!((layout.tick(0), layout.tick(EPOCH + 7), layout.tick(u64::MAX)), (0, 7, layout.max_timestamp() + 1));
        assert_eq!(layout.node(32, 0), None);
        assert_eq!(layout.node(0, 32), None);
    }

    #[test]
    fn a_run_over_ticks_is_one_range_a_tick() {
        let layout = default_layout();
        let node = layout.node(1, 2).expect("in range");
        let mut out = Vec::new();
        layout.emit(node, Slots::new(7 * 4096 + 4090, 9 * 4096 + 3), &mut out);
        let sizes: Vec<u64> = out.iter().map(|range| range.len()).collect();
        assert_eq!(sizes, [6, 4096, 3]);
        assert!(out.windows(2).all(|pair| pair[0].last() < pair[1].start()));
    }
}
