//! The engine over a store in memory that misbehaves, and over SQLite.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::{ManualClock, Wall};
use crate::health::{Part, State as Health_};
use crate::ids::{MAX_ID, push_range, total};
use crate::store::memory::{Fault, Memory};
use crate::store::sqlite::Sqlite;
use crate::store::{EngineKind, Kind, Order};

mod slow;

const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    store: Memory,
    clock: ManualClock,
    health: Arc<Health>,
    metrics: Metrics,
    supply: Arc<Supply>,
}

fn definition(step: u64) -> Definition {
    Definition {
        engine: EngineKind::Segment,
        order: Order::Node,
        step,
        min_step: 1,
        max_step: 1_000_000,
        id_limit: MAX_ID,
        qps: 0,
        burst: 0,
        critical: false,
        description: String::new(),
    }
}

fn supply(store: Arc<dyn SegmentStore>, clock: &ManualClock, health: &Arc<Health>, metrics: &Metrics) -> Arc<Supply> {
    let clock = Arc::new(clock.clone());
    Supply::new(&Config::default(), store, clock, health.clone(), metrics, tokio::runtime::Handle::current())
}

impl World {
    fn new() -> Self {
        let (store, clock) = (Memory::default(), ManualClock::new(Boot(1_000_000_000), Wall(0)));
        let (health, metrics) = (Arc::new(Health::default()), Metrics::default());
        let supply = supply(Arc::new(store.clone()), &clock, &health, &metrics);
        Self { store, clock, health, metrics, supply }
    }

    async fn segment(&self, name: &str, definition: Definition) -> Arc<Segment> {
        let tag = TagName::new(name.as_bytes()).expect("a tag");
        let (row, _) = self.store.create(&tag, &definition, 1, 1000).await.expect("create");
        Segment::new(&row, self.supply.clone(), Arc::default())
    }

    async fn take(&self, segment: &Segment, demand: Demand) -> Result<Vec<IdRange>, Refusal> {
        take(segment, self.clock.boot(), demand).await
    }

    fn gate(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        self.store.plan(Fault::Held(gate.clone()));
        gate
    }

    /// Waits until the store was asked `n` times.
    async fn asked(&self, n: usize) {
        until(|| self.store.grants().len() >= n).await;
    }
}

/// Waits until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, holds).await.expect("it happens");
}

/// Asks until all ids are there, as a command does.
async fn take(segment: &Segment, now: Boot, demand: Demand) -> Result<Vec<IdRange>, Refusal> {
    let (mut out, mut demand) = (Vec::new(), demand);
    loop {
        let before = total(&out);
        match segment.take(demand, now, &mut out) {
            Ok(()) => return Ok(out),
            Err(Shortage::Refused(refusal)) => return Err(refusal),
            Err(Shortage::Later(later)) => {
                if let Demand::Singles(n) = demand {
                    demand = Demand::Singles(n - (total(&out) - before));
                }
                tokio::time::timeout(PATIENCE, later.wait()).await.expect("a refill ends");
            }
        }
    }
}

fn range(first: u64, last: u64) -> IdRange {
    IdRange::new(first, last + 1).expect("a range")
}

#[tokio::test]
async fn a_cold_tag_starts_at_one_and_goes_on_without_a_gap() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    let mut all = Vec::new();
    for _ in 0..100 {
        for range in world.take(&segment, Demand::Singles(1)).await.expect("an id") {
            push_range(&mut all, range);
        }
    }
    assert_eq!(all, [range(1, 100)]);
    assert!(segment.metrics.buffer_waits.get() >= 1);
    assert_eq!(world.health.part(Part::Store), Health_::Up);
    let timed = world.metrics.store("memory").fetch_duration.read().count;
    assert_eq!(timed, segment.metrics.fetches.get());
}

