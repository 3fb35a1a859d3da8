//! The engines alone, in process, with the clock replaced: what a call costs without sockets and protocol.
#![expect(clippy::expect_used, reason = "a benchmark that can't be set up has nothing to say")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use idgen::clock::{Boot, Clock as _, ManualClock, Wall};
use idgen::engine::Demand;
use idgen::engine::snowflake::{Config, Setup, Snowflake};
use idgen::health::Health;
use idgen::ids::Incarnation;
use idgen::registry::memory::MemoryRegistry;

/// The boot clock when the engine starts, in nanoseconds.
const START: u64 = 1_000_000_000_000;

/// An engine that holds a worker id; its clock stands still, the callers bring their own readings.
fn snowflake() -> Arc<Snowflake> {
    let clock = ManualClock::new(Boot(START), Wall(1_800_000_000_000_000_000));
    let config = Config { window: Duration::from_hours(1), ..Config::default() };
    let layout = config.layout().expect("the defaults are valid");
    let engine = Snowflake::new(Setup {
        config,
        layout,
        // A bound far ahead would be led to; 0 makes every worker id ripe.
        registry: Arc::new(MemoryRegistry::new(32, 0, true)),
        clock: Arc::new(clock.clone()),
        health: Arc::new(Health::default()),
        incarnation: Incarnation(1),
        host: "bench".to_owned(),
        wait_max: Duration::from_millis(250),
    })
    .expect("the defaults are valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(engine.settled());
    assert_eq!(clock.boot(), Boot(START));
    engine
}

fn snowflake_takes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("snowflake");
    for (name, demand, ids) in [
        ("take(1)", Demand::Singles(1), 1_u64),
        ("take(1000)", Demand::Batch(1000), 1000),
        ("take(10000)", Demand::Batch(10_000), 10_000),
    ] {
        group.bench_function(name, |bencher| {
            let mut engine = snowflake();
            let mut out = Vec::with_capacity(64);
            let mut taken = 0;
            bencher.iter(|| {
                // The clock runs as fast as the ids are used up, within an hour's window.
                let mut now = Boot(START + taken * 250);
                if now.0 > START + 3_000_000_000_000 {
                    engine = snowflake();
                    taken = 0;
                    now = Boot(START);
                }
                out.clear();
                engine.take(black_box(demand), now, &mut out).expect("ids");
                taken += ids;
                black_box(&out);
            });
        });
    }
    group.finish();
}

criterion_group!(engines, snowflake_takes);
criterion_main!(engines);
