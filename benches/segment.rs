//! The segment engine alone: what a take costs while the ids are in memory, on one thread and on two.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use idgen::clock::{Clock as _, SystemClock};
use idgen::engine::segment::{Config, Segment, Supply};
use idgen::engine::{Demand, Shortage};
use idgen::ids::{MAX_ID, TagName};
use idgen::metrics::Metrics;
use idgen::store::memory::Memory;
use idgen::store::{Definition, EngineKind, Order, SegmentStore};

/// A tag whose segments last for the whole measurement.
fn segment(runtime: &tokio::runtime::Runtime) -> Arc<Segment> {
    let (store, step) = (Arc::new(Memory::default()), 1 << 50);
    let definition = Definition {
        engine: EngineKind::Segment,
        order: Order::Node,
        step,
        min_step: 1,
        max_step: step,
        id_limit: MAX_ID,
        qps: 0,
        burst: 0,
        critical: false,
        description: String::new(),
    };
    let tag = TagName::new(b"order").expect("a tag");
    let (row, _) = runtime.block_on(store.create(&tag, &definition, 1, 1)).expect("create");
    let clock = Arc::new(SystemClock);
    let supply =
        Supply::new(&Config::default(), store, clock, Arc::default(), &Metrics::default(), runtime.handle().clone());
    let segment = Segment::new(&row, supply, Arc::default());
    let waits = segment.take(Demand::Singles(1), SystemClock.boot(), &mut Vec::new());
    if let Err(Shortage::Later(later)) = waits {
        runtime.block_on(later.wait());
    }
    segment
}

fn take(criterion: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let now = SystemClock.boot();
    let mut group = criterion.benchmark_group("segment");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    for n in [1, 1000] {
        let (segment, mut out) = (segment(&runtime), Vec::with_capacity(4));
        group.throughput(Throughput::Elements(n));
        group.bench_function(format!("take({n}), one thread"), |bencher| {
            bencher.iter(|| {
                out.clear();
                segment.take(black_box(Demand::Singles(n)), now, &mut out).expect("ids");
                black_box(&out);
            });
        });
    }
    let contended = segment(&runtime);
    group.throughput(Throughput::Elements(2));
    group.bench_function("take(1), two threads on one tag", |bencher| {
        bencher.iter_custom(|rounds| {
            let started = SystemClock.boot();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let mut out = Vec::with_capacity(4);
                        for _ in 0..rounds {
                            out.clear();
                            contended.take(black_box(Demand::Singles(1)), now, &mut out).expect("ids");
                            black_box(&out);
                        }
                    });
                }
            });
            SystemClock.boot().since(started)
        });
    });
    group.finish();
}

criterion_group!(benches, take);
criterion_main!(benches);
