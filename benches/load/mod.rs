//! What the benchmarks of the whole server share: servers as child processes, a load of fixed pipelines, what it came to.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A server under test; ends with this.
pub struct Server {
    child: Child,
    addr: SocketAddr,
    /// Where its metrics are, if it has some.
    admin: Option<SocketAddr>,
    request: Vec<u8>,
}

impl Server {
    /// Starts `command`, which serves on `addr`, and waits until it answers; the load will be `request`.
    pub fn start(command: &mut Command, addr: SocketAddr, request: &[&str]) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap_or_else(|error| {
            panic!("{command:?}: {error}; `tests/install bench` installs what is missing");
        });
        let server = Self { child, addr, admin: None, request: encode(request) };
        let start = Instant::now();
        while server.ask(&["PING"]).is_none_or(|reply| reply != "+PONG") {
            assert!(start.elapsed() < Duration::from_secs(20), "{command:?} does not answer PING");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    /// idgen with its defaults but for `settings` (variables of the environment), in `folder`; the load is `IDGET bench`.
    pub fn idgen(folder: &Path, settings: &[(&str, &str)]) -> Self {
        let (addr, admin) = (free_address(), free_address());
        let mut command = Command::new(env!("CARGO_BIN_EXE_idgen"));
        command.arg("serve").current_dir(folder).stderr(Stdio::null()).envs(settings.iter().copied());
        command.env("IDGEN__SERVER__ADDR", addr.to_string()).env("IDGEN__ADMIN__ADDR", admin.to_string());
        let mut server = Self::start(&mut command, addr, &["IDGET", "bench"]);
        server.admin = Some(admin);
        server
    }

    /// The same server with another load.
    pub fn asking(mut self, request: &[&str]) -> Self {
        self.request = encode(request);
        self
    }

    /// The first line of the reply to one request, if there is one.
    pub fn ask(&self, words: &[&str]) -> Option<String> {
        let mut stream = TcpStream::connect(self.addr).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        stream.write_all(&encode(words)).ok()?;
        let mut bytes = [0; 256];
        let got = stream.read(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..got]).lines().next()?.to_owned())
    }

    /// The sample of the metrics page that begins with `series`, such as `idgen_ids_issued_total{biz_tag="bench"`.
    pub fn metric(&self, series: &str) -> f64 {
        let mut stream = TcpStream::connect(self.admin.expect("it has metrics")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let line = page.lines().find(|line| line.starts_with(series));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("no {series}"))
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
pub struct Sample {
    pub requests_per_second: f64,
    pub cpu_ns_per_request: f64,
    pub requests: u64,
    pub errors: u64,
}

fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Loads `server` over `connections` with pipelines of `depth` requests and measures for `time`, after a fifth of it to get
/// going.
pub fn measure(server: &Server, connections: usize, depth: usize, time: Duration) -> Sample {
    let (stop, done, errors) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..connections {
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

#[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^52, where it is exact")]
pub fn float(count: u64) -> f64 {
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
            #[allow(clippy::naive_bytecount, reason = "it compiles to vector code, so no crate is needed")]
            let count = |wanted: u8| bytes[..got].iter().filter(|byte| **byte == wanted).count();
            left -= count(b'\n');
            if bytes[..got].contains(&b'-') {
                errors.fetch_add(u64::try_from(count(b'-')).unwrap(), Ordering::Relaxed);
            }
        }
        done.fetch_add(u64::try_from(depth).unwrap(), Ordering::Relaxed);
    }
}

/// What `program` prints, or nothing.
pub fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// What the command line asks of a benchmark.
pub struct Options {
    /// One short round: also what `cargo test` runs, so that the benchmark cannot rot.
    pub quick: bool,
    /// Fail where a goal is missed.
    pub check: bool,
    save: bool,
    args: Vec<String>,
}

impl Options {
    pub fn read() -> Self {
        let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
        let has = |name: &str| args.iter().any(|arg| arg == name);
        // `cargo bench` says --bench; `cargo test` doesn't, and passes filters and flags meant for the test harness.
        let quick = has("--quick") || !std::env::args().any(|arg| arg == "--bench");
        Self { quick, check: has("--check"), save: has("--save"), args }
    }

    /// Prints what was measured with what a reader of the figures must know (machine, commit, command, and `facts`), writes it
    /// to `benches/results/` where that was asked for, and ends the process: badly with `--check` and something `wrong`.
    pub fn finish(&self, name: &str, facts: &str, table: &str, wrong: &[String]) -> ! {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown").trim_start();
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let text = format!(
            "- machine{model}, {cores} cores, Linux {}\n- commit: {}\n- command: cargo bench --bench {name} -- {}\n\
             {facts}\n{table}",
            output("uname", &["-r"]),
            output("git", &["describe", "--always", "--dirty"]),
            self.args.join(" ")
        );
        println!("{text}");
        if self.save {
            let day = output("date", &["-u", "+%F"]);
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("benches/results/{day}-{name}.md"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, format!("# {name}, {day}\n\n{text}")).unwrap();
            println!("written to {}", path.display());
        }
        for line in wrong {
            println!("below the goal: {line}");
        }
        let failed = self.check && !wrong.is_empty();
        std::process::exit(i32::from(failed));
    }
}
