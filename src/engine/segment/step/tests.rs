//! The step under loads of days, in virtual time, and its rules one by one.

use proptest::prelude::*;

use super::*;
use crate::engine::Demand;
use crate::engine::segment::buffer::{Rules, Taken};
use crate::ids::{IdRange, total};
use crate::store::{EngineKind, Grant, Order};

const START: Boot = Boot(1_000_000_000);

fn definition(step: u64, min_step: u64, max_step: u64) -> Definition {
    Definition {
        engine: EngineKind::Segment,
        order: Order::Node,
        step,
        min_step,
        max_step,
        id_limit: crate::ids::MAX_ID,
        qps: 0,
        burst: 0,
        critical: false,
        description: String::new(),
    }
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A step of 1000 between 100 and 1 000 000 whose segment has started at [`START`] with one id used before.
fn started() -> Step {
    let mut step = Step::new(&definition(1000, 100, 1_000_000), START);
    assert_eq!(step.judge(1, Some(1), START), None);
    step
}

#[test]
fn the_step_stays_within_bounds_that_make_sense() {
    for (step, min_step, max_step, expected) in
        [(1000, 100, 10_000, 1000), (0, 100, 1000, 100), (5000, 100, 1000, 1000), (0, 0, 0, 1), (7, 9, 3, 9)]
    {
        let step = Step::new(&definition(step, min_step, max_step), START);
        assert_eq!(step.next_step(), expected);
        assert!(step.most() >= step.next_step());
    }
}

#[test]
fn four_fifths_within_a_minute_double_it_once_a_segment() {
    for (used, after, expected) in [(799, 0, 1000), (800, 0, 2000), (800, 60, 2000), (800, 61, 1000), (1000, 1, 2000)] {
        let mut step = started();
        let changed = step.judge(1 + used, None, START.plus(seconds(after)));
        assert_eq!(step.next_step(), expected, "{used} in {after} s");
        assert_eq!(changed, (expected == 2000).then_some(Reason::Doubled));
    }
    let mut step = started();
    for used in 801..=1001 {
        step.judge(used, None, START.plus(seconds(30)));
    }
    assert_eq!((step.next_step(), step.reason()), (2000, "doubled"));
    // The next segment counts anew.
    step.judge(1001, Some(1001), START.plus(seconds(31)));
    assert_eq!(step.judge(2600, None, START.plus(seconds(91))), None);
    assert_eq!(step.judge(2601, None, START.plus(seconds(91))), Some(Reason::Doubled));
}

#[test]
fn a_rush_in_the_middle_of_an_old_segment_is_seen_within_its_minute() {
    let mut step = started();
    let monday = START.plus(seconds(3 * 86_400));
    assert_eq!(step.judge(2, None, monday), Some(Reason::Halved));
    assert_eq!((step.next_step(), step.reason()), (100, "floor"));
    // Ids of a segment that was granted when the step was large.
    assert_eq!(step.judge(50_002, None, monday.plus(seconds(20))), Some(Reason::Doubled));
    assert_eq!(step.next_step(), 102_400);
}

#[test]
fn less_than_a_fifth_in_ten_minutes_halves_it_and_idle_hours_do_so_many_times() {
    for (used, after, expected) in
        [(199, 599, 1000), (199, 600, 500), (200, 600, 1000), (1, 1200, 250), (1, 1800, 125), (1, 36_000, 100)]
    {
        let mut step = started();
        let changed = step.judge(used, None, START.plus(seconds(after)));
        assert_eq!(step.next_step(), expected, "{used} in {after} s");
        assert_eq!(changed, (expected < 1000).then_some(Reason::Halved));
    }
}

#[test]
fn who_had_to_wait_raises_it_at_once_and_a_first_request_does_not() {
    let starved = |waited, cold| {
        let mut step = started();
        let changed = step.starved(Starved { waited, cold });
        (step.next_step(), changed.map(Reason::name), step.reason())
    };
    assert_eq!(starved(1, false), (2000, Some("starved"), "starved"));
    assert_eq!(starved(5000, false), (5000, Some("starved"), "starved"));
    assert_eq!(starved(1000, true), (1000, None, "defined"));
    assert_eq!(starved(1001, true), (2000, Some("starved"), "starved"));
    assert_eq!(starved(u64::MAX, true), (1_000_000, Some("starved"), "ceiling"));
}

#[test]
fn a_changed_step_starts_anew_and_changed_bounds_clamp() {
    let mut step = started();
    step.starved(Starved { waited: 64_000, cold: false });
    let now = START.plus(seconds(1));
    assert_eq!(step.redefine(&definition(1000, 100, 1_000_000), 1, now), None, "something else was altered");
    assert_eq!((step.next_step(), step.reason()), (64_000, "starved"));
    assert_eq!(step.redefine(&definition(1000, 100, 50_000), 1, now), Some(Reason::Defined));
    assert_eq!((step.next_step(), step.reason()), (50_000, "ceiling"));
    assert_eq!(step.redefine(&definition(2000, 100, 50_000), 1, now), Some(Reason::Defined));
    assert_eq!((step.next_step(), step.reason()), (2000, "defined"));
    assert_eq!(step.redefine(&definition(2000, 3000, 50_000), 1, now), Some(Reason::Defined));
    assert_eq!((step.next_step(), step.reason()), (3000, "floor"));
}

#[test]
fn a_tag_that_was_never_used_keeps_its_step() {
    let mut step = Step::new(&definition(1000, 100, 10_000), START);
    assert_eq!(step.judge(0, None, START.plus(seconds(86_400))), None);
    assert_eq!(step.judge(0, Some(0), START.plus(seconds(86_400))), None);
    assert_eq!(step.judge(1, None, START.plus(seconds(86_401))), None);
    assert_eq!(step.next_step(), 1000);
}

/// One tag of one node over a store whose grants take a tick.
struct Node {
    buffer: Buffer,
    step: Step,
    now: Boot,
    max_id: u64,
    asked: Option<u64>,
    grants: u64,
    issued: u64,
    waiting: u64,
    /// Ticks in which somebody waited.
    waits: u64,
    bounds: (u64, u64),
}

const TICK: Duration = Duration::from_millis(200);

impl Node {
    fn new(definition: &Definition) -> Self {
        Self {
            buffer: Buffer::new(0, 800, Rules::default()),
            step: Step::new(definition, START),
            now: START,
            max_id: 0,
            asked: None,
            grants: 0,
            issued: 0,
            waiting: 0,
            waits: 0,
            bounds: (definition.min_step, definition.max_step),
        }
    }

    fn adapt(&mut self) -> u64 {
        self.step.follow(&mut self.buffer, self.now);
        let step = self.step.next_step();
        assert!((self.bounds.0..=self.bounds.1).contains(&step), "{step} at {:?}", self.now);
        step
    }

    /// A tick in which `n` more ids are asked for.
    fn tick(&mut self, n: u64) {
        self.now = self.now.plus(TICK);
        if let Some(count) = self.asked.take() {
            let range = IdRange::new(self.max_id + 1, self.max_id + count + 1).expect("a range");
            self.max_id += count;
            if self.buffer.install(Grant { range, nonce: 1 }, self.now).expect("in order") {
                self.ask();
            }
            self.adapt();
        }
        self.waiting += n;
        if self.waiting > 0 {
            let mut out: Vec<IdRange> = Vec::new();
            let taken = self.buffer.take(Demand::Singles(self.waiting), self.now, &mut out);
            self.issued += total(&out);
            self.waiting -= total(&out);
            self.waits += u64::from(taken == Taken::Wait);
            if self.buffer.is_due(self.now) {
                if self.buffer.start_refill(self.now) {
                    self.ask();
                }
                self.adapt();
            }
        }
    }

    fn ask(&mut self) {
        let step = self.adapt();
        self.asked = Some(self.buffer.refill_count(step, self.step.most()));
        self.grants += 1;
    }

    /// So many seconds at `rate` ids a second; gives how many statements and ids that were.
    fn run(&mut self, seconds: u64, rate: u64) -> (u64, u64) {
        let (grants, issued) = (self.grants, self.issued);
        for tick in 0..seconds * 5 {
            // Whole ids: the fraction comes in turns.
            self.tick(rate * (tick + 1) / 5 - rate * tick / 5);
        }
        (self.grants - grants, self.issued - issued)
    }
}

#[test]
fn a_week_of_days_nights_bursts_and_an_idle_weekend() {
    const DAY: [u64; 24] = [
        5, 5, 5, 5, 5, 20, 100, 800, 2000, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 3000, 2000, 900, 300, 100, 50, 20,
        5,
    ];
    let mut node = Node::new(&definition(1000, 100, 1_000_000));
    for day in 0..5 {
        for (hour, rate) in DAY.iter().enumerate() {
            if hour == 12 {
                node.run(20, 40_000);
                let during = node.adapt();
                assert!(during > 200_000, "{during} in a burst");
            }
            let waits = node.waits;
            let (grants, issued) = node.run(3600, *rate);
            if (9..=16).contains(&hour) {
                assert!(grants * 1_000_000 <= 20 * issued, "day {day}, {hour}: {grants} statements for {issued} ids");
                assert_eq!(node.waits, waits, "nobody waits once it is adapted");
            }
            let step = node.adapt();
            match hour {
                4 => assert!((375..=15_000).contains(&step), "day {day}: {step} at 5 ids a second"),
                15 => assert!((225_000..=1_000_000).contains(&step), "day {day}: {step} at 3000 ids a second"),
                _ => {}
            }
        }
    }
    node.run(2 * 86_400, 0);
    assert_eq!((node.adapt(), node.step.reason()), (100, "floor"));
    // Monday: what is still in memory is enough to see the rush coming.
    let waits = node.waits;
    node.run(600, 2000);
    assert!(node.waits - waits <= 3, "{} ticks with waiting requests", node.waits - waits);
    let (grants, issued) = node.run(3600, 2000);
    assert!(grants * 1_000_000 <= 20 * issued, "{grants} statements for {issued} ids");
}

#[test]
fn a_steady_load_needs_at_most_twenty_statements_for_a_million_ids_once_adapted() {
    for rate in [700, 1000, 5000, 50_000, 300_000] {
        let mut node = Node::new(&definition(1000, 100, 1_000_000));
        node.run(1800, rate);
        let waits = node.waits;
        let (grants, issued) = node.run(7200, rate);
        assert!(grants * 1_000_000 <= 20 * issued, "{rate}/s: {grants} statements for {issued} ids");
        assert_eq!(node.waits, waits, "{rate}/s");
    }
}

#[test]
fn a_burst_is_forgotten_and_an_alter_in_the_middle_of_one_holds() {
    let mut node = Node::new(&definition(1000, 100, 1_000_000));
    node.run(60, 50_000);
    assert_eq!((node.adapt(), node.step.reason()), (1_000_000, "ceiling"));
    node.bounds = (500, 20_000);
    node.step.redefine(&definition(1000, 500, 20_000), node.buffer.used(), node.now);
    assert_eq!(node.adapt(), 20_000);
    node.run(60, 50_000);
    assert_eq!((node.adapt(), node.step.reason()), (20_000, "ceiling"));
    node.run(7200, 1);
    assert!(node.adapt() <= 3000, "{} at one id a second", node.adapt());
}

#[derive(Clone, Debug)]
enum Event {
    Passes(u64),
    Used(u64),
    Started,
    Starved(u64, bool),
    Altered(u64, u64, u64),
}

fn event() -> impl Strategy<Value = Event> {
    let ids = prop_oneof![0..3000_u64, 0..u64::MAX / 1_000_000];
    prop_oneof![
        prop_oneof![0..200_000_000_000_u64, 0..u64::MAX / 1000].prop_map(Event::Passes),
        ids.clone().prop_map(Event::Used),
        Just(Event::Started),
        (ids.clone(), any::<bool>()).prop_map(|(n, cold)| Event::Starved(n, cold)),
        (ids.clone(), ids.clone(), ids).prop_map(|(step, min, max)| Event::Altered(step, min, max)),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_it_stays_in_bounds_and_changes_are_told(events in prop::collection::vec(event(), 1..60)) {
        let mut row = definition(1000, 100, 10_000);
        let mut step = Step::new(&row, START);
        let (mut now, mut used, mut fresh) = (START, 0_u64, None);
        for event in events {
            let before = step.next_step();
            let changed = match event {
                Event::Passes(nanos) => {
                    now = now.plus(Duration::from_nanos(nanos));
                    step.judge(used, fresh.take(), now)
                }
                Event::Used(n) => {
                    used += n;
                    step.judge(used, fresh.take(), now)
                }
                Event::Started => {
                    fresh = Some(used);
                    None
                }
                Event::Starved(waited, cold) => step.starved(Starved { waited, cold }),
                Event::Altered(step_, min, max) => {
                    row = definition(step_, min, max);
                    step.redefine(&row, used, now)
                }
            };
            let next = step.next_step();
            prop_assert!(next >= row.min_step.max(1) && next <= row.max_step.max(row.min_step).max(1));
            prop_assert_eq!(changed.is_some(), next != before);
            match changed {
                Some(Reason::Doubled | Reason::Starved) => prop_assert!(next > before),
                Some(Reason::Halved) => prop_assert!(next < before),
                _ => {}
            }
        }
    }

    #[test]
    fn more_use_never_lowers_it_and_more_time_never_raises_it(
        used in 0..5000_u64, more in 0..5000_u64, after in 0..8000_u64, longer in 0..8000_u64,
    ) {
        let judged = |used, after| {
            let mut step = started();
            step.judge(1 + used, None, START.plus(seconds(after)));
            step.next_step()
        };
        prop_assert!(judged(used + more, after) >= judged(used, after));
        prop_assert!(judged(used, after + longer) <= judged(used, after));
    }
}
