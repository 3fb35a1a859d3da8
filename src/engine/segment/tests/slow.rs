//! The engine over a store that takes its time, in virtual time: nothing here waits for real.

use super::*;

/// The boot clock of a runtime whose time stands still while anything can run.
struct Paused(tokio::time::Instant);

#[expect(clippy::disallowed_methods, reason = "the clock of these tests is the runtime's, which is paused")]
fn instant() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

impl Clock for Paused {
    fn boot(&self) -> Boot {
        Boot(1_000_000_000).plus(instant().duration_since(self.0))
    }

    fn wall(&self) -> Wall {
        Wall(0)
    }
}

struct Slow {
    store: Memory,
    clock: Arc<Paused>,
    supply: Arc<Supply>,
}

impl Slow {
    fn new(delay: Duration) -> Self {
        let (store, clock) = (Memory::default(), Arc::new(Paused(instant())));
        store.slow_down(delay);
        let (health, runtime) = (Arc::default(), tokio::runtime::Handle::current());
        let given: Arc<dyn SegmentStore> = Arc::new(store.clone());
        let supply = Supply::new(&Config::default(), given, clock.clone(), health, &Metrics::default(), runtime);
        Self { store, clock, supply }
    }

    async fn segment(&self, name: &str, definition: Definition) -> Arc<Segment> {
        let tag = TagName::new(name.as_bytes()).expect("a tag");
        let (row, _) = self.store.create(&tag, &definition, 1, 100_000).await.expect("create");
        Segment::new(&row, self.supply.clone(), Arc::default())
    }
}

/// One id, or `None` when it did not come within `wait_max`; and how long that took.
async fn one(segment: &Segment, clock: &Paused, wait_max: Duration) -> (Option<u64>, Duration) {
    let asked = clock.boot();
    loop {
        let mut out = Vec::new();
        let waited = clock.boot().since(asked);
        match segment.take(Demand::Singles(1), clock.boot(), &mut out) {
            Ok(()) => return (Some(out[0].start()), waited),
            Err(Shortage::Refused(refusal)) => panic!("{refusal}"),
            Err(Shortage::Later(later)) => {
                if tokio::time::timeout(wait_max.saturating_sub(waited), later.wait()).await.is_err() {
                    return (None, wait_max);
                }
            }
        }
    }
}

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// 500 clients, the first request of each within `spread`, over a store that takes 200 ms.
async fn stampede(spread: Duration) {
    let world = Slow::new(millis(200));
    let segment = world.segment("order", Definition { min_step: 100, ..definition(100) }).await;
    let clients: Vec<_> = (0..500_u32)
        .map(|n| {
            let (segment, clock) = (segment.clone(), world.clock.clone());
            tokio::spawn(async move {
                tokio::time::sleep(spread * n / 500).await;
                let started = clock.boot();
                while clock.boot().since(started) < Duration::from_secs(5) {
                    let (id, waited) = one(&segment, &clock, millis(250)).await;
                    assert!(id.is_some(), "client {n} waited {waited:?}");
                    tokio::time::sleep(millis(5)).await;
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("no client had to give up");
    }
    let grants = world.store.grants();
    assert!(grants.len() <= 30, "a statement takes 200 ms, and they end: {grants:?}");
    assert!(segment.metrics.buffer_waits.get() <= 500 * 6, "{} waits", segment.metrics.buffer_waits.get());
    let view = segment.view();
    assert!(view.step >= 10_000, "{view:?} after {grants:?}");
    assert!(segment.metrics.step_changes.get().iter().any(|(reason, _)| *reason == "starved"));
}

#[tokio::test(start_paused = true)]
async fn five_hundred_clients_on_a_cold_tag_get_their_ids_though_a_statement_takes_almost_as_long_as_they_wait() {
    for spread in [0, 5, 15, 40] {
        stampede(millis(spread)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn fifty_thousand_ids_a_second_never_wait_for_a_store_that_takes_200_ms_once_the_tag_is_warm() {
    let world = Slow::new(millis(200));
    let segment = world.segment("order", Definition { min_step: 100, ..definition(1000) }).await;
    let clients: Vec<_> = (0..50)
        .map(|_| {
            let (segment, clock) = (segment.clone(), world.clock.clone());
            tokio::spawn(async move {
                let mut slowest = Duration::ZERO;
                let mut beat = tokio::time::interval(millis(1));
                beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                let started = clock.boot();
                while clock.boot().since(started) < Duration::from_secs(30) {
                    beat.tick().await;
                    let (_, waited) = one(&segment, &clock, millis(250)).await;
                    if clock.boot().since(started) > Duration::from_secs(5) {
                        slowest = slowest.max(waited);
                    }
                }
                slowest
            })
        })
        .collect();
    for client in clients {
        let slowest = client.await.expect("a client");
        assert!(slowest <= millis(10), "{slowest:?}");
    }
    assert_eq!(segment.view().step, 1_000_000);
}

#[tokio::test(start_paused = true)]
async fn a_million_ids_at_the_adapted_step_take_at_most_twenty_statements() {
    let world = Slow::new(millis(2));
    let segment = world.segment("order", Definition { min_step: 100, ..definition(1000) }).await;
    let mut before = 0;
    for round in 0..4 {
        // 1 000 000 ids at 20 000 a second.
        for _ in 0..5000 {
            let mut left = 200;
            while left > 0 {
                let mut out = Vec::new();
                if let Err(Shortage::Later(later)) = segment.take(Demand::Singles(left), world.clock.boot(), &mut out) {
                    later.wait().await;
                }
                left -= total(&out);
            }
            tokio::time::sleep(millis(10)).await;
        }
        let grants = world.store.grants().len();
        assert!(round == 0 || grants - before <= 20, "{} statements", grants - before);
        before = grants;
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_cold_tags_are_served_in_turn_and_harm_no_tag_in_use() {
    let world = Slow::new(millis(5));
    let hot = world.segment("hot", Definition { max_step: 2000, ..definition(1000) }).await;
    let patience = millis(250);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let user = {
        let (hot, clock, stop) = (hot.clone(), world.clock.clone(), stop.clone());
        tokio::spawn(async move {
            let (mut waits, mut beat) = (Vec::new(), tokio::time::interval(millis(1)));
            while !stop.load(Ordering::Relaxed) {
                beat.tick().await;
                // 20 000 a second: a segment lasts a tenth of a second, so it asks the store all the time.
                for _ in 0..20 {
                    let (id, waited) = one(&hot, &clock, patience).await;
                    assert!(id.is_some(), "{waited:?}");
                    waits.push(waited);
                }
            }
            waits
        })
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut clients = Vec::new();
    for n in 0..10_000 {
        let segment = world.segment(&format!("tag{n}"), definition(100)).await;
        let clock = world.clock.clone();
        clients.push(tokio::spawn(async move {
            let started = clock.boot();
            while one(&segment, &clock, patience).await.0.is_none() {
                tokio::time::sleep(millis(100)).await;
            }
            clock.boot().since(started)
        }));
    }
    for client in clients {
        let served = client.await.expect("a client");
        assert!(served < Duration::from_secs(30), "{served:?}");
    }
    stop.store(true, Ordering::Relaxed);
    let mut waits = user.await.expect("the user of the hot tag");
    waits.sort_unstable();
    let p99 = waits[waits.len() * 99 / 100];
    assert!(waits.len() > 100_000 && p99 <= millis(5), "{p99:?} of {}", waits.len());
    // Nobody was asked for more than once: cold tags that give up come back to what their refill has brought.
    let cold = world.store.grants().iter().filter(|count| **count == 100).count();
    assert_eq!(cold, 10_000);
}
