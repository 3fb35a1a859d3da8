//! The engine as a whole, over a registry in memory and clocks that the test moves.

use std::collections::BTreeSet;

use super::*;
use crate::clock::ManualClock;
use crate::health::{Part, State};
use crate::ids::total;
use crate::registry::memory::{Fault, MemoryRegistry};
use crate::registry::sql::{SqlRegistry, create_bounds};
use crate::registry::{Bound, Swap};

const T: u64 = 1_800_000_000_000;
const MILLI: u64 = 1_000_000;

struct Bench {
    engine: Arc<Snowflake>,
    clock: ManualClock,
    registry: Arc<MemoryRegistry>,
    health: Arc<Health>,
}

fn build(config: Config, registry: MemoryRegistry) -> Bench {
    let clock = ManualClock::new(Boot(1_000_000 * MILLI), Wall(T * MILLI));
    let (registry, health) = (Arc::new(registry), Arc::new(Health::default()));
    let setup = Setup {
        layout: config.layout().expect("valid"),
        config,
        registry: registry.clone(),
        clock: Arc::new(clock.clone()),
        health: Arc::clone(&health),
        incarnation: Incarnation(77),
        host: "idgen-3".to_owned(),
        wait_max: Duration::from_millis(250),
    };
    Bench { engine: Snowflake::new(setup).expect("valid"), clock, registry, health }
}

/// An engine that has its worker id.
async fn ready(config: Config) -> Bench {
    let bench = build(config, MemoryRegistry::new(32, 0, true));
    bench.engine.settled().await;
    bench
}

impl Bench {
    fn take(&self, demand: Demand) -> Result<Vec<IdRange>, Shortage> {
        let mut out = Vec::new();
        self.engine.take(demand, self.clock.boot(), &mut out).map(|()| out)
    }

    fn one(&self) -> Parts {
        let ids = self.take(Demand::Singles(1)).expect("an id");
        self.engine.decompose(ids[0].start()).expect("its own id")
    }

