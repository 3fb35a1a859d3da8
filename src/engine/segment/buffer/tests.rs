//! The buffer against a model of the store, and its rules one by one.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use super::*;
use crate::ids::total;

const NOW: Boot = Boot(1_000_000_000);

fn range(first: u64, last: u64) -> IdRange {
    IdRange::new(first, last + 1).expect("a range")
}

fn grant(first: u64, last: u64) -> Grant {
    Grant { range: range(first, last), nonce: u128::from(last) }
}

fn buffer() -> Buffer {
    Buffer::new(0, 800, Rules::default())
}

/// A buffer that was given `ranges` in answer to refills that took no time.
fn filled(ranges: &[(u64, u64)]) -> Buffer {
    let mut buffer = buffer();
    for (first, last) in ranges {
        assert_eq!(buffer.install(grant(*first, *last), NOW), Ok(false));
    }
    buffer
}

fn take(buffer: &mut Buffer, demand: Demand) -> (Taken, Vec<IdRange>) {
    let mut out = Vec::new();
    let taken = buffer.take(demand, NOW, &mut out);
    (taken, out)
}

fn backend() -> Refusal {
    Refusal::Backend("no".into())
}

#[test]
fn the_next_segment_is_fetched_at_the_threshold_and_only_once() {
    let mut buffer = filled(&[(1, 1000)]);
    take(&mut buffer, Demand::Singles(799));
    assert!(!buffer.start_refill(NOW));
    take(&mut buffer, Demand::Singles(1));
    assert!(buffer.refill_due() && buffer.start_refill(NOW));
    assert!(!buffer.refill_due() && !buffer.start_refill(NOW), "one is in flight");
    assert_eq!(buffer.refill_count(1000, 10_000), 1000);
    assert_eq!(buffer.install(grant(1001, 2000), NOW), Ok(false));
    take(&mut buffer, Demand::Singles(100));
    assert!(!buffer.refill_due(), "the next one is there");
}

#[test]
fn a_segment_that_lasts_less_than_ten_refills_has_the_next_one_fetched_at_once() {
    let after = |millis| NOW.plus(Duration::from_millis(millis));
    for (lasted, at_once) in [(99, true), (100, false)] {
        let (mut buffer, mut out) = (buffer(), Vec::new());
        for (first, last) in [(1, 10), (11, 20)] {
            assert_eq!(buffer.take(Demand::Singles(10), NOW, &mut out), Taken::Wait);
            assert!(buffer.start_refill(NOW));
            assert_eq!(buffer.install(grant(first, last), after(10)), Ok(false));
            assert_eq!(buffer.take(Demand::Singles(9), after(10), &mut out), Taken::All);
        }
        // The second segment has been current since then; the third one follows when it is used up.
        buffer.install(grant(21, 30), after(10)).expect("in order");
        assert_eq!(buffer.take(Demand::Singles(2), after(10 + lasted), &mut out), Taken::All);
        assert_eq!(buffer.start_refill(after(10 + lasted)), at_once, "a refill takes 10 ms, it lasted {lasted} ms");
    }
}

#[test]
fn a_batch_uses_current_then_next_then_one_refill_and_is_never_given_in_part() {
    let mut buffer = filled(&[(1, 10), (21, 30)]);
    take(&mut buffer, Demand::Singles(5));
    let (taken, out) = take(&mut buffer, Demand::Batch(40));
    assert_eq!((taken, total(&out), buffer.remaining()), (Taken::Wait, 0, 15));
    assert!(buffer.start_refill(NOW));
    assert_eq!(buffer.refill_count(10, 100), 25, "what is not covered");
    assert_eq!(buffer.install(grant(41, 65), NOW), Ok(false));
    let (taken, out) = take(&mut buffer, Demand::Batch(40));
    assert_eq!((taken, out), (Taken::All, vec![range(6, 10), range(21, 30), range(41, 65)]));
    assert_eq!(buffer.remaining(), 0);
}

