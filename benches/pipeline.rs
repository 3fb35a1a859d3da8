//! The whole server beside redis-server in one run: requests a second, their ratio, and server CPU a request.
//!
//! Machines differ and are noisy, so what counts is the ratio within a run, and the CPU time that the kernel accounts to the
//! server's threads. All servers get the same load: fixed pipelines over 8 connections on loopback, in short turns, so that
//! a busy moment of the machine meets them alike. A ratio is the median of the ratios of the rounds, not of two medians. Redis is also measured with every write synced, the only setting under which it keeps a promise like ours.
//!
//! `cargo bench --bench pipeline -- [--quick] [--check] [--save]`: `--quick` is one short round (also what `cargo test` runs,
//! so that this cannot rot), `--check` fails below the least ratios, `--save` writes the table to `benches/results/`.

// A benchmark may stop at the first surprise, and has to measure real time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 8;

/// Each depth with the least ratio to Redis that `--check` accepts.
const DEPTHS: [(usize, f64); 4] = [(1, 1.0), (16, 1.1), (128, 2.0), (1000, 5.0)];

/// A server under test.
struct Server {
    child: Child,
    addr: SocketAddr,
    request: Vec<u8>,
}

impl Server {
    fn start(command: &mut Command, addr: SocketAddr, request: &[&str]) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap_or_else(|error| {
            panic!("{command:?}: {error}; `tests/install bench` installs what is missing");
        });
        let server = Self { child, addr, request: encode(request) };
        let start = Instant::now();
        while server.ask(&["PING"]).is_none_or(|reply| reply != "+PONG") {
            assert!(start.elapsed() < Duration::from_secs(20), "{command:?} does not answer PING");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn redis(folder: &Path, extra: &[&str]) -> Self {
        let addr = free_address();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string(), "--save", ""]);
        command.arg("--dir").arg(folder).args(extra);
        Self::start(&mut command, addr, &["INCR", "bench"])
    }

    fn idgen(folder: &Path) -> Self {
        let (addr, admin) = (free_address(), free_address());
        let mut command = Command::new(env!("CARGO_BIN_EXE_idgen"));
        command.arg("serve").current_dir(folder).stderr(Stdio::null());
        command.env("IDGEN__SERVER__ADDR", addr.to_string()).env("IDGEN__ADMIN__ADDR", admin.to_string());
        Self::start(&mut command, addr, &["IDGET", "bench"])
    }

    /// The first line of the reply to one request, if there is one.
    fn ask(&self, words: &[&str]) -> Option<String> {
        let mut stream = TcpStream::connect(self.addr).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(&encode(words)).ok()?;
        let mut bytes = [0; 256];
        let got = stream.read(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..got]).lines().next()?.to_owned())
    }

    /// CPU time of all threads of the server so far, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks
            .flatten()
            .filter_map(|task| {
                fs::read_to_string(task.path().join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
            })
            .sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    requests_per_second: f64,
    cpu_ns_per_request: f64,
    requests: u64,
    errors: u64,
}

fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Loads `server` with pipelines of `depth` requests and measures for `time`, after a tenth of it to get going.
fn measure(server: &Server, depth: usize, time: Duration) -> Sample {
    let (stop, done, errors) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| client(server, depth, &stop, &done, &errors));
        }
        std::thread::sleep(time / 5);
        let (start, before, cpu) = (Instant::now(), done.load(Ordering::Relaxed), server.cpu_ns());
        let failed = errors.load(Ordering::Relaxed);
        std::thread::sleep(time);
        let (requests, cpu) = (done.load(Ordering::Relaxed) - before, server.cpu_ns() - cpu);
        let seconds = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        assert!(requests > 0, "no request was answered in {time:?}");
        Sample {
            requests_per_second: float(requests) / seconds,
            cpu_ns_per_request: float(cpu) / float(requests),
            requests,
            errors: errors.load(Ordering::Relaxed) - failed,
        }
    })
}

/// Counts stay far below 2^52, where this is exact.
#[allow(clippy::cast_precision_loss)]
fn float(count: u64) -> f64 {
    count as f64
}

/// One connection: a pipeline out, its replies in. A reply is one line, so line ends are counted, and an id has no minus, so
/// a minus is an error.
fn client(server: &Server, depth: usize, stop: &AtomicBool, done: &AtomicU64, errors: &AtomicU64) {
    let mut stream = TcpStream::connect(server.addr).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let requests = server.request.repeat(depth);
    let mut bytes = vec![0; 256 << 10];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&requests).unwrap();
        let mut left = depth;
        while left > 0 {
            let got = stream.read(&mut bytes).unwrap();
            assert!(got > 0, "the server closed the connection");
            // Plain counting compiles to vector code, so no crate is needed for it.
            #[allow(clippy::naive_bytecount)]
            let count = |wanted: u8| bytes[..got].iter().filter(|byte| **byte == wanted).count();
            left -= count(b'\n');
            if bytes[..got].contains(&b'-') {
                errors.fetch_add(u64::try_from(count(b'-')).unwrap(), Ordering::Relaxed);
            }
        }
        done.fetch_add(u64::try_from(depth).unwrap(), Ordering::Relaxed);
    }
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
        Server::idgen(&folder.path().join("idgen")),
        Server::redis(&folder.path().join("redis"), &["--appendonly", "no"]),
        Server::redis(&folder.path().join("synced"), &["--appendonly", "yes", "--appendfsync", "always"]),
    ];
    // A tag for this much demand: with the default of 1000 ids a grant the disk would be measured, not the server.
    let created = servers[0].ask(&["IDTAG", "CREATE", "bench", "STEP", "1000000"]);
    assert_eq!(created.as_deref(), Some("+OK"));
    for server in &servers {
        measure(server, 1, time);
        measure(server, 1000, time);
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
                samples[server].push(measure(&servers[server], depth, time));
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

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// What a reader of the figures must know: machine, versions, commit, command.
fn circumstances(args: &[String]) -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown").trim_start();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "- machine{model}, {cores} cores, Linux {}\n- commit: {}\n- Redis: {}\n- command: cargo bench --bench pipeline -- {}\n\
         - {CONNECTIONS} connections, one segment tag with a step of 1000000, client and servers on the same machine\n",
        output("uname", &["-r"]),
        output("git", &["describe", "--always", "--dirty"]),
        output("redis-server", &["--version"]),
        args.join(" ")
    )
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    // `cargo bench` says --bench; `cargo test` doesn't, and passes filters and flags meant for the test harness.
    let quick = has("--quick") || !std::env::args().any(|arg| arg == "--bench");
    let (time, rounds) = if quick { (Duration::from_millis(150), 1) } else { (Duration::from_millis(800), 9) };
    let (table, wrong) = run(time, rounds);
    let circumstances = circumstances(&args);
    println!("{circumstances}\n{table}");
    if has("--save") {
        let day = output("date", &["-u", "+%F"]);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/results/{day}-pipeline.md"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("# pipeline, {day}\n\n{circumstances}\n{table}")).unwrap();
        println!("written to {}", path.display());
    }
    for line in &wrong {
        println!("below the goal: {line}");
    }
    let failed = has("--check") && !wrong.is_empty();
    std::process::exit(i32::from(failed));
}