#[tokio::test]
async fn all_who_wait_are_served_by_the_refill_in_flight_and_one_more() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    let gate = world.gate();
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let (segment, now) = (segment.clone(), world.clock.boot());
            tokio::spawn(async move { take(&segment, now, Demand::Batch(40)).await })
        })
        .collect();
    world.asked(1).await;
    until(|| segment.metrics.buffer_waits.get() == 50).await;
    gate.add_permits(1);
    let mut all = Vec::new();
    for waiter in waiters {
        all.extend(waiter.await.expect("a task").expect("ids"));
    }
    all.sort_unstable();
    assert_eq!(total(&all), 2000);
    assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start()), "no id twice");
    let grants = world.store.grants();
    assert!(grants.len() <= 4, "{grants:?}");
    assert!(grants.iter().take(2).sum::<u64>() >= 2000, "two grants cover all: {grants:?}");
}

#[tokio::test]
async fn eight_tasks_never_share_an_id_and_each_sees_its_own_rise() {
    let world = World::new();
    let segment = world.segment("order", definition(100)).await;
    let sum = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let (segment, now, sum) = (segment.clone(), world.clock.boot(), sum.clone());
            tokio::spawn(async move {
                let mut mine: Vec<IdRange> = Vec::new();
                for n in 0..500 {
                    let demand = match (task + n) % 3 {
                        0 => Demand::Singles(n % 7 + 1),
                        1 => Demand::Batch(n % 90 + 1),
                        _ => Demand::Consecutive(n % 30 + 1),
                    };
                    let got = take(&segment, now, demand).await.expect("ids");
                    assert_eq!(total(&got), demand.count());
                    assert!(mine.last().is_none_or(|last| last.end() <= got[0].start()));
                    assert!(got.windows(2).all(|pair| pair[0].end() <= pair[1].start()));
                    sum.fetch_add(total(&got), Ordering::Relaxed);
                    mine.extend(got);
                }
                mine
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a task"));
    }
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start()), "no id twice");
    assert_eq!(total(&all), sum.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_range_whose_grant_is_not_known_to_have_happened_is_never_used() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    world.store.plan(Fault::AppliedUnknown);
    assert_eq!(world.take(&segment, Demand::Batch(10)).await, Ok(vec![range(11, 20)]));
    assert_eq!(world.metrics.discarded.get(), [("unknown", 10)]);
}

#[tokio::test]
async fn a_grant_that_is_applied_late_gives_nobody_the_same_ids() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    let gate = Arc::new(Semaphore::new(0));
    world.store.plan(Fault::AppliedLate(gate.clone()));
    let mut all = world.take(&segment, Demand::Batch(15)).await.expect("ids");
    gate.add_permits(1);
    for _ in 0..20 {
        all.extend(world.take(&segment, Demand::Batch(15)).await.expect("ids"));
        tokio::task::yield_now().await;
    }
    assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start()), "{all:?}");
}

#[tokio::test]
async fn a_busy_store_is_asked_again_and_a_broken_one_is_not() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    for _ in 0..3 {
        world.store.plan(Fault::Fail(Kind::Transient));
    }
    assert_eq!(world.take(&segment, Demand::Batch(10)).await, Ok(vec![range(1, 10)]));
    assert_eq!(segment.metrics.fetch_failures.get(), [("transient", 3)]);
    for _ in 0..4 {
        world.store.plan(Fault::Fail(Kind::Transient));
    }
    // The preload has used up those, and it is the one that this request waits for.
    let refusal = world.take(&segment, Demand::Batch(100)).await.expect_err("four failures");
    assert_eq!(refusal, Refusal::Backend("planned: transient".into()));
    world.clock.advance(Duration::from_secs(2));
    let asked = world.store.grants().len();
    world.store.plan(Fault::Fail(Kind::Permanent));
    let refusal = world.take(&segment, Demand::Batch(100)).await.expect_err("no retry");
    assert_eq!((refusal, world.store.grants().len()), (Refusal::Backend("planned: permanent".into()), asked + 1));
}

