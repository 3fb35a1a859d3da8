//! The real server as a child process: a data folder and ports of its own, started, killed, stopped, its log kept.
//!
//! Readiness is awaited by asking (`PING`), never by sleeping. A node that is still running when its test ends is killed
//! by its own process id; when the test fails, the end of its log is printed.

use std::cell::Cell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::wire::{Conn, Value};

/// How long anything may take that should be quick; generous, since two cores run several tests at once.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The id of `nobody`, who may write nowhere.
const NOBODY: &str = "65534";

/// Asks again and again until `ask` answers, or fails with `what` after `limit`.
pub fn eventually<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port below the range that the kernel hands out by itself, so that no outgoing connection of a test takes it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = u16::try_from(std::process::id() % 9_000).unwrap();
    (0..10_000)
        .map(|_| 20_000 + (base + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("no port is free between 20000 and 32000")
}

/// How a node is to be started; starting it again finds the same data folder and ports.
pub struct Setup {
    folder: Arc<TempDir>,
    env: Vec<(String, String)>,
    args: Vec<String>,
    nobody: bool,
    port: u16,
    admin: u16,
    starts: Cell<u32>,
}

impl Default for Setup {
    fn default() -> Self {
        Self::new()
    }
}

impl Setup {
    /// The defaults but for a longer `server.wait_max`, with free ports and an empty folder to run in.
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    /// As [`Setup::new`], with everything in memory: for tests that must not depend on how long a disk takes.
    pub fn in_memory() -> Self {
        Self::within(Path::new("/dev/shm"))
    }

    fn within(parent: &Path) -> Self {
        let folder = Arc::new(tempfile::Builder::new().prefix("idgen-it-").tempdir_in(parent).unwrap());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (port, admin) = (free_port(), free_port());
        let setup =
            Self { folder, env: Vec::new(), args: Vec::new(), nobody: false, port, admin, starts: Cell::new(0) };
        // Two busy cores and a slow disk may keep a refill for longer than the default of 250 ms; a test that is about
        // waiting sets its own limit.
        setup
            .set("server.addr", &format!("127.0.0.1:{port}"))
            .set("admin.addr", &format!("127.0.0.1:{admin}"))
            .set("server.wait_max", "3s")
    }

    /// Sets the configuration key `key` by its environment variable.
    pub fn set(self, key: &str, value: &str) -> Self {
        let name = format!("IDGEN__{}", key.to_uppercase().replace('.', "__"));
        self.env(&name, value)
    }

    /// Sets an environment variable; the last value counts.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts with a configuration file that holds `yaml`; what `set` says goes before it.
    pub fn config(mut self, yaml: &str) -> Self {
        let path = self.folder.path().join("idgen.yaml");
        fs::write(&path, yaml).unwrap();
        self.args = vec!["--config".into(), path.display().to_string()];
        self
    }

    /// Starts as a user who may write nowhere: root is above file modes.
    pub fn run_by_nobody(mut self) -> Self {
        self.nobody = true;
        self
    }

    /// Lets the wall clock of the process, and nothing else, be moved by [`Setup::move_wall`].
    pub fn with_movable_wall(self) -> Self {
        let library = ["x86_64", "aarch64"]
            .iter()
            .map(|machine| PathBuf::from(format!("/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1")))
            .find(|path| path.exists())
            .expect("libfaketime is missing: `tests/install test` installs it");
        let file = self.folder.path().join("wall");
        let setup = self
            .env("LD_PRELOAD", &library.display().to_string())
            .env("FAKETIME_TIMESTAMP_FILE", &file.display().to_string())
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
        setup.move_wall(0);
        setup
    }

    /// Steps the wall clock of the running process to `seconds` off the true time.
    pub fn move_wall(&self, seconds: i64) {
        // Renamed into place: the process reads the file at every call and must never see it empty.
        let (new, file) = (self.folder.path().join("wall.new"), self.folder.path().join("wall"));
        fs::write(&new, format!("{seconds:+}\n")).unwrap();
        fs::rename(new, file).unwrap();
    }

    /// The folder that the node runs in; its data folder is `idgen-data` there.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The database file.
    pub fn database(&self) -> PathBuf {
        self.folder.path().join("idgen-data/idgen.db")
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Where HTTP is served.
    pub fn admin(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.admin).into()
    }

    /// Starts the node without waiting for anything.
    pub fn spawn(&self) -> Node {
        self.spawn_as(&["serve"])
    }

    /// Runs another command of the program to its end; its exit code and what it wrote.
    pub fn run(&self, command: &[&str]) -> (i32, String) {
        let mut process = self.spawn_as(command);
        let status = process.wait();
        (status.code().unwrap_or(-1), process.log())
    }

    /// Starts another command of the program without waiting for anything.
    pub fn spawn_as(&self, command_line: &[&str]) -> Node {
        self.starts.set(self.starts.get() + 1);
        let log = self.folder.path().join(format!("log-{}.txt", self.starts.get()));
        let output = fs::File::create(&log).unwrap();
        let mut command = if self.nobody {
            // The build folder may be closed to others, so they get a copy of the binary.
            let copy = self.folder.path().join("idgen");
            // By another process: what this one writes, a child that is started at that moment keeps open for a while,
            // and a program that is open for writing can't be run.
            let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_idgen")).arg(&copy).status().unwrap();
            assert!(copied.success(), "cp: {copied}");
            let mut command = Command::new("setpriv");
            command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(copy);
            command
        } else {
            Command::new(env!("CARGO_BIN_EXE_idgen"))
        };
        let inherited = std::env::vars_os().filter(|(name, _)| !name.to_string_lossy().starts_with("IDGEN"));
        let child = command
            .args(command_line)
            .args(&self.args)
            .current_dir(self.folder.path())
            .env_clear()
            .envs(inherited)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Node { child, log, addr: self.addr(), admin: self.admin(), ended: None, _folder: Arc::clone(&self.folder) }
    }

    /// Starts the node and waits until it answers `PING` with `PONG`.
    pub fn start(&self) -> Node {
        let mut node = self.spawn();
        eventually("the node is ready", PATIENCE, || {
            if let Some(status) = node.poll() {
                panic!("the node ended at its start with {status}:\n{}", node.log());
            }
            let mut conn = Conn::try_connect(node.addr).ok()?;
            (conn.try_call(&["PING"]).ok()? == Value::Simple("PONG".into())).then_some(())
        });
        node
    }

    /// Starts a node that must refuse to run; its exit code and what it wrote.
    pub fn refused(&self) -> (i32, String) {
        self.run(&["serve"])
    }
}

/// A running server.
pub struct Node {
    child: Child,
    log: PathBuf,
    addr: SocketAddr,
    admin: SocketAddr,
    ended: Option<ExitStatus>,
    /// A node may outlive its setup, and needs its data as long as it runs.
    _folder: Arc<TempDir>,
}

impl Node {
    /// A new connection.
    pub fn connect(&self) -> Conn {
        Conn::try_connect(self.addr).unwrap_or_else(|error| panic!("connect to {}: {error}", self.addr))
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port where clients connect on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Where HTTP is served.
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything that the node wrote to its standard output and error.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// `kill -9`, and waits until the process is gone.
    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }

    /// Sends `signal`.
    pub fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
        }
    }

    /// SIGTERM, which must end with exit code 0.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "a clean stop ended with {status}:\n{}", self.log());
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> ExitStatus {
        eventually("the node ends", PATIENCE, || self.poll())
    }

    /// How the process has ended, if it has.
    pub fn poll(&mut self) -> Option<ExitStatus> {
        self.ended = self.ended.or(self.child.try_wait().unwrap());
        self.ended
    }

    /// The resident memory of the process, in bytes.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// `GET path` over HTTP: the status and the body.
    pub fn http(&self, path: &str) -> (u16, String) {
        http(self.admin, path).unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    /// As [`Node::http`]; nothing if nobody answers.
    pub fn try_http(&self, path: &str) -> Option<(u16, String)> {
        http(self.admin, path).ok()
    }

    /// The value of the metric `name` (with labels, as it is printed), if it is there.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let (status, body) = self.http("/metrics");
        assert_eq!(status, 200, "{body}");
        body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.poll().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- the end of {}:", self.log.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

fn http(addr: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    use std::io::{Error, Read, Write};
    let mut stream = std::net::TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    assert!(!chunked, "the admin server sent a chunked body to a client that closes");
    Ok((status.ok_or_else(|| Error::other(format!("no status in {text:?}")))?, body.to_owned()))
}

/// A `sqlite3` shell on the database file of a node, as an operator would use it; it sits in one transaction at a time.
pub struct Shell {
    child: Child,
}

impl Shell {
    /// Runs `sql` to its end and returns what it printed.
    pub fn run(database: &Path, sql: &str) -> String {
        let output = Command::new("sqlite3").arg("-cmd").arg(".timeout 5000").arg(database).arg(sql).output().unwrap();
        assert!(output.status.success(), "sqlite3 {sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Takes the database's write lock and keeps it until dropped.
    pub fn lock(database: &Path) -> Self {
        Self::hold(database, "BEGIN IMMEDIATE;")
    }

    /// Takes the whole database, which nobody else can read or write until this is dropped.
    pub fn lock_whole(database: &Path) -> Self {
        Self::hold(database, "PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE;")
    }

    fn hold(database: &Path, begin: &str) -> Self {
        use std::io::{BufRead, BufReader, Write};
        let mut child = Command::new("sqlite3")
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sqlite3 is missing: `tests/install test` installs it");
        let stdin = child.stdin.as_mut().unwrap();
        stdin.write_all(format!(".bail on\n.timeout 5000\n{begin}\nSELECT 'locked';\n").as_bytes()).unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "locked"), "sqlite3 did not get the lock");
        Self { child }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
