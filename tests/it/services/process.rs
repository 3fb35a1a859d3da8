//! A server as a child process: started, signalled, awaited and ended by its process id, its log kept.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::node::{PATIENCE, eventually};

/// A folder for a server, in memory where that is to be had.
pub fn folder(name: &str) -> Arc<TempDir> {
    let memory = Path::new("/dev/shm");
    folder_in(if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }, name)
}

/// A folder for a server in `parent`.
pub fn folder_in(parent: PathBuf, name: &str) -> Arc<TempDir> {
    let folder = tempfile::Builder::new().prefix(&format!("idgen-{name}-")).tempdir_in(parent).unwrap();
    // PostgreSQL runs as another user, who has to get in.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    Arc::new(folder)
}

/// Where a server program lies: Debian keeps these out of the PATH of ordinary users.
pub fn program(name: &str) -> PathBuf {
    let found = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let places = found.unwrap_or_default().into_iter().chain(["/usr/sbin".into()]);
    places
        .map(|place| place.join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is missing: `tests/install databases` installs it"))
}

/// `command` as the user `postgres` when we are root: PostgreSQL and PgBouncer refuse to be root.
pub fn not_as_root(command: &Path) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return Command::new(command);
    }
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]).arg(command);
    wrapped
}

/// Makes `path` belong to the user of [`not_as_root`].
pub fn give_away(path: &Path) {
    if nix::unistd::geteuid().is_root() {
        run(Command::new("chown").arg("-R").arg("postgres:").arg(path));
    }
}

/// Runs `command` to its end, within [`PATIENCE`]; what it printed, or how it failed.
pub fn try_run(command: &Command) -> Result<String, String> {
    let mut limited = Command::new("timeout");
    limited.arg("--kill-after=1").arg(PATIENCE.as_secs().to_string()).arg(command.get_program());
    limited.args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    if let Some(folder) = command.get_current_dir() {
        limited.current_dir(folder);
    }
    let output = limited.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(format!("{command:?} ended with {}: {} {}", output.status, text(&output.stdout), text(&output.stderr)))
    }
}

/// As [`try_run`]; it must succeed.
pub fn run(command: &Command) -> String {
    try_run(command).unwrap_or_else(|text| panic!("{text}"))
}

/// A running server.
pub struct Process {
    child: Child,
    log: PathBuf,
    ended: bool,
    last: Signal,
}

impl Process {
    /// Starts `command`, whose output goes to the end of `log`.
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let output = fs::File::options().create(true).append(true).open(log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, log: log.to_owned(), ended: false, last: Signal::SIGKILL }
    }

    /// Which signal ends it when it is dropped, in place of SIGKILL.
    pub fn end_by(&mut self, signal: Signal) {
        self.last = signal;
    }

    /// Whether it still runs.
    pub fn alive(&mut self) -> bool {
        self.ended = self.ended || self.child.try_wait().unwrap().is_some();
        !self.ended
    }

    /// Waits until `asked` gets an answer.
    pub fn answers<T>(&mut self, what: &str, mut asked: impl FnMut() -> Option<T>) -> T {
        eventually(what, PATIENCE, || {
            assert!(self.alive(), "{what}: the server ended at its start");
            asked()
        })
    }

    /// Sends `signal` to the server and to the processes that it has started.
    pub fn signal_all(&mut self, signal: Signal) {
        if self.alive() {
            // The parent first, so that it can't start another meanwhile.
            let children = self.children();
            self.signal(signal);
            for child in children.into_iter().chain(self.children()) {
                let _ = kill(child, signal);
            }
        }
    }

    /// Sends `signal` to the server itself.
    pub fn signal(&mut self, signal: Signal) {
        if self.alive() {
            kill(self.pid(), signal).unwrap();
        }
    }

    /// Waits until it has ended.
    pub fn wait(&mut self) {
        eventually("the server ends", PATIENCE, || (!self.alive()).then_some(()));
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    fn children(&self) -> Vec<Pid> {
        let path = format!("/proc/{0}/task/{0}/children", self.child.id());
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).map(Pid::from_raw).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.last != Signal::SIGKILL && self.alive() {
            self.signal_all(Signal::SIGCONT);
            let _ = kill(self.pid(), self.last);
            let end = std::time::Instant::now() + Duration::from_secs(2);
            while self.alive() && std::time::Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.signal_all(Signal::SIGKILL);
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            eprintln!("--- the end of {}:", self.log.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// A client's session, kept open until it is dropped.
pub struct Session {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Session {
    /// Starts `client`, which reads statements from its input, runs `statements` and waits until they are through.
    pub fn hold(client: &mut Command, statements: &str) -> Self {
        let mut child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let mut session = Self { child, stdin, lines: BufReader::new(stdout).lines() };
        session.ask(statements);
        session
    }

    /// Runs more `statements`; the lines that they print.
    pub fn ask(&mut self, statements: &str) -> String {
        const THROUGH: &str = "these are through";
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{statements};\nSELECT '{THROUGH}';\n").as_bytes()).unwrap();
        stdin.flush().unwrap();
        let mut answer = Vec::new();
        loop {
            match self.lines.next() {
                Some(Ok(line)) if line == THROUGH => return answer.join("\n"),
                Some(Ok(line)) => answer.push(line),
                _ => panic!("the session ended at {statements}: {answer:?}"),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