#[tokio::test]
async fn a_failed_store_is_told_at_once_left_alone_for_a_while_and_used_again() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    world.store.plan(Fault::Fail(Kind::Permanent));
    let refusal = Refusal::Backend("planned: permanent".into());
    assert_eq!(world.take(&segment, Demand::Singles(1)).await, Err(refusal.clone()));
    assert_eq!(world.health.part(Part::Store), Health_::Down("planned: permanent".into()));
    for _ in 0..100 {
        assert_eq!(world.take(&segment, Demand::Singles(1)).await, Err(refusal.clone()));
    }
    assert_eq!(world.store.grants().len(), 1, "no more than one attempt in the pause");
    world.clock.advance(Duration::from_secs(2));
    assert_eq!(world.take(&segment, Demand::Singles(1)).await, Ok(vec![range(1, 1)]));
    assert_eq!(world.health.part(Part::Store), Health_::Up);
}

#[tokio::test]
async fn ids_in_memory_are_served_while_the_store_is_down() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    world.take(&segment, Demand::Singles(1)).await.expect("an id");
    for _ in 0..50 {
        world.store.plan(Fault::Fail(Kind::Permanent));
    }
    assert_eq!(world.take(&segment, Demand::Singles(9)).await, Ok(vec![range(2, 10)]));
    assert!(matches!(world.take(&segment, Demand::Singles(1)).await, Err(Refusal::Backend(_))));
}

#[tokio::test]
async fn a_vanished_row_closes_the_tag_and_is_never_made_again() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    world.take(&segment, Demand::Singles(2)).await.expect("ids");
    assert!(world.store.delete(segment.tag()));
    for _ in 0..3 {
        let Err(Refusal::Backend(text)) = world.take(&segment, Demand::Batch(20)).await else { panic!("served") };
        assert!(text.contains("row has vanished") && text.contains("10 or more"), "{text}");
        assert!(matches!(world.take(&segment, Demand::Singles(1)).await, Err(Refusal::Backend(_))), "none from memory");
        world.clock.advance(Duration::from_secs(2));
    }
    assert_eq!(world.store.count().await, Ok(0));
    // Somebody makes the row anew, at 1: this node goes on above everything it was given.
    world.store.create(segment.tag(), &definition(10), 1, 10).await.expect("create");
    assert_eq!(world.take(&segment, Demand::Batch(5)).await, Ok(vec![range(11, 15)]));
}

#[tokio::test]
async fn a_refresh_that_misses_the_row_closes_the_tag() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    world.take(&segment, Demand::Singles(2)).await.expect("ids");
    assert!(world.store.delete(segment.tag()));
    segment.vanish();
    assert!(matches!(world.take(&segment, Demand::Singles(1)).await, Err(Refusal::Backend(_))));
    assert_eq!(world.metrics.discarded.get(), [("stop", 8)]);
}

#[tokio::test]
async fn lost_commits_are_repaired_upward_and_no_id_comes_twice() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    let mut all = world.take(&segment, Demand::Batch(35)).await.expect("ids");
    world.store.rewind(segment.tag(), 5);
    for _ in 0..10 {
        all.extend(world.take(&segment, Demand::Batch(7)).await.expect("ids"));
    }
    assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start()), "{all:?}");
    assert!(world.metrics.discarded.get().iter().any(|(reason, _)| *reason == "regression"));
    assert!(segment.metrics.fetch_failures.get().iter().any(|(reason, _)| *reason == "regression"));
}

#[tokio::test]
async fn the_end_of_the_id_space_is_told_and_a_larger_max_reopens_it() {
    let world = World::new();
    let small = Definition { id_limit: 25, ..definition(10) };
    let segment = world.segment("order", small.clone()).await;
    let mut all = world.take(&segment, Demand::Batch(22)).await.expect("ids");
    assert!(matches!(world.take(&segment, Demand::Batch(10)).await, Err(Refusal::AtMax { max: 25, left: 3 })));
    for _ in 0..3 {
        all.extend(world.take(&segment, Demand::Singles(1)).await.expect("the last ids"));
    }
    assert_eq!(all.last(), Some(&range(25, 25)));
    assert!(matches!(world.take(&segment, Demand::Singles(1)).await, Err(Refusal::AtMax { max: 25, left: 0 })));
    assert_eq!(segment.metrics.headroom.get(), 0);
    assert_eq!(world.health.part(Part::Store), Health_::Up, "that is no failure of the store");
    let more = crate::store::Alteration { id_limit: Some(30), ..Default::default() };
    let row = world.store.alter(segment.tag(), &more).await.expect("alter");
    segment.redefine(&row.definition);
    assert_eq!(world.take(&segment, Demand::Batch(5)).await, Ok(vec![range(26, 30)]));
}