#[test]
fn requests_that_give_up_leave_three_ranges_and_the_next_one_is_served_by_one_refill() {
    let mut buffer = filled(&[(1, 10), (11, 20)]);
    let mut last = 20;
    for n in (1..50).map(|n| n * 100) {
        let before = buffer.remaining();
        assert_eq!(take(&mut buffer, Demand::Batch(n)).0, Taken::Wait, "{n} of {before}");
        assert!(buffer.start_refill(NOW));
        let count = buffer.refill_count(10, 1000);
        assert_eq!(buffer.install(grant(last + 1, last + count), NOW), Ok(false), "one is enough");
        last += count;
        assert!(buffer.queue.len() <= 2, "current, next and one refill");
        assert_eq!(buffer.remaining(), n, "no more than the largest request");
        // It would be served now, but its client is gone.
    }
    assert_eq!(take(&mut buffer, Demand::Batch(4900)).0, Taken::All);
    let dropped: u64 = buffer.drain_lost().iter().map(|(_, n)| n).sum();
    assert_eq!((buffer.remaining(), dropped), (0, last - 4900));
}

#[test]
fn a_stop_keeps_every_range_for_the_tail() {
    let mut buffer = filled(&[(1, 10), (11, 20)]);
    assert_eq!(take(&mut buffer, Demand::Batch(40)).0, Taken::Wait);
    assert!(buffer.start_refill(NOW));
    assert_eq!(buffer.install(grant(21, 40), NOW), Ok(false));
    assert_eq!(take(&mut buffer, Demand::Batch(60)).0, Taken::Wait);
    assert!(buffer.start_refill(NOW));
    buffer.close(backend());
    assert_eq!(buffer.install(grant(41, 70), NOW), Ok(false));
    assert_eq!(take(&mut buffer, Demand::Singles(1)), (Taken::Refused(backend()), vec![]));
    assert_eq!((buffer.tail(), buffer.drain_lost()), (Some((range(1, 70), 70)), vec![]));
}

#[test]
fn consecutive_ids_drop_what_is_too_short_only_when_the_longer_range_is_there() {
    let mut buffer = filled(&[(1, 10), (11, 20)]);
    take(&mut buffer, Demand::Singles(7));
    assert_eq!(take(&mut buffer, Demand::Consecutive(3)).1, [range(8, 10)], "they fit");
    take(&mut buffer, Demand::Singles(5));
    let (taken, _) = take(&mut buffer, Demand::Consecutive(30));
    assert_eq!((taken, buffer.remaining(), buffer.drain_lost()), (Taken::Wait, 5, vec![]));
    assert!(buffer.start_refill(NOW));
    assert_eq!(buffer.refill_count(10, 100), 30, "one range of at least n, whatever is left");
    take(&mut buffer, Demand::Singles(2));
    assert_eq!(buffer.install(grant(21, 50), NOW), Ok(false));
    let (taken, out) = take(&mut buffer, Demand::Consecutive(30));
    assert_eq!((taken, out), (Taken::All, vec![range(21, 50)]));
    assert_eq!(buffer.drain_lost(), [("incrby", 3)]);
}

#[test]
fn a_refill_covers_those_who_wait_and_the_next_one_those_who_came_meanwhile() {
    let mut buffer = buffer();
    assert_eq!(take(&mut buffer, Demand::Singles(30)).0, Taken::Wait);
    assert!(buffer.start_refill(NOW));
    take(&mut buffer, Demand::Batch(40));
    assert_eq!(
        buffer.refill_count(10, 1000),
        160,
        "asked for before the statement was sent, and more like the smaller one"
    );
    take(&mut buffer, Demand::Singles(500));
    assert_eq!(buffer.install(grant(1, 70), NOW), Ok(true), "500 came too late for this one");
    assert!(buffer.is_refilling());
    assert_eq!(buffer.refill_count(10, 1000), 500);
    for demand in [Demand::Singles(30), Demand::Batch(40)] {
        assert_eq!(take(&mut buffer, demand).0, Taken::All);
    }
    assert_eq!(take(&mut buffer, Demand::Singles(500)).0, Taken::Wait);
    assert_eq!(buffer.refill_count(10, 1000), 500, "those who ask again are not counted twice");
    assert_eq!(buffer.install(grant(71, 570), NOW), Ok(false));
    assert_eq!(take(&mut buffer, Demand::Singles(500)).0, Taken::All);
}