    /// Waits, in real time, for the task of the worker id.
    async fn until(&self, mut holds: impl FnMut(&Self) -> bool) {
        let deadline = tokio::time::sleep(Duration::from_secs(20));
        tokio::pin!(deadline);
        while !holds(self) {
            tokio::select! {
                () = &mut deadline => panic!("it never came: {:?}", self.engine.view()),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    }
}

fn refusal(result: Result<Vec<IdRange>, Shortage>) -> Refusal {
    match result {
        Err(Shortage::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

fn pause(result: Result<Vec<IdRange>, Shortage>) -> Duration {
    match result {
        Err(Shortage::Later(Later::Tick(pause))) => pause,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_first_use_claims_a_worker_id_and_waits_for_it() {
    let bench =
        build(Config { worker_id_hint: "ordinal".into(), ..Config::default() }, MemoryRegistry::new(32, 0, true));
    assert_eq!(bench.health.part(Part::Snowflake), State::Unused);
    let ids = loop {
        match bench.take(Demand::Singles(1)) {
            Ok(ids) => break ids,
            Err(Shortage::Later(later)) => drop(later.wait().await),
            refused @ Err(_) => panic!("it must wait for the claim: {refused:?}"),
        }
    };
    let parts = bench.engine.decompose(ids[0].start()).expect("its own id");
    assert_eq!((parts.timestamp_ms, parts.datacenter, parts.worker), (T, 0, 3), "the hint is the ordinal");
    let bound = bench.registry.workers()[3].bound.clone().expect("a record");
    assert_eq!((bound.hi, bound.incarnation), (T + 30_000, Incarnation(77)));
    assert_eq!(bench.health.part(Part::Snowflake), State::Up);
    let view = bench.engine.view();
    assert_eq!((view.worker, view.window_remaining_ms, view.reason.as_str()), (Some(3), 30_000, ""));
}

#[tokio::test]
async fn demands_are_served_in_the_shape_they_ask_for() {
    let bench = ready(Config::default()).await;
    let batch = bench.take(Demand::Batch(10_000)).expect("a batch");
    assert_eq!((total(&batch), batch.len()), (10_000, 3));
    bench.clock.advance(Duration::from_millis(5));
    let run = bench.take(Demand::Consecutive(4_080)).expect("fits in any tick");
    assert_eq!((run.len(), run[0].len()), (1, 4_080));
    assert_eq!(refusal(bench.take(Demand::Consecutive(4_081))), Refusal::TooMany(4_080));
    assert_eq!(refusal(bench.take(Demand::Batch(250 * 4_096 + 1))), Refusal::TooMany(250 * 4_096));
    assert!(bench.take(Demand::Batch(0)).expect("nothing").is_empty());
    assert!(batch.iter().chain(&run).is_sorted_by(|left, right| left.last() < right.start()));
}

#[tokio::test]
async fn js53_serves_large_batches_whole_and_makes_up_for_them() {
    let bench = ready(Config { preset: "js53".into(), ..Config::default() }).await;
    let batch = bench.take(Demand::Batch(10_000)).expect("a batch");
    assert!(total(&batch) == 10_000 && batch.iter().all(|range| range.last() < 1 << 53));
    let wait = pause(bench.take(Demand::Singles(1)));
    assert_eq!(wait, Duration::from_millis(10_000 / 128 - 10), "no clock error: the batch is the reason");
    bench.clock.advance(wait);
    bench.take(Demand::Singles(1)).expect("time has made up for it");
    assert_eq!(refusal(bench.take(Demand::Batch(32_001))), Refusal::TooMany(32_000));
}

#[tokio::test]
async fn singles_get_what_there_is_and_then_wait_for_the_clock() {
    let bench = ready(Config::default()).await;
    let mut out = Vec::new();
    let result = bench.engine.take(Demand::Singles(100_000), bench.clock.boot(), &mut out);
    assert!(matches!(result, Err(Shortage::Later(Later::Tick(_)))), "{result:?}");
    assert_eq!(total(&out), 11 * 4_096, "this tick and ten borrowed ones");
    assert!(bench.engine.metrics().sequence_exhausted.get() > 0);
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(total(&bench.take(Demand::Singles(4_096)).expect("a tick more")), 4_096);
}

#[tokio::test]
async fn a_clock_that_stands_still_is_waited_for_and_then_an_error() {
    let bench = ready(Config::default()).await;
    let mut waited = Duration::ZERO;
    let text = loop {
        match bench.take(Demand::Singles(4_096)) {
            Ok(_) => {}
            Err(Shortage::Later(Later::Tick(pause))) => waited += pause,
            Err(Shortage::Refused(Refusal::Clock(text))) => break text,
            other => panic!("{other:?}"),
        }
        assert!(waited < Duration::from_secs(1), "it is never an error");
    };
    assert!(waited >= Duration::from_millis(5), "only {waited:?}: {text}");
    bench.clock.advance(Duration::from_millis(1));
    bench.take(Demand::Singles(1)).expect("the clock runs again");
}

#[tokio::test]
async fn a_boot_clock_that_went_back_is_an_error_once_the_borrowed_time_is_used_up() {
    let bench = ready(Config::default()).await;
    bench.clock.advance(Duration::from_secs(5));
    let before = bench.one();
    bench.clock.set_boot(Boot(bench.clock.boot().0 - 4_000 * MILLI));
    assert!(matches!(refusal(bench.take(Demand::Singles(1))), Refusal::Clock(_)));
    bench.clock.set_boot(Boot(bench.clock.boot().0 + 3_995 * MILLI));
    let after = bench.one();
    assert!((after.timestamp_ms, after.sequence) > (before.timestamp_ms, before.sequence), "within what is borrowed");
}

#[tokio::test]
async fn steps_of_the_wall_clock_change_metrics_only() {
    let bench = ready(Config { window: Duration::from_hours(1), ..Config::default() }).await;
    let (mut last, mut offset_ms) = (bench.one().timestamp_ms, 0);
    for step_ms in [-3 * 3_600_000_i64, 6 * 3_600_000, -3 * 3_600_000 - 1_000] {
        let rollbacks = bench.engine.metrics().rollbacks.get();
        bench.clock.set_wall(Wall(bench.clock.wall().0.saturating_add_signed(step_ms * 1_000_000)));
        bench.clock.advance(Duration::from_millis(10));
        let now = bench.one().timestamp_ms;
        assert_eq!(now, last + 10, "after a step of {step_ms} ms");
        last = now;
        offset_ms += step_ms;
        bench.until(|bench| bench.engine.view().clock_offset_ns == offset_ms * 1_000_000).await;
        assert_eq!(bench.engine.metrics().rollbacks.get() > rollbacks, step_ms < 0);
    }
}

#[tokio::test]
async fn an_old_clock_reading_is_harmless() {
    let bench = ready(Config::default()).await;
    bench.clock.advance(Duration::from_secs(3));
    let first = bench.take(Demand::Singles(1)).expect("an id");
    let mut out = Vec::new();
    bench.engine.take(Demand::Singles(1), Boot(0), &mut out).expect("a fresh reading is taken");
    assert!(out[0] > first[0]);
}

#[tokio::test]
async fn at_the_end_of_the_window_nothing_leaves_until_the_registry_answers() {
    let bench = ready(Config { window: Duration::from_secs(1), ..Config::default() }).await;
    for _ in 0..20 {
        bench.registry.inject(Fault::RequestLost);
    }
    bench.clock.advance(Duration::from_millis(999));
    bench.one();
    bench.clock.advance(Duration::from_millis(1));
    let Refusal::NoWorker(text) = refusal(bench.take(Demand::Singles(1))) else { panic!("no window") };
    assert!(text.contains("no window left"), "{text}");
    bench.until(|bench| matches!(bench.health.part(Part::Snowflake), State::Down(_))).await;
    bench.registry.heal();
    bench.until(|bench| bench.take(Demand::Singles(1)).is_ok()).await;
    bench.until(|bench| bench.health.part(Part::Snowflake) == State::Up).await;
}

#[tokio::test]
async fn without_a_worker_id_the_reason_is_told_and_it_recovers() {
    let registry = MemoryRegistry::new(2, 0, true);
    for _ in 0..8 {
        registry.inject(Fault::Refused);
    }
    let bench = build(Config::default(), registry);
    bench.engine.settled().await;
    let Refusal::NoWorker(text) = refusal(bench.take(Demand::Singles(1))) else { panic!("no worker id") };
    assert!(text.contains("no answer"), "{text}");
    assert!(bench.engine.metrics().register_failures.get() > 0);
    bench.registry.heal();
    bench.until(|bench| bench.take(Demand::Singles(1)).is_ok()).await;
}

#[tokio::test]
async fn the_end_of_the_timestamp_bits_is_told_as_such() {
    // 31 bits of milliseconds end 2^31 ms after the epoch: five seconds from now.
    let epoch_millis = T + 5_000 - (1 << 31);
    let bench = ready(Config { epoch_millis, timestamp_bits: 31, ..Config::default() }).await;
    bench.clock.advance(Duration::from_millis(4_999));
    assert_eq!(bench.one().timestamp_ms, T + 4_999);
    bench.clock.advance(Duration::from_millis(1));
    assert!(matches!(refusal(bench.take(Demand::Singles(1))), Refusal::Exhausted(_)));
    bench.clock.advance(Duration::from_hours(1));
    assert!(matches!(refusal(bench.take(Demand::Batch(5))), Refusal::Exhausted(_)));
}

#[tokio::test]
async fn a_stop_ends_issuing_and_gives_the_worker_id_up() {
    let bench = ready(Config::default()).await;
    let worker = bench.one().worker as usize;
    assert!(bench.registry.workers()[worker].owner.is_some());
    bench.engine.stop().await;
    let Refusal::NoWorker(text) = refusal(bench.take(Demand::Singles(1))) else { panic!("closed") };
    assert!(text.contains("stopping"), "{text}");
    let record = bench.registry.workers()[worker].clone();
    assert_eq!((record.owner, record.bound.map(|bound| bound.hi)), (None, Some(T + 30_000)), "the bound stays");
    bench.engine.stop().await;
}

#[tokio::test]
async fn an_engine_that_nobody_wanted_stops_and_never_starts() {
    let bench = build(Config::default(), MemoryRegistry::new(2, 0, true));
    bench.engine.stop().await;
    assert!(matches!(refusal(bench.take(Demand::Singles(1))), Refusal::NoWorker(_)));
    assert!(!bench.engine.wanted());
}

#[tokio::test]
async fn a_lost_worker_id_is_replaced_and_order_holds() {
    let bench = build(Config::default(), MemoryRegistry::new(2, 0, false));
    bench.engine.settled().await;
    let first = bench.one();
    let stands = bench.registry.workers()[first.worker as usize].bound.clone().expect("a record");
    let foreign = Bound { hi: stands.hi + 30_000, incarnation: Incarnation(5), n: stands.n + 1, ..stands };
    bench.registry.overwrite(first.worker, Some(foreign));
    bench.registry.expire(first.worker);
    bench.clock.advance(Duration::from_secs(11));
    bench.until(|bench| bench.engine.view().worker.is_some_and(|worker| worker != first.worker)).await;
    assert_eq!(bench.engine.metrics().lost.get(), 1);
    let second = bench.one();
    assert!(second.timestamp_ms > first.timestamp_ms && second.worker != first.worker);
}

#[tokio::test]
async fn the_state_of_every_worker_id_is_shown() {
    let registry = MemoryRegistry::new(5, 0, false);
    let foreign = |hi| Some(Bound { incarnation: Incarnation(5), n: 1, ..crate::registry::unclaimed(hi) });
    let claim = registry.claim(1, &crate::registry::unclaimed(0), &foreign(T + 30_000).expect("a record")).await;
    assert_eq!(claim, Ok(Swap::Done));
    registry.overwrite(2, None);
    registry.overwrite(3, foreign(T + 30_001));
    let bench = build(Config { worker_id_hint: "0".into(), ..Config::default() }, registry);
    bench.engine.settled().await;
    let states: Vec<_> =
        bench.engine.workers().await.expect("listed").iter().map(|worker| worker.state.name()).collect();
    assert_eq!(states, ["mine", "owned", "missing", "ahead", "free"]);
    bench.registry.inject(Fault::Refused);
    bench.engine.workers().await.expect_err("no answer");
}

/// The embedded SQLite file, with the one connection that it has in production.
async fn sqlite(url: &str) -> sqlx::SqlitePool {
    let options = url.parse::<sqlx::sqlite::SqliteConnectOptions>().expect("a URL").create_if_missing(true);
    let pool =
        sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect_with(options).await.expect("a database");
    sqlx::raw_sql(include_str!("../../../migrations/sqlite/0002_worker_bound.sql"))
        .execute(&pool)
        .await
        .expect("migrated");
    let mut connection = pool.acquire().await.expect("a connection");
    create_bounds(&mut *connection, 0, 1, 0).await.expect("created");
    drop(connection);
    pool
}

fn over_sqlite(pool: &sqlx::SqlitePool, incarnation: u128) -> Arc<Snowflake> {
    let config = Config { worker_bits: 0, window: Duration::from_secs(1), ..Config::default() };
    let setup = Setup {
        layout: config.layout().expect("valid"),
        config,
        registry: Arc::new(SqlRegistry::new(pool.clone(), 0, 1, Duration::from_secs(10))),
        clock: Arc::new(crate::clock::SystemClock),
        health: Arc::default(),
        incarnation: Incarnation(incarnation),
        host: String::new(),
        wait_max: Duration::from_millis(250),
    };
    Snowflake::new(setup).expect("valid")
}

#[tokio::test]
async fn restarts_on_one_worker_id_in_sqlite_repeat_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let pool = sqlite(&format!("sqlite://{}", folder.path().join("ids.db").display())).await;
    let mut ids: Vec<IdRange> = Vec::new();
    for incarnation in 1..=8 {
        let engine = over_sqlite(&pool, incarnation);
        engine.settled().await;
        let mut taken = Vec::new();
        while total(&taken) < 20_000 {
            if let Err(shortage) = engine.take(Demand::Singles(5_000), engine.setup.clock.boot(), &mut taken) {
                let Shortage::Later(later) = shortage else { panic!("{shortage:?}") };
                later.wait().await;
            }
        }
        ids.extend(taken);
        // Every second process ends without a word.
        if incarnation % 2 == 0 {
            engine.stop().await;
        }
    }
    assert!(
        ids.is_sorted_by(|left, right| left.last() < right.start()),
        "one worker id, so ids increase over restarts"
    );
}

#[tokio::test]
async fn a_stop_leaves_the_only_connection_of_the_pool_as_it_was() {
    // A database in memory lives as long as its connection.
    let pool = sqlite("sqlite::memory:").await;
    let engine = over_sqlite(&pool, 1);
    engine.settled().await;
    engine.stop().await;
    let listed = SqlRegistry::new(pool, 0, 1, Duration::from_secs(10)).list().await.expect("the table is still there");
    assert!(listed[0].owner.is_none(), "it was released");
    assert!(listed[0].bound.as_ref().is_some_and(|bound| bound.n == 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_tasks_draw_unique_ids_that_increase_for_each() {
    let config = Config { window: Duration::from_secs(1), ..Config::default() };
    let clock = crate::clock::SystemClock;
    let setup = Setup {
        layout: config.layout().expect("valid"),
        config,
        registry: Arc::new(MemoryRegistry::new(2, 0, true)),
        clock: Arc::new(clock),
        health: Arc::default(),
        incarnation: Incarnation(1),
        host: String::new(),
        wait_max: Duration::from_millis(250),
    };
    let engine = Snowflake::new(setup).expect("valid");
    let tasks: Vec<_> = (0..4_u64)
        .map(|task| {
            let engine = Arc::clone(&engine);
            tokio::spawn(async move {
                let mut ids = Vec::new();
                while total(&ids) < 100_000 {
                    let n = 1 + (task * 37 + ids.len() as u64) % 300;
                    let demand = if ids.len().is_multiple_of(2) { Demand::Singles(n) } else { Demand::Batch(n) };
                    if let Err(shortage) = engine.take(demand, clock.boot(), &mut ids) {
                        let Shortage::Later(later) = shortage else { panic!("{shortage:?}") };
                        later.wait().await;
                    }
                }
                ids
            })
        })
        .collect();
    let mut all = BTreeSet::new();
    for task in tasks {
        let ranges = task.await.expect("no panic");
        assert!(ranges.windows(2).all(|pair| pair[0].last() < pair[1].start()));
        for range in ranges {
            for id in range.start()..range.end() {
                assert!(all.insert(id), "an id was issued twice");
            }
        }
    }
    engine.stop().await;
}

/// A registry with a defect that no rule foresees.
struct Defective;

impl WorkerRegistry for Defective {
    fn name(&self) -> &'static str {
        "defective"
    }

    fn exclusive(&self) -> bool {
        true
    }

    fn leases(&self) -> bool {
        false
    }

    fn list(&self) -> crate::registry::Answer<'_, Vec<Worker>> {
        panic!("a defect, as the test wants it")
    }

    fn read(&self, _: u32) -> crate::registry::Answer<'_, Option<Bound>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn claim<'a>(&'a self, _: u32, _: &'a Bound, _: &'a Bound) -> crate::registry::Answer<'a, Swap> {
        Box::pin(std::future::ready(Ok(Swap::Refused)))
    }

    fn renew<'a>(&'a self, _: u32, _: &'a Bound, _: &'a Bound) -> crate::registry::Answer<'a, Swap> {
        Box::pin(std::future::ready(Ok(Swap::Refused)))
    }

    fn release(&self, _: u32, _: Incarnation) -> crate::registry::Answer<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn raise_all(&self, _: u64) -> crate::registry::Answer<'_, u64> {
        Box::pin(std::future::ready(Ok(0)))
    }
}

#[tokio::test]
async fn a_task_that_panics_is_told_and_a_stop_does_not_wait_for_it() {
    let config = Config::default();
    let health = Arc::new(Health::default());
    let setup = Setup {
        layout: config.layout().expect("valid"),
        config,
        registry: Arc::new(Defective),
        clock: Arc::new(crate::clock::SystemClock),
        health: Arc::clone(&health),
        incarnation: Incarnation(1),
        host: String::new(),
        wait_max: Duration::from_millis(250),
    };
    let engine = Snowflake::new(setup).expect("valid");
    engine.settled().await;
    let refused = engine.take(Demand::Singles(1), Boot(1), &mut Vec::new());
    assert!(matches!(refused, Err(Shortage::Refused(Refusal::NoWorker(text))) if text.contains("restart")));
    engine.stop().await;
    assert!(matches!(health.part(Part::Snowflake), State::Down(_)));
}
