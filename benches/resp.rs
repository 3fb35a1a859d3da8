//! The protocol edge alone: what reading a request and writing an id cost, without sockets, commands and engines.
//!
//! `cargo bench --bench resp`; throughput is given in requests or ids a second.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use idgen::resp::{IdForm, Limits, Scan, Scanner, ids};

const ONE: &[u8] = b"*2\r\n$5\r\nIDGET\r\n$5\r\norder\r\n";

/// Reads all of `stream` as a connection does and adds up what a command would look at first.
fn read_all(scanner: &mut Scanner, stream: &[u8]) -> usize {
    let (mut cursor, mut seen) = (0, 0);
    while let Some(rest) = stream.get(cursor..)
        && let Ok(Scan::Request(request)) = scanner.next(rest, &Limits::AFTER_LOGIN)
    {
        seen += request.name().len() + request.arg(1).map_or(0, <[u8]>::len);
        cursor += scanner.consumed();
    }
    seen
}

fn requests(c: &mut Criterion) {
    let rotation: Vec<u8> = (0..128)
        .flat_map(|n| {
            let tag = format!("tag.{n}");
            format!("*2\r\n$5\r\nIDGET\r\n${}\r\n{tag}\r\n", tag.len()).into_bytes()
        })
        .collect();
    let inline = b"IDGET order\r\n".repeat(128);
    let mut group = c.benchmark_group("requests");
    for (name, stream, count) in [
        ("one", ONE.to_vec(), 1),
        ("pipeline of 128", ONE.repeat(128), 128),
        ("128 tags in rotation", rotation, 128),
        ("128 inline", inline, 128),
    ] {
        let mut scanner = Scanner::new();
        group.throughput(Throughput::Elements(count));
        group.bench_function(name, |b| b.iter(|| read_all(&mut scanner, black_box(&stream))));
    }
    group.finish();
}

fn replies(c: &mut Criterion) {
    let mut group = c.benchmark_group("replies");
    group.throughput(Throughput::Elements(1000));
    for (name, form) in [("1000 ids as integers", IdForm::Integer), ("1000 ids as bulk strings", IdForm::Bulk)] {
        for (width, start) in [("7 digits", 1_234_567), ("18 digits", 876_543_210_987_654_321)] {
            let mut out = Vec::with_capacity(64 * 1024);
            group.bench_function(format!("{name}, {width}"), |b| {
                b.iter(|| {
                    out.clear();
                    ids(&mut out, form, black_box(start), black_box(start + 1000));
                    out.len()
                });
            });
        }
    }
    group.throughput(Throughput::Elements(1));
    let mut out = Vec::with_capacity(1024);
    group.bench_function("one id", |b| {
        b.iter(|| {
            out.clear();
            ids(&mut out, IdForm::Integer, black_box(1_234_567), black_box(1_234_568));
            out.len()
        });
    });
    group.finish();
}

criterion_group!(benches, requests, replies);
criterion_main!(benches);