#[tokio::test]
async fn consecutive_ids_are_one_run_also_above_the_step() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    assert_eq!(world.take(&segment, Demand::Singles(7)).await, Ok(vec![range(1, 7)]));
    let ids = world.take(&segment, Demand::Consecutive(10)).await.expect("ids");
    assert_eq!((ids.len(), total(&ids)), (1, 10));
    let ids = world.take(&segment, Demand::Consecutive(5000)).await.expect("ids");
    assert_eq!((ids.len(), total(&ids)), (1, 5000));
    assert!(world.metrics.discarded.get().iter().all(|(reason, _)| *reason == "incrby"));
}

#[tokio::test]
async fn nothing_at_or_below_a_floor_is_given_even_from_a_refill_in_flight() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    let gate = world.gate();
    let mut out = Vec::new();
    assert!(segment.take(Demand::Singles(1), world.clock.boot(), &mut out).is_err());
    world.asked(1).await;
    segment.floor(500);
    gate.add_permits(1);
    let row = world.store.raise_floor(segment.tag(), 500).await.expect("floor");
    segment.floor(row.floor);
    assert_eq!(world.take(&segment, Demand::Singles(1)).await, Ok(vec![range(501, 501)]));
    assert_eq!(segment.view().floor, 500);
}

#[tokio::test]
async fn a_retired_tag_gives_nothing_here_and_where_only_the_row_says_so() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    world.take(&segment, Demand::Singles(1)).await.expect("an id");
    segment.retire();
    assert_eq!(world.take(&segment, Demand::Singles(1)).await, Err(Refusal::Retired));
    let other = world.segment("other", definition(10)).await;
    world.store.retire(other.tag()).await.expect("retire");
    assert_eq!(world.take(&other, Demand::Singles(1)).await, Err(Refusal::Retired));
    let row = world.store.find(other.tag()).await.expect("find").expect("a row");
    let loaded = Segment::new(&row, world.supply.clone(), Arc::default());
    let asked = world.store.grants().len();
    assert_eq!(world.take(&loaded, Demand::Singles(1)).await, Err(Refusal::Retired));
    assert_eq!(world.store.grants().len(), asked);
}

#[tokio::test]
async fn a_client_that_leaves_cancels_nothing() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    let gate = world.gate();
    let (segment_, now) = (segment.clone(), world.clock.boot());
    let client = tokio::spawn(async move { take(&segment_, now, Demand::Batch(10)).await });
    world.asked(1).await;
    client.abort();
    assert!(client.await.expect_err("aborted").is_cancelled());
    gate.add_permits(1);
    assert_eq!(world.take(&segment, Demand::Batch(10)).await, Ok(vec![range(1, 10)]));
    assert_eq!(world.store.grants()[0], 10);
}

#[tokio::test]
async fn cold_tags_share_the_store_within_the_limit() {
    let world = World::new();
    let gates: Vec<_> = (0..20).map(|_| world.gate()).collect();
    let mut waiters = Vec::new();
    for n in 0..20 {
        let (segment, now) = (world.segment(&format!("tag{n}"), definition(10)).await, world.clock.boot());
        waiters.push(tokio::spawn(async move { take(&segment, now, Demand::Singles(1)).await }));
    }
    world.asked(8).await;
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.store.grants().len(), 8, "the rest waits for its turn");
    for gate in &gates {
        gate.add_permits(1);
    }
    for waiter in waiters {
        assert_eq!(waiter.await.expect("a task"), Ok(vec![range(1, 1)]));
    }
}

