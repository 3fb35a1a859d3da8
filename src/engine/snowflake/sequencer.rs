//! The hot path of the Snowflake engine: one atomic word, and a limit it never reaches.
//!
//! The word is the next free *slot*, `timestamp << sequence_bits | sequence`; taking `n` slots moves it up by `n`, so
//! within one object no slot is given twice and later takes get higher slots, whatever the clock does. A slot at or
//! above the limit (the end of the confirmed windows) is never given. The word starts at the lower edge of the window,
//! so neither an old clock reading nor a change of the worker id leads below it. A tick that the clock enters starts at
//! one of 16 places, so that slow tags don't yield only even ids; one that is entered because its predecessor is full
//! starts at 0. A batch needs only its first slot within the borrowed time: held back until all of it fits, it would
//! starve beside single requests; what it takes ahead, those who come later wait for. Pure: the time is an argument.

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
    /// All within one tick; at most [`most_in_one_tick`], so that they fit in any.
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
#[expect(clippy::struct_excessive_bools, reason = "independent switches, one a mistake")]
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
    /// A sequencer for the window `start.edge .. limit` (ticks since the epoch). `predecessor`, if there is one, is
    /// closed and the word starts in the tick after its last one. `borrow`: how many ticks ahead of the clock a take
    /// may start.
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

    /// Takes slots at the time `now`, in ticks since the epoch. Never blocks: a lost race is tried again, and somebody
    /// else has won then.
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

    /// Raises the limit to `limit` (ticks since the epoch), which a confirmed answer of the registry has allowed. The
    /// word goes up to `now` before, so that no old clock reading enters time that has passed unused.
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

