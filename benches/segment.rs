//! The segment engine alone: what a take costs while the ids are in memory, on one thread and on two; what a grant of
//! the SQLite file costs, its sync included; and how many statements a million ids take.
#![expect(clippy::expect_used, reason = "a benchmark that can't start has nobody to tell but the terminal")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use idgen::clock::{Clock as _, SystemClock};
use idgen::engine::segment::{Config, Segment, Supply};
use idgen::engine::{Demand, Shortage};
use idgen::ids::{MAX_ID, TagName, total};
use idgen::metrics::Metrics;
use idgen::store::memory::Memory;
use idgen::store::sqlite::Sqlite;
use idgen::store::{Definition, EngineKind, Order, SegmentStore};

fn definition(step: u64) -> Definition {
    Definition {
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
    }
}

/// A tag whose segments last for the whole measurement.
fn segment(runtime: &tokio::runtime::Runtime) -> Arc<Segment> {
    let (store, definition) = (Arc::new(Memory::default()), definition(1 << 50));
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

fn grant(criterion: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("idgen.db");
    let store = runtime.block_on(Sqlite::open(&path, Duration::from_secs(10))).expect("a database").store;
    let (tag, definition) = (TagName::new(b"order").expect("a tag"), definition(1000));
    runtime.block_on(store.create(&tag, &definition, 1, 1)).expect("create");
    let mut group = criterion.benchmark_group("sqlite");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500)).sample_size(20);
    group.bench_function("grant", |bencher| {
        bencher.iter(|| runtime.block_on(store.grant(&tag, 1000)).expect("a grant"));
    });
    group.finish();
}

/// Prints how many statements a million ids cost once the step has followed the load; goal: at most 20.
fn statements(_: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (store, definition) = (Memory::default(), Definition { max_step: 1_000_000, ..definition(1000) });
    let tag = TagName::new(b"order").expect("a tag");
    let (row, _) = runtime.block_on(store.create(&tag, &definition, 1, 1)).expect("create");
    let (given, clock) = (Arc::new(store.clone()), Arc::new(SystemClock));
    let supply =
        Supply::new(&Config::default(), given, clock, Arc::default(), &Metrics::default(), runtime.handle().clone());
    let segment = Segment::new(&row, supply, Arc::default());
    let draw_a_million = || {
        let (mut left, mut out) = (1_000_000, Vec::new());
        while left > 0 {
            out.clear();
            let taken = segment.take(Demand::Singles(left.min(1000)), SystemClock.boot(), &mut out);
            left -= total(&out);
            if let Err(Shortage::Later(later)) = taken {
                runtime.block_on(later.wait());
            }
        }
        store.grants().len()
    };
    let first = draw_a_million();
    // The step doubles at most once a segment.
    let mut before = first;
    for _ in 0..4 {
        before = draw_a_million();
    }
    let statements = draw_a_million() - before;
    println!("statements for a million ids: {first} from a step of 1000, {statements} at the adapted step (goal 20)");
}

criterion_group!(benches, take, grant, statements);
criterion_main!(benches);