#[test]
fn a_refill_is_capped_but_covers_the_largest_single_request() {
    let mut buffer = buffer();
    for _ in 0..100 {
        take(&mut buffer, Demand::Batch(700));
    }
    assert_eq!(buffer.refill_count(10, 1000), 1000);
    take(&mut buffer, Demand::Batch(5000));
    assert_eq!(buffer.refill_count(10, 1000), 5000);
}

#[test]
fn a_failed_refill_refuses_until_its_pause_is_over_and_never_sticks() {
    let mut buffer = filled(&[(1, 10)]);
    assert_eq!(take(&mut buffer, Demand::Singles(15)).0, Taken::Wait);
    assert!(buffer.start_refill(NOW));
    let retry_at = NOW.plus(Duration::from_millis(50));
    buffer.fail(backend(), retry_at);
    assert_eq!(take(&mut buffer, Demand::Singles(1)).0, Taken::Refused(backend()));
    assert!(!buffer.start_refill(NOW));
    let mut out = Vec::new();
    assert_eq!(buffer.take(Demand::Singles(1), retry_at, &mut out), Taken::Wait);
    assert!(buffer.start_refill(retry_at));
    assert_eq!(buffer.install(grant(11, 20), retry_at), Ok(false));
    assert_eq!(take(&mut buffer, Demand::Singles(1)), (Taken::All, vec![range(11, 11)]));
}

#[test]
fn a_floor_cuts_and_drops_what_is_here_and_what_comes() {
    let mut buffer = filled(&[(1, 10), (11, 20), (21, 30)]);
    take(&mut buffer, Demand::Singles(2));
    buffer.raise_floor(15);
    assert_eq!((buffer.remaining(), buffer.drain_lost()), (15, vec![("floor", 8), ("floor", 5)]));
    assert_eq!(take(&mut buffer, Demand::Singles(6)).1, [range(16, 21)]);
    buffer.raise_floor(50);
    buffer.raise_floor(40);
    assert_eq!((buffer.remaining(), buffer.floor()), (0, 50));
    buffer.drain_lost();
    buffer.install(grant(31, 50), NOW).expect("in order");
    buffer.install(grant(51, 60), NOW).expect("in order");
    assert_eq!(
        (take(&mut buffer, Demand::Singles(1)).1, buffer.drain_lost()),
        (vec![range(51, 51)], vec![("floor", 20)])
    );
}

#[test]
fn a_range_below_what_was_received_is_dropped_and_counted() {
    let mut buffer = filled(&[(1, 10), (11, 20)]);
    for (first, last) in [(1, 5), (11, 20), (20, 40)] {
        assert_eq!(buffer.install(grant(first, last), NOW), Err(21));
        assert_eq!(buffer.drain_lost(), [("regression", last - first + 1)]);
    }
    assert_eq!(buffer.remaining(), 20);
}