/// Where the sequence of a tick starts: spread over 16 places by a multiplicative hash, so that requests which come
/// every 2, 4 or 10 ms meet different places, too.
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
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use arc_swap::ArcSwap;
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    const BITS: u32 = 8;
    const BORROW: u64 = 3;

    #[derive(Clone, Debug)]
    enum Op {
        /// Takes with a clock reading that is so old.
        Take(Want, u64),
        /// Moves the clock, in either direction.
        Clock(i64),
        /// Extends the window.
        Raise(u64),
        /// Claims another worker id whose window starts so far from the clock.
        Reopen(i64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let want = prop_oneof![
            (1_u64..600).prop_map(Want::UpTo),
            (1_u64..600).prop_map(Want::All),
            (1_u64..=240).prop_map(Want::InOneTick),
        ];
        prop_oneof![
            8 => (want, 0_u64..6).prop_map(|(want, age)| Op::Take(want, age)),
            3 => (-5_i64..6).prop_map(Op::Clock),
            1 => (1_u64..40).prop_map(Op::Raise),
            1 => (-20_i64..20, 1_u64..60).prop_map(|(edge, window)| Op::Reopen(edge, window)),
        ]
    }

    /// Runs `ops` and says which promise was broken, if one was.
    fn run(rules: Rules, ops: &[Op]) -> Result<(), String> {
        let mut clock: u64 = 1000;
        let (mut edge, mut limit) = (clock, clock + 50);
        let open = |edge, now, limit, before: Option<&Sequencer>| {
            Sequencer::open(BITS, BORROW, Start { edge, now }, limit, before, rules)
        };
        let mut sequencer = open(edge, clock, limit, None);
        let (mut last, mut last_tick_before) = (0, 0);
        for op in ops {
            match *op {
                Op::Clock(by) => clock = clock.saturating_add_signed(by).max(10),
                Op::Raise(by) => {
                    limit += by;
                    sequencer.raise(limit, clock);
                }
                Op::Reopen(from_clock, window) => {
                    last_tick_before = last >> BITS;
                    edge = clock.saturating_add_signed(from_clock);
                    limit = edge.max(clock) + window;
                    sequencer = open(edge, clock, limit, Some(&sequencer));
                }
                Op::Take(want, age) => {
                    let now = clock - age;
                    let Ok(slots) = sequencer.take(want, now) else { continue };
                    let (first, last_slot) = (slots.start(), slots.end() - 1);
                    if first <= last {
                        return Err(format!("slot {first} comes after slot {last}"));
                    }
                    if first >> BITS <= last_tick_before {
                        return Err("a new worker id's timestamp is not above the old one's".into());
                    }
                    if first >> BITS < edge || last_slot >> BITS >= limit {
                        return Err(format!("slots {first}..={last_slot} leave the window {edge}..{limit}"));
                    }
                    if first >> BITS > now + BORROW {
                        return Err("more time was borrowed than allowed".into());
                    }
                    let (count, one_tick) = (slots.count(), first >> BITS == last_slot >> BITS);
                    let served = match want {
                        Want::UpTo(n) => (1..=n).contains(&count),
                        Want::All(n) => count == n,
                        Want::InOneTick(n) => count == n && one_tick,
                    };
                    if !served {
                        return Err(format!("{want:?} got {slots:?}"));
                    }
                    last = last_slot;
                }
            }
        }
        Ok(())
    }

    /// What a search over random runs finds, shrunk.
    fn search(rules: Rules) -> Result<(), String> {
        let config = Config { cases: 2000, failure_persistence: None, ..Config::default() };
        TestRunner::new(config)
            .run(&prop::collection::vec(op(), 1..80), |ops| run(rules, &ops).map_err(TestCaseError::fail))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn slots_are_unique_increasing_and_inside_their_window() {
        assert_eq!(search(Rules::default()), Ok(()));
    }

    #[test]
    fn t03_catches_b7_a_sequence_reset_when_the_clock_goes_back() {
        search(Rules { follow_rollback: true, ..Rules::default() }).expect_err("a violation");
    }

    #[test]
    fn t03_catches_b8_a_sequence_that_wraps_without_a_new_tick() {
        search(Rules { wrap_sequence: true, ..Rules::default() }).expect_err("a violation");
    }

    #[test]
    fn t02_catches_b19_a_word_that_starts_at_zero() {
        // The clock is read before the object is loaded, and the window starts ahead of it.
        let ops = [Op::Reopen(10, 20), Op::Clock(8), Op::Take(Want::UpTo(1), 0)];
        let wrong = Rules { start_at_zero: true, ..Rules::default() };
        assert!(run(wrong, &ops).expect_err("a violation").contains("leave the window"));
        assert_eq!(run(Rules::default(), &ops), Ok(()));
        search(wrong).expect_err("a violation");
    }

    #[test]
    fn t11_catches_b22_a_new_worker_id_that_starts_below_the_old_ones_last_timestamp() {
        // Borrowed time puts the old word ahead of the clock; the new worker id's bound has passed long ago.
        let ops = [Op::Take(Want::All(600), 0), Op::Reopen(-20, 20), Op::Take(Want::UpTo(1), 0)];
        let wrong = Rules { forget_predecessor: true, ..Rules::default() };
        run(wrong, &ops).expect_err("a violation");
        assert_eq!(run(Rules::default(), &ops), Ok(()));
        search(wrong).expect_err("a violation");
    }

    fn fresh(limit: u64) -> Sequencer {
        Sequencer::open(BITS, BORROW, Start { edge: 5, now: 5 }, limit, None, Rules::default())
    }

    #[test]
    fn a_full_tick_borrows_and_then_says_until_when_to_wait() {
        let sequencer = fresh(1000);
        let mut taken = 0;
        while let Ok(slots) = sequencer.take(Want::UpTo(100), 5) {
            taken += slots.count();
        }
        assert_eq!(taken, 256 * (BORROW + 1));
        assert_eq!(sequencer.take(Want::UpTo(1), 5), Err(Short::Full { tick: 9, owed: false }));
        assert!(sequencer.take(Want::UpTo(1), 6).is_ok());
    }

    #[test]
    fn a_batch_may_run_ahead_and_the_next_caller_learns_why_he_waits() {
        let sequencer = fresh(1000);
        let slots = sequencer.take(Want::All(256 * 20), 5).expect("served whole");
        assert_eq!(slots.count(), 256 * 20);
        assert_eq!(sequencer.take(Want::UpTo(1), 5), Err(Short::Full { tick: 25, owed: true }));
    }

    #[test]
    fn nothing_leaves_at_the_limit_and_raising_it_goes_on() {
        let sequencer = fresh(7);
        assert!(matches!(sequencer.take(Want::All(256 * 3), 5), Err(Short::OutOfWindow { tick: 7 })));
        assert_eq!(sequencer.take(Want::UpTo(256 * 3), 5).map(Slots::count), Ok(256 * 2), "what the window holds");
        assert_eq!(sequencer.take(Want::UpTo(1), 9), Err(Short::OutOfWindow { tick: 9 }));
        sequencer.raise(20, 10);
        let slots = sequencer.take(Want::UpTo(1), 8).expect("the window goes on");
        assert_eq!(slots.start() >> BITS, 10, "an old reading does not go below the time of the raise");
    }

    #[test]
    fn a_closed_word_stays_closed_and_its_successor_starts_above_it() {
        let old = fresh(1000);
        old.take(Want::All(300), 5).expect("free");
        assert_eq!(old.close(), 6);
        assert_eq!(old.close(), 6);
        old.raise(2000, 50);
        assert_eq!(old.take(Want::UpTo(1), 60), Err(Short::Closed));
        let new = Sequencer::open(BITS, BORROW, Start { edge: 2, now: 4 }, 100, Some(&old), Rules::default());
        assert_eq!(new.take(Want::UpTo(1), 4).map(Slots::start), Ok(7 << BITS));
    }

    #[test]
    fn slow_takes_start_at_many_places() {
        let sequencer = Sequencer::open(12, 10, Start { edge: 1, now: 1 }, 1 << 40, None, Rules::default());
        for every in [1_u64, 2, 10, 16, 1000] {
            let mut places = BTreeSet::new();
            for round in 1..=200 {
                let now = every * 1_000_000 + round * every;
                let slots = sequencer.take(Want::UpTo(1), now).expect("free");
                places.insert(slots.start() & 4095);
            }
            assert!(
                places.len() >= 8 && places.iter().all(|place| *place < START_PLACES),
                "every {every} ms: {places:?}"
            );
        }
        assert_eq!((start_of(12_345, 7), most_in_one_tick(12), most_in_one_tick(1)), (0, 4080, 1));
    }

    /// Four threads take while the object is raised and replaced under them.
    #[test]
    fn threads_never_get_the_same_slot_also_while_objects_are_replaced() {
        const THREADS: u64 = 4;
        const TAKES: u64 = 20_000;
        let clock = Arc::new(AtomicU64::new(100));
        let first = Sequencer::open(6, 2, Start { edge: 100, now: 100 }, 110, None, Rules::default());
        let active = Arc::new(ArcSwap::from_pointee(first));
        let taken: Vec<_> = (0..THREADS)
            .map(|_| {
                let (clock, active) = (Arc::clone(&clock), Arc::clone(&active));
                std::thread::spawn(move || {
                    let mut slots = Vec::new();
                    while (slots.len() as u64) < TAKES {
                        let now = clock.load(Ordering::Relaxed);
                        match active.load().take(Want::UpTo(3), now) {
                            Ok(got) => slots.extend(got.start()..got.end()),
                            Err(_) => {
                                clock.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                    slots
                })
            })
            .collect();
        let mut rounds = 0_u64;
        while !taken.iter().all(std::thread::JoinHandle::is_finished) {
            let now = clock.load(Ordering::Relaxed);
            let old = active.load_full();
            if rounds.is_multiple_of(3) {
                let start = Start { edge: now.saturating_sub(3), now };
                let new = Sequencer::open(6, 2, start, now + 10, Some(&old), Rules::default());
                active.store(Arc::new(new));
            } else {
                old.raise(old.limit().max(now) + 10, now);
            }
            rounds += 1;
            std::thread::yield_now();
        }
        let mut all = BTreeSet::new();
        for thread in taken {
            let slots = thread.join().expect("no panic");
            assert!(slots.windows(2).all(|pair| pair[0] < pair[1]), "one thread's slots increase");
            for slot in slots {
                assert!(all.insert(slot), "slot {slot} was given twice");
            }
        }
        assert!(rounds > 3, "objects were replaced");
    }
}
