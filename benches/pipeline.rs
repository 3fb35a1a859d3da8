//! The whole server beside redis-server in one run: requests a second, their ratio, and server CPU a request.
//!
//! Machines differ and are noisy, so what counts is the ratio within a run, and the CPU time that the kernel accounts to the
//! server's threads. All servers get the same load: fixed pipelines over 8 connections on loopback, in short turns, so that
//! a busy moment of the machine meets them alike. A ratio is the median of the ratios of the rounds, not of two medians. Redis is also measured with every write synced, the only setting under which it keeps a promise like ours.
//!
//! `cargo bench --bench pipeline -- [--quick] [--check] [--save]`: `--quick` is one short round (also what `cargo test` runs,
//! so that this cannot rot), `--check` fails below the least ratios, `--save` writes the table to `benches/results/`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a benchmark may stop at the first surprise, and has to measure real time"
)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[allow(dead_code, reason = "each benchmark uses a part of it")]
mod load;

use load::{Options, Sample, Server, free_address, measure, output};

const CONNECTIONS: usize = 8;

/// Each depth with the least ratio to Redis that `--check` accepts.
const DEPTHS: [(usize, f64); 4] = [(1, 1.0), (16, 1.1), (128, 2.0), (1000, 5.0)];

fn redis(folder: &Path, extra: &[&str]) -> Server {
    let addr = free_address();
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--save", ""]);
    command.arg("--dir").arg(folder).args(extra);
    Server::start(&mut command, addr, &["INCR", "bench"])
}

fn median(mut samples: Vec<Sample>) -> Sample {
    let errors = samples.iter().map(|sample| sample.errors).sum();
    let requests = samples.iter().map(|sample| sample.requests).sum();
    samples.sort_by(|a, b| a.requests_per_second.total_cmp(&b.requests_per_second));
    Sample { requests, errors, ..samples[samples.len() / 2] }
}

/// How many times as many requests a second as `other`, round by round: the median.
fn ratio(samples: &[Sample], other: &[Sample]) -> f64 {
    let mut ratios: Vec<f64> =
        samples.iter().zip(other).map(|(a, b)| a.requests_per_second / b.requests_per_second).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// The table, and what is wrong with it.
fn run(time: Duration, rounds: usize) -> (String, Vec<String>) {
    let folder = tempfile::Builder::new().prefix("idgen-bench-").tempdir().unwrap();
    for name in ["idgen", "redis", "synced"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let servers = [
        Server::idgen(&folder.path().join("idgen"), &[]),
        redis(&folder.path().join("redis"), &["--appendonly", "no"]),
        redis(&folder.path().join("synced"), &["--appendonly", "yes", "--appendfsync", "always"]),
    ];
    // A tag for this much demand: with the default of 1000 ids a grant the disk would be measured, not the server.
    let created = servers[0].ask(&["IDTAG", "CREATE", "bench", "STEP", "1000000"]);
    assert_eq!(created.as_deref(), Some("+OK"));
    for server in &servers {
        measure(server, CONNECTIONS, 1, time);
        measure(server, CONNECTIONS, 1000, time);
    }
    let mut table = String::from(
        "| depth | idgen IDGET/s | Redis INCR/s | ratio | Redis synced INCR/s | ratio | idgen CPU ns | Redis CPU ns |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    let mut wrong = Vec::new();
    for (depth, least) in DEPTHS {
        let mut samples = [const { Vec::new() }; 3];
        // Each round begins with another server: what one leaves behind, such as dirty pages, must not always meet the same.
        for round in 0..rounds {
            for turn in 0..servers.len() {
                let server = (round + turn) % servers.len();
                samples[server].push(measure(&servers[server], CONNECTIONS, depth, time));
            }
        }
        let (to_redis, to_synced) = (ratio(&samples[0], &samples[1]), ratio(&samples[0], &samples[2]));
        let [idgen, redis, synced] = samples.map(median);
        writeln!(
            table,
            "| {depth} | {:.0} | {:.0} | {:.2} | {:.0} | {:.2} | {:.0} | {:.0} |",
            idgen.requests_per_second,
            redis.requests_per_second,
            to_redis,
            synced.requests_per_second,
            to_synced,
            idgen.cpu_ns_per_request,
            redis.cpu_ns_per_request
        )
        .unwrap();
        // A refill that comes late now and then is noise; a rate measured on errors is none.
        assert!(
            idgen.errors * 100 <= idgen.requests,
            "depth {depth}: {} of {} are errors",
            idgen.errors,
            idgen.requests
        );
        if to_redis < least {
            wrong.push(format!("depth {depth}: {to_redis:.2} times Redis, the least is {least}"));
        }
    }
    (table, wrong)
}

fn main() {
    let options = Options::read();
    let (time, rounds) = if options.quick { (Duration::from_millis(150), 1) } else { (Duration::from_millis(800), 9) };
    let (table, wrong) = run(time, rounds);
    let facts = format!(
        "- Redis: {}\n- {CONNECTIONS} connections, one segment tag with a step of 1000000, client and servers on the same \
         machine\n",
        output("redis-server", &["--version"])
    );
    options.finish("pipeline", &facts, &table, &wrong);
}
