//! PostgreSQL.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::DATABASE;
use super::process::{Process, Session, folder, give_away, not_as_root, run, try_run};
use crate::node::{PATIENCE, eventually, free_port};

/// A server with a folder of its own, where everybody is let in.
pub struct Postgres {
    process: Option<Process>,
    settings: Vec<String>,
    port: u16,
    folder: Arc<TempDir>,
}

impl Postgres {
    /// A fresh server with `settings` (`synchronous_commit=off`).
    pub fn start(settings: &[&str]) -> Self {
        let folder = Self::empty_folder();
        let data = folder.path().join("data");
        run(not_as_root(&installed("initdb"))
            .args(["--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-D"])
            .arg(&data)
            .current_dir(&data));
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = Self { process: None, settings, port: free_port(), folder };
        server.start_again();
        server.create(DATABASE);
        server
    }

    /// A fresh server that follows `primary` and can only be read until [`Self::promote`]. It has caught up when this
    /// returns.
    pub fn replica_of(primary: &Self) -> Self {
        let folder = Self::empty_folder();
        let data = folder.path().join("data");
        run(not_as_root(&installed("pg_basebackup"))
            .args(["-h", "127.0.0.1", "-U", "postgres", "-R", "--no-sync", "-c", "fast", "-p"])
            .arg(primary.port.to_string())
            .arg("-D")
            .arg(&data)
            .current_dir(&data));
        let mut server = Self { process: None, settings: Vec::new(), port: free_port(), folder };
        server.start_again();
        server.await_position(primary);
        server
    }

    fn empty_folder() -> Arc<TempDir> {
        let folder = folder("postgres");
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
        give_away(&data);
        folder
    }

    /// Waits until this replica has everything that `primary` has written so far.
    pub fn await_position(&self, primary: &Self) {
        let position = primary.sql("SELECT pg_current_wal_lsn()");
        let reached = format!("SELECT pg_last_wal_replay_lsn() >= '{position}'");
        eventually("the replica has caught up", PATIENCE, || (self.sql(&reached) == "t").then_some(()));
    }

    /// Stops following: what the primary writes from now on does not come here.
    pub fn stop_following(&self) {
        self.sql("ALTER SYSTEM SET primary_conninfo = ''");
        self.sql("SELECT pg_reload_conf()");
        let gone = "SELECT count(*) = 0 FROM pg_stat_wal_receiver";
        eventually("the replica has stopped following", PATIENCE, || (self.sql(gone) == "t").then_some(()));
    }

    /// Makes a replica the one that is written to, with whatever it has.
    pub fn promote(&self) {
        assert_eq!(self.sql("SELECT pg_promote()"), "t");
    }

    /// Starts it on the same folder and port after [`Self::stop`], [`Self::crash`] or [`Self::kill9`].
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let data = self.folder.path().join("data");
        let mut command = not_as_root(&installed("postgres"));
        command.current_dir(&data).arg("-D").arg(&data).args(["-p", &self.port.to_string()]);
        let fixed = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("unix_socket_directories={}", data.display()),
            "max_connections=300".into(),
            "shared_buffers=32MB".into(),
            "dynamic_shared_memory_type=mmap".into(), // in the folder: nothing is left behind by `kill -9`
        ];
        for setting in fixed.iter().chain(&self.settings) {
            command.args(["-c", setting]);
        }
        let mut process = Process::start(&mut command, &self.folder.path().join("log"));
        process.end_by(Signal::SIGQUIT); // so that it gives its shared memory back
        process.answers("PostgreSQL answers", || try_run(&self.client("postgres", "SELECT 1")).ok());
        self.process = Some(process);
    }

    /// As [`Self::start_again`], with other settings from now on.
    pub fn start_again_with(&mut self, settings: &[&str]) {
        self.settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        self.start_again();
    }

    /// `kill -9` of all its processes.
    pub fn kill9(&mut self) {
        let mut process = self.process.take().expect("it has ended already");
        process.signal_all(Signal::SIGKILL);
        process.wait();
        // One that was born meanwhile knows no parent any more, and would keep the shared memory.
        let data = self.folder.path().join("data");
        eventually("its processes have ended", PATIENCE, || {
            let left = working_in(&data);
            for pid in &left {
                let _ = kill(*pid, Signal::SIGKILL);
            }
            left.is_empty().then_some(())
        });
    }

    /// What `pg_ctl stop -m immediate` does: nothing is flushed, the next start recovers from the log.
    pub fn crash(&mut self) {
        self.end(Signal::SIGQUIT);
    }

    /// A clean stop that cuts clients off.
    pub fn stop(&mut self) {
        self.end(Signal::SIGINT);
    }

    fn end(&mut self, signal: Signal) {
        let mut process = self.process.take().expect("it has ended already");
        process.signal(signal);
        process.wait();
    }

    /// Stops its processes where they are (SIGSTOP): connections are accepted by the kernel, and nothing is said.
    pub fn pause(&mut self) {
        self.process.as_mut().expect("it has ended").signal_all(Signal::SIGSTOP);
    }

    /// Goes on after [`Self::pause`].
    pub fn resume(&mut self) {
        self.process.as_mut().expect("it has ended").signal_all(Signal::SIGCONT);
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The DSN of `database`, which is created if it is not there.
    pub fn dsn(&self, database: &str) -> String {
        self.create(database);
        Self::dsn_at(self.addr(), database)
    }

    /// The DSN of `database` by way of `addr`, a proxy for example.
    pub fn dsn_at(addr: SocketAddr, database: &str) -> String {
        format!("postgres://postgres@{addr}/{database}")
    }

    fn create(&self, database: &str) {
        let there = format!("SELECT count(*) FROM pg_database WHERE datname = '{database}'");
        if self.sql_in("postgres", &there) == "0" {
            self.sql_in("postgres", &format!("CREATE DATABASE {database}"));
        }
    }

    /// Runs one statement in [`DATABASE`]; the rows, columns with `|` between them, without a head.
    pub fn sql(&self, statement: &str) -> String {
        self.sql_in(DATABASE, statement)
    }

    /// As [`Self::sql`], in another database.
    pub fn sql_in(&self, database: &str, statement: &str) -> String {
        run(&self.client(database, statement))
    }

    /// As [`Self::sql`]; the error's text if it fails.
    pub fn try_sql(&self, statement: &str) -> Result<String, String> {
        try_run(&self.client(DATABASE, statement))
    }

    /// A session that has run `statements` (`BEGIN; SELECT … FOR UPDATE`) and stays open until it is dropped.
    pub fn hold(&self, statements: &str) -> Session {
        Session::hold(Command::new("psql").args(self.login(DATABASE)), statements)
    }

    /// How many connections others than the one that asks have.
    pub fn connections(&self) -> u64 {
        let count = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'";
        self.sql(count).parse().unwrap()
    }

    /// Waits until nobody else is connected.
    pub fn await_alone(&self) {
        eventually("everybody has left the database", PATIENCE, || (self.connections() == 0).then_some(()));
    }

    /// The server's folder; its data lies in `data`, its log in `log`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn client(&self, database: &str, statement: &str) -> Command {
        let mut command = Command::new("psql");
        command.args(self.login(database)).arg("-c").arg(statement).env("PGCONNECT_TIMEOUT", "5");
        command
    }

    fn login(&self, database: &str) -> Vec<String> {
        let port = self.port.to_string();
        ["-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres", "-p", &port, "-d", database]
            .map(str::to_owned)
            .into()
    }
}

