//! The hot path of the Snowflake engine: one atomic word, and a limit it never reaches.
//!
//! The word is the next free *slot*, `timestamp << sequence_bits | sequence`; taking `n` slots moves it up by `n`, so within
//! one object no slot is given twice and later takes get higher slots, whatever the clock does. A slot at or above the limit
//! (the end of the confirmed windows) is never given. The word starts at the lower edge of the window, so neither an old
//! clock reading nor a change of the worker id leads below it. A tick that the clock enters starts at one of 16 places, so
//! that slow tags don't yield only even ids; one that is entered because its predecessor is full starts at 0.
//! A batch needs only its first slot within the borrowed time: held back until all of it fits, it would starve beside
//! single requests; what it takes ahead, those who come later wait for. Pure: the time is an argument.

use std::sync::atomic::{AtomicU64, Ordering};

/// A word with this value gives nothing any more, whatever the limit is raised to.
const CLOSED: u64 = u64::MAX;
/// From how many sequence bits on a tick starts at a varying place: below, the slots are too dear.
const VARYING_START_BITS: u32 = 8;
/// Over how many places the start of a tick varies.
pub const START_PLACES: u64 = 16;

/// Consecutive slots, half-open and not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    start: u64,
    end: u64,
}

impl Slots {
    /// The slots `start .. end`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// The first slot.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The slot after the last one.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// How many there are.
    pub const fn count(self) -> u64 {
        self.end - self.start
    }
}

/// How many slots are wanted, 1 or more, and in which shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// At least one of so many.
    UpTo(u64),
    /// All, over as many ticks as it needs.
    All(u64),
    /// All within one tick; at most 2^sequence_bits - 16, so that they fit in any.
    InOneTick(u64),
}

/// Why no slot was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// The first free slot lies in `tick`, further ahead of the clock than may be borrowed. `owed`: a batch that took
    /// slots ahead of time is the reason.
    Full {
        /// The tick of the first free slot.
        tick: u64,
        /// Whether a batch has put the word there.
        owed: bool,
    },
    /// The slots, up to one in `tick`, reach the limit: no confirmed window covers them.
    OutOfWindow {
        /// The tick of the last slot that was wanted.
        tick: u64,
    },
    /// The object has been closed: look for its successor.
    Closed,
}

/// The rules a sequencer follows. The default is right; each switch is a mistake that a named test must catch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// B7: a clock that goes back takes the word with it.
    pub follow_rollback: bool,
    /// B8: a full tick starts over.
    pub wrap_sequence: bool,
    /// B19: a new word starts at 0 instead of the lower edge of its window.
    pub start_at_zero: bool,
    /// B22: a new word starts at the lower edge of its window even if its predecessor went further.
    pub forget_predecessor: bool,
}

/// Where a new word may start at the earliest, in ticks since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The lower edge of the window.
    pub edge: u64,
    /// The time now.
    pub now: u64,
}

/// The word and its limit.
#[derive(Debug)]
pub struct Sequencer {
    word: AtomicU64,
    /// The first slot that no confirmed window covers.
    limit: AtomicU64,
    /// The end of the furthest batch that went beyond the borrowed time.
    owed: AtomicU64,
    /// What the word was when it was closed.
    closed_at: AtomicU64,
    sequence_bits: u32,
    borrow: u64,
    rules: Rules,
}

impl Sequencer {
    /// A sequencer for the window `start.edge .. limit` (ticks since the epoch). `predecessor`, if there is one, is closed
    /// and the word starts in the tick after its last one. `borrow`: how many ticks ahead of the clock a take may start.
    pub fn open(
        sequence_bits: u32,
        borrow: u64,
        start: Start,
        limit: u64,
        predecessor: Option<&Self>,
        rules: Rules,
    ) -> Self {
        // Tick 0 is left out, so that there is no id 0.
        let mut tick = start.edge.max(start.now).max(1);
        if let Some(last) = predecessor.map(Self::close)
            && !rules.forget_predecessor
        {
            tick = tick.max(last + 1);
        }
        if rules.start_at_zero {
            tick = 0;
        }
        Self {
            word: AtomicU64::new(tick << sequence_bits),
            limit: AtomicU64::new(limit << sequence_bits),
            owed: AtomicU64::new(0),
            closed_at: AtomicU64::new(0),
            sequence_bits,
            borrow,
            rules,
        }
    }