#[tokio::test]
async fn a_refill_whose_task_dies_leaves_the_tag_usable() {
    let world = World::new();
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().expect("a runtime");
    let (store, clock) = (Arc::new(world.store.clone()), Arc::new(world.clock.clone()));
    let health = world.health.clone();
    let supply = Supply::new(&Config::default(), store, clock, health, &world.metrics, other.handle().clone());
    let row = world.segment("order", definition(10)).await;
    let row = world.store.find(row.tag()).await.expect("find").expect("a row");
    let segment = Segment::new(&row, supply, Arc::default());
    let _gate = world.gate();
    let (segment_, now) = (segment.clone(), world.clock.boot());
    let client = tokio::spawn(async move { take(&segment_, now, Demand::Batch(10)).await });
    world.asked(1).await;
    other.shutdown_background();
    assert!(matches!(client.await.expect("a task"), Err(Refusal::Backend(_))));
    assert!(!segment.lock().buffer.is_refilling());
}

#[tokio::test]
async fn a_stop_waits_for_the_refill_in_flight_and_gives_the_tail_once() {
    let world = World::new();
    let segment = world.segment("order", definition(10)).await;
    world.take(&segment, Demand::Singles(7)).await.expect("ids");
    let gate = world.gate();
    world.take(&segment, Demand::Singles(1)).await.expect("an id, and the preload starts");
    world.asked(2).await;
    let stopping = segment.clone();
    let stop = tokio::spawn(async move {
        stopping.stop();
        tokio::time::timeout(PATIENCE, stopping.idle()).await.expect("the refill ends");
        stopping.tail()
    });
    until(|| segment.lock().buffer.is_closed()).await;
    assert!(matches!(world.take(&segment, Demand::Singles(1)).await, Err(Refusal::TryAgain(_))));
    gate.add_permits(1);
    let tail = stop.await.expect("a task").expect("a tail");
    // The second grant is twice the first one, whose ids were used at once.
    assert_eq!(tail.unused, range(9, 30));
    assert_eq!(segment.tail(), None, "once");
    assert_eq!(world.store.return_tails(&[tail]).await, Ok(vec![true]));
    assert_eq!(world.metrics.discarded.get(), []);
}

#[tokio::test]
async fn ten_clean_restarts_on_sqlite_leave_no_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("idgen-data/idgen.db");
    let tag = TagName::new(b"order").expect("a tag");
    let clock = ManualClock::new(Boot(1_000_000_000), Wall(0));
    let mut all = Vec::new();
    for round in 0..10 {
        let opened = Sqlite::open(&path, Duration::from_secs(10)).await.expect("open");
        assert_eq!(opened.created, round == 0);
        let store = opened.store;
        let (row, _) = store.create(&tag, &definition(1000), 1, 10).await.expect("create");
        let supply = supply(Arc::new(store.clone()), &clock, &Arc::default(), &Arc::default());
        let segment = Segment::new(&row, supply, Arc::default());
        // From three ids to more than a segment, so that some rounds stop with a preload in flight.
        for range in take(&segment, clock.boot(), Demand::Singles(3 + round * 250)).await.expect("ids") {
            push_range(&mut all, range);
        }
        segment.stop();
        segment.idle().await;
        if let Some(tail) = segment.tail() {
            assert_eq!(store.return_tails(&[tail]).await, Ok(vec![true]));
        }
        drop(segment);
        store.close().await;
    }
    assert_eq!(all, [range(1, 3 * 10 + 250 * 45)]);
}

#[test]
fn every_key_of_the_section_has_bounds() {
    assert_eq!(Config::default().validate(), Ok(()));
    let default = Config::default;
    for (key, bad) in [
        ("min_step", Config { min_step: 0, ..default() }),
        ("max_step", Config { max_step: 99, ..default() }),
        ("max_step", Config { max_step: MOST_STEP + 1, ..default() }),
        ("default_step", Config { default_step: 99, ..default() }),
        ("default_step", Config { default_step: 1_000_001, ..default() }),
        ("preload_threshold", Config { preload_threshold: 1.1, ..default() }),
        ("preload_threshold", Config { preload_threshold: f64::NAN, ..default() }),
        ("max_retry", Config { max_retry: 11, ..default() }),
        ("max_refills", Config { max_refills: 0, ..default() }),
    ] {
        let text = bad.validate().expect_err("refused");
        assert!(text.starts_with(&format!("segment.{key} must be")), "{text}");
    }
}