#[test]
fn the_tail_is_the_run_without_a_gap_that_ends_the_last_grant() {
    /// The ranges that were granted, how many ids were used, and the tail.
    type Case = (&'static [(u64, u64)], u64, Option<(u64, u64)>);
    let cases: [Case; 7] = [
        (&[(1, 10)], 3, Some((4, 10))),
        (&[(1, 10), (11, 20)], 3, Some((4, 20))),
        (&[(1, 10), (21, 30)], 3, Some((21, 30))),
        (&[(1, 10), (21, 30), (31, 40)], 3, Some((21, 40))),
        (&[(1, 10), (21, 30)], 12, Some((23, 30))),
        (&[(1, 10)], 10, None),
        (&[], 0, None),
    ];
    for (ranges, used, expected) in cases {
        let mut buffer = filled(ranges);
        take(&mut buffer, Demand::Singles(used));
        assert_eq!(buffer.tail(), None, "not while it serves");
        buffer.close(backend());
        let expected = expected.map(|(first, last)| (range(first, last), u128::from(last)));
        assert_eq!(buffer.tail(), expected, "{ranges:?} with {used} used");
        assert_eq!((buffer.tail(), buffer.remaining()), (None, 0), "once");
        let given = expected.map_or(0, |(range, _)| range.len());
        let lost: u64 = buffer.drain_lost().iter().map(|(_, n)| n).sum();
        assert_eq!(used + given + lost, ranges.iter().map(|(first, last)| last - first + 1).sum::<u64>());
    }
}

#[test]
fn no_tail_reaches_below_a_floor_or_follows_a_grant_that_was_dropped() {
    let mut buffer = filled(&[(1, 10), (11, 20)]);
    buffer.raise_floor(14);
    buffer.close(backend());
    assert_eq!(buffer.tail(), Some((range(15, 20), 20)));
    let mut buffer = filled(&[(1, 10)]);
    assert_eq!(buffer.install(grant(5, 8), NOW), Err(11));
    buffer.close(backend());
    assert_eq!(buffer.tail(), None, "the row ends with another grant");
    let mut buffer = filled(&[(1, 10)]);
    buffer.raise_floor(10);
    buffer.close(backend());
    assert_eq!(buffer.tail(), None);
}

#[test]
fn a_closed_buffer_serves_nothing_but_keeps_a_late_grant_for_the_tail() {
    let mut buffer = filled(&[(1, 10)]);
    take(&mut buffer, Demand::Singles(8));
    assert!(buffer.start_refill(NOW));
    buffer.close(backend());
    assert_eq!(buffer.install(grant(11, 20), NOW), Ok(false));
    for demand in [Demand::Singles(1), Demand::Batch(1), Demand::Consecutive(1)] {
        assert_eq!(take(&mut buffer, demand), (Taken::Refused(backend()), vec![]));
    }
    assert!(!buffer.start_refill(NOW));
    assert_eq!(buffer.tail(), Some((range(9, 20), 20)));
}

#[derive(Clone, Debug)]
enum Event {
    Take(Demand),
    Granted,
    Failed,
    OtherNode(u64),
    Rewound(u64),
    GrantDelayed(u64),
    DelayedArrives,
    Floor(u64),
    Passes(u64),
    Retired,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let demand = (1..60_u64)
        .prop_flat_map(|n| prop_oneof![Just(Demand::Singles(n)), Just(Demand::Batch(n)), Just(Demand::Consecutive(n))]);
    let event = prop_oneof![
        20 => demand.prop_map(Event::Take),
        12 => Just(Event::Granted),
        2 => Just(Event::Failed),
        2 => (1..50_u64).prop_map(Event::OtherNode),
        1 => (1..200_u64).prop_map(Event::Rewound),
        2 => (1..50_u64).prop_map(Event::GrantDelayed),
        2 => Just(Event::DelayedArrives),
        1 => (0..80_u64).prop_map(Event::Floor),
        3 => (1..2_000_000_000_u64).prop_map(Event::Passes),
        1 => Just(Event::Retired),
    ];
    proptest::collection::vec(event, 1..120)
}

/// The store, the node's clock and what has been promised so far.
#[derive(Default)]
struct Model {
    max_id: u64,
    now: u64,
    last_issued: u64,
    floor: u64,
    retired: bool,
    delayed: Vec<Grant>,
}

impl Model {
    fn grant(&mut self, count: u64) -> Grant {
        self.max_id += count;
        grant(self.max_id - count + 1, self.max_id)
    }

    fn install(&mut self, buffer: &mut Buffer, grant: Grant) {
        if let Err(end) = buffer.install(grant, Boot(self.now)) {
            // What the shell does: the row is raised, and the next attempt goes above it.
            self.max_id = self.max_id.max(end - 1);
            let again = self.grant(10);
            assert!(buffer.install(again, Boot(self.now)).is_ok(), "a raised row is accepted");
        }
    }

    fn take(&mut self, buffer: &mut Buffer, demand: Demand) -> Result<(), String> {
        let (mut out, before) = (Vec::new(), buffer.remaining());
        let taken = buffer.take(demand, Boot(self.now), &mut out);
        let refill = buffer.start_refill(Boot(self.now));
        let (got, n) = (total(&out), demand.count());
        for range in &out {
            if range.start() <= self.last_issued || range.start() <= self.floor || self.retired {
                return Err(format!("{range:?} after {} with floor {}", self.last_issued, self.floor));
            }
            self.last_issued = range.last();
        }
        let fits = match demand {
            Demand::Singles(_) => got <= n,
            Demand::Batch(_) => got == 0 || got == n,
            Demand::Consecutive(_) => got == 0 || (got == n && out.len() == 1),
        };
        let told = (taken == Taken::All) == (got == n);
        let waits = taken != Taken::Wait || refill || buffer.is_refilling();
        let lost: u64 = buffer.drain_lost().iter().map(|(_, n)| n).sum();
        if fits && told && waits && before == buffer.remaining() + got + lost {
            Ok(())
        } else {
            Err(format!("{demand:?} got {out:?} and {taken:?}"))
        }
    }
}

fn check(events: &[Event], rules: Rules) -> Result<(), String> {
    let (mut buffer, mut model) = (Buffer::new(0, 800, rules), Model { now: 1, ..Model::default() });
    for event in events {
        match event {
            Event::Take(demand) => model.take(&mut buffer, *demand)?,
            Event::Granted if buffer.is_refilling() => {
                let granted = model.grant(buffer.refill_count(20, 100));
                model.install(&mut buffer, granted);
            }
            Event::Failed if buffer.is_refilling() => buffer.fail(backend(), Boot(model.now + 1000)),
            Event::OtherNode(n) => model.max_id += n,
            Event::Rewound(n) => model.max_id = model.max_id.saturating_sub(*n),
            Event::GrantDelayed(n) => {
                let granted = model.grant(*n);
                model.delayed.push(granted);
            }
            Event::DelayedArrives => {
                if let Some(granted) = model.delayed.pop() {
                    model.install(&mut buffer, granted);
                }
            }
            Event::Floor(n) => {
                model.floor = model.floor.max(model.last_issued + n);
                model.max_id = model.max_id.max(model.floor);
                buffer.raise_floor(model.floor);
            }
            Event::Passes(nanos) => model.now += nanos,
            Event::Retired if events.len() > 100 => {
                model.retired = true;
                buffer.close(Refusal::Retired);
                buffer.clear("stop");
            }
            Event::Granted | Event::Failed | Event::Retired => {}
        }
        buffer.drain_lost();
        if buffer.queue.len() > MAX_QUEUED && !buffer.is_closed() {
            return Err(format!("{:?} wait behind current", buffer.queue));
        }
    }
    Ok(())
}

fn run(rules: Rules) -> Result<(), TestError<Vec<Event>>> {
    let config = Config { cases: 4000, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    )
    .run(&events(), |events| check(&events, rules).map_err(TestCaseError::fail))
}

#[test]
fn ids_increase_above_the_floor_and_batches_are_whole_whatever_happens() {
    if let Err(error) = run(Rules::default()) {
        panic!("{error}");
    }
}

#[test]
fn the_model_finds_a_buffer_that_accepts_lower_ranges() {
    assert!(matches!(run(Rules { accept_lower: true, ..Rules::default() }), Err(TestError::Fail(..))), "B17");
}

#[test]
fn the_model_finds_a_buffer_that_replaces_newer_ranges_by_late_ones() {
    assert!(matches!(run(Rules { late_replaces: true, ..Rules::default() }), Err(TestError::Fail(..))), "B12");
}