    /// Takes slots at the time `now`, in ticks since the epoch. Never blocks: a lost race is tried again, and somebody else
    /// has won then.
    ///
    /// # Errors
    /// Why none were given.
    #[inline]
    pub fn take(&self, want: Want, now: u64) -> Result<Slots, Short> {
        let reach = (now + self.borrow + 1) << self.sequence_bits;
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let mut start = self.first_free(word, now);
            let limit = self.limit.load(Ordering::Acquire);
            let end = match want {
                Want::UpTo(n) => start.saturating_add(n).min(reach).min(limit),
                Want::All(n) => start.saturating_add(n),
                Want::InOneTick(n) => {
                    start = self.first_fit(start, n);
                    start.saturating_add(n)
                }
            };
            if start >= reach || start >= limit || end > limit {
                return Err(self.short(word, start, end, limit));
            }
            match self.word.compare_exchange_weak(word, self.behind(start, end), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    if end > reach {
                        self.owed.fetch_max(end, Ordering::Relaxed);
                    }
                    return Ok(Slots { start, end });
                }
                Err(seen) => word = seen,
            }
        }
    }

    /// Raises the limit to `limit` (ticks since the epoch), which a confirmed answer of the registry has allowed. The word
    /// goes up to `now` before, so that no old clock reading enters time that has passed unused.
    pub fn raise(&self, limit: u64, now: u64) {
        self.word.fetch_max(now << self.sequence_bits, Ordering::AcqRel);
        self.limit.fetch_max(limit << self.sequence_bits, Ordering::AcqRel);
    }

    /// Ends it for good and gives the last tick that may have been used; again gives the same, to the same caller.
    pub fn close(&self) -> u64 {
        let word = self.word.swap(CLOSED, Ordering::AcqRel);
        if word != CLOSED {
            self.closed_at.store(word, Ordering::Release);
        }
        self.last_tick()
    }

    /// The last tick that may have been used.
    pub fn last_tick(&self) -> u64 {
        let word = match self.word.load(Ordering::Acquire) {
            CLOSED => self.closed_at.load(Ordering::Acquire),
            word => word,
        };
        word.saturating_sub(1) >> self.sequence_bits
    }

    /// The first tick that no confirmed window covers.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire) >> self.sequence_bits
    }

    #[inline]
    fn first_free(&self, word: u64, now: u64) -> u64 {
        let tick = word >> self.sequence_bits;
        if now > tick || (self.rules.follow_rollback && now < tick) {
            (now << self.sequence_bits) | start_of(now, self.sequence_bits)
        } else {
            word
        }
    }

    /// The first slot from `start` on that has `n` slots of its tick ahead.
    fn first_fit(&self, start: u64, n: u64) -> u64 {
        let tick = 1 << self.sequence_bits;
        let used = start & (tick - 1);
        if used.saturating_add(n) > tick { start.saturating_add(tick - used) } else { start }
    }

    /// The word after `start .. end` were given.
    #[inline]
    fn behind(&self, start: u64, end: u64) -> u64 {
        if self.rules.wrap_sequence {
            let sequence = (1 << self.sequence_bits) - 1;
            return (start & !sequence) | (end & sequence);
        }
        end
    }

    #[cold]
    fn short(&self, word: u64, start: u64, end: u64, limit: u64) -> Short {
        if word == CLOSED {
            Short::Closed
        } else if start >= limit || end > limit {
            Short::OutOfWindow { tick: end.saturating_sub(1).max(start) >> self.sequence_bits }
        } else {
            let owed = word <= self.owed.load(Ordering::Relaxed);
            Short::Full { tick: start >> self.sequence_bits, owed }
        }
    }
}

/// Where the sequence of a tick starts: spread over 16 places by a multiplicative hash, so that requests which come every
/// 2, 4 or 10 ms meet different places, too.
#[inline]
const fn start_of(tick: u64, sequence_bits: u32) -> u64 {
    if sequence_bits < VARYING_START_BITS {
        return 0;
    }
    tick.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - START_PLACES.trailing_zeros())
}

/// The most consecutive ids that fit in any tick.
pub const fn most_in_one_tick(sequence_bits: u32) -> u64 {
    let most = (1_u64 << sequence_bits).saturating_sub(START_PLACES);
    if most == 0 { 1 } else { most }
}

#[cfg(test)]
#[path = "sequencer_tests.rs"]
mod tests;