/// A program of the newest PostgreSQL that is installed.
fn installed(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions
        .map(|version| version.path().join("bin").join(name))
        .filter(|path| path.exists())
        .max()
        .unwrap_or_else(|| super::process::program(name))
}

#[test]
fn postgresql_keeps_what_it_has_confirmed_over_kills() {
    let mut server = Postgres::start(&[]);
    server.sql("CREATE TABLE t AS SELECT 1::bigint AS n");
    for n in 2..6 {
        server.sql(&format!("UPDATE t SET n = {n}"));
        match n % 2 {
            0 => server.kill9(),
            _ => server.crash(),
        }
        assert!(server.try_sql("SELECT 1").is_err(), "somebody answers for a dead server");
        server.start_again();
        assert_eq!(server.sql("SELECT n FROM t"), n.to_string());
    }
    server.stop();
    server.start_again();
    assert_eq!(server.sql("SELECT n FROM t"), "5");
}

/// The fault itself, so that a test of it can be believed.
#[test]
fn postgresql_that_commits_later_loses_what_it_has_confirmed() {
    let mut server = Postgres::start(&["wal_writer_delay=10s", "synchronous_commit=off"]);
    server.sql("CREATE TABLE t AS SELECT 1::bigint AS n");
    server.sql("CHECKPOINT");
    server.sql("UPDATE t SET n = 2");
    assert_eq!(server.sql("SELECT n FROM t"), "2");
    server.crash();
    server.start_again();
    assert_eq!(server.sql("SELECT n FROM t"), "1");
}

#[test]
fn a_postgresql_replica_follows_and_is_promoted_with_what_it_has() {
    let primary = Postgres::start(&[]);
    primary.sql("CREATE TABLE t AS SELECT 1::bigint AS n");
    let replica = Postgres::replica_of(&primary);
    assert_eq!(replica.sql("SELECT n FROM t"), "1");
    primary.sql("UPDATE t SET n = 2");
    replica.await_position(&primary);
    assert_eq!(replica.sql("SELECT n FROM t"), "2");
    replica.stop_following();
    primary.sql("UPDATE t SET n = 3");
    replica.promote();
    assert_eq!(replica.sql("SELECT n, pg_is_in_recovery() FROM t"), "2|f");
}

#[test]
fn a_paused_postgresql_says_nothing_and_goes_on_later() {
    let mut server = Postgres::start(&[]);
    let mut asked = server.client(DATABASE, "SELECT 1");
    server.pause();
    let mut waiting = asked.env("PGCONNECT_TIMEOUT", "20").stdout(std::process::Stdio::null()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500)); // the time in which nothing may happen
    assert!(waiting.try_wait().unwrap().is_none(), "a stopped server has answered");
    server.resume();
    let status = eventually("the answer comes", PATIENCE, || waiting.try_wait().unwrap());
    assert!(status.success());
}

/// The processes whose working folder is `folder`, as it is for all of a PostgreSQL server.
fn working_in(folder: &Path) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let within = processes.filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == folder));
    within.filter_map(|process| process.file_name().to_str()?.parse().ok().map(Pid::from_raw)).collect()
}
