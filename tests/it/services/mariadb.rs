//! MariaDB.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::DATABASE;
use super::process::{Process, Session, folder, folder_in, program, run, try_run};
use crate::node::{PATIENCE, free_port};

/// A server with a folder of its own; its user `root` has no password.
pub struct MariaDb {
    process: Option<Process>,
    args: Vec<String>,
    port: u16,
    folder: Arc<TempDir>,
}

impl MariaDb {
    /// A fresh server with `args` behind the ones that the tests need.
    pub fn start(args: &[&str]) -> Self {
        Self::start_in(folder("mariadb"), args)
    }

    /// As [`Self::start`] with the data on a disk. In `/dev/shm` MariaDB takes the memory for one that outlives a power
    /// cut, so that whatever the settings are a crash loses nothing.
    pub fn start_on_disk(args: &[&str]) -> Self {
        let parent = std::env::temp_dir();
        assert!(!parent.starts_with("/dev/shm"), "TMPDIR must not lie in /dev/shm");
        Self::start_in(folder_in(parent, "mariadb"), args)
    }

    fn start_in(folder: Arc<TempDir>, args: &[&str]) -> Self {
        install(folder.path());
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut server = Self { process: None, args, port: free_port(), folder };
        server.start_again();
        server.create(DATABASE);
        server
    }

    /// A fresh server that follows `primary`, which must have been started with `--log-bin` and `--server-id=1`, and
    /// which is read-only until [`Self::promote`]. It has caught up when this returns.
    pub fn replica_of(primary: &Self) -> Self {
        let folder = folder("mariadb");
        install(folder.path());
        let args = ["--server-id=2", "--log-bin", "--read-only=1", "--skip-slave-start"].map(str::to_owned).into();
        let mut server = Self { process: None, args, port: free_port(), folder };
        server.start_again();
        server.sql_in(
            "",
            &format!(
                "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='root', MASTER_CONNECT_RETRY=1, \
                 MASTER_USE_GTID=slave_pos; START SLAVE",
                primary.port
            ),
        );
        server.await_position(primary);
        server
    }

    /// Waits until this replica has everything that `primary` has written so far.
    pub fn await_position(&self, primary: &Self) {
        let position = primary.sql_in("", "SELECT @@gtid_binlog_pos");
        let waited = self.sql_in("", &format!("SELECT MASTER_GTID_WAIT('{position}', {})", PATIENCE.as_secs()));
        assert_eq!(waited, "0", "the replica did not reach {position}: {}", self.sql_in("", "SHOW SLAVE STATUS"));
    }

    /// Stops following: what the primary writes from now on does not come here.
    pub fn stop_following(&self) {
        self.sql_in("", "STOP SLAVE");
    }

    /// Makes a replica the one that is written to, with whatever it has.
    pub fn promote(&self) {
        self.sql_in("", "STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0");
    }

    /// Starts it on the same folder and port after [`Self::stop`] or [`Self::kill9`].
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let user = nix::unistd::geteuid().is_root().then_some("--user=root");
        let path = self.folder.path();
        let mut command = Command::new(program("mariadbd"));
        command
            .arg("--no-defaults")
            .args(user)
            .arg(format!("--datadir={}", path.join("data").display()))
            // A MariaDB that starts clears its folder for temporary tables, whoever they belong to.
            .arg(format!("--tmpdir={}", path.join("tmp").display()))
            .arg(format!("--socket={}", path.join("socket").display()))
            .arg(format!("--port={}", self.port))
            .args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=300"])
            .args(["--innodb-log-file-size=16M", "--innodb-buffer-pool-size=32M", "--performance-schema=off"])
            .args(["--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1"])
            .args(&self.args);
        let mut process = Process::start(&mut command, &path.join("log"));
        process.answers("MariaDB answers", || try_run(&self.client("", "SELECT 1")).ok());
        self.process = Some(process);
    }

    /// As [`Self::start_again`], with other arguments from now on.
    pub fn start_again_with(&mut self, args: &[&str]) {
        self.args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.start_again();
    }

    /// `kill -9`.
    pub fn kill9(&mut self) {
        self.end(Signal::SIGKILL);
    }

    /// A clean stop.
    pub fn stop(&mut self) {
        self.end(Signal::SIGTERM);
    }

    fn end(&mut self, signal: Signal) {
        let mut process = self.process.take().expect("it has ended already");
        process.signal(signal);
        process.wait();
    }

    /// Stops the process where it is (SIGSTOP): connections are accepted by the kernel, and nothing is said.
    pub fn pause(&mut self) {
        self.process.as_mut().expect("it has ended").signal(Signal::SIGSTOP);
    }

    /// Goes on after [`Self::pause`].
    pub fn resume(&mut self) {
        self.process.as_mut().expect("it has ended").signal(Signal::SIGCONT);
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
        format!("mysql://root@{addr}/{database}")
    }

    fn create(&self, database: &str) {
        self.sql_in("", &format!("CREATE DATABASE IF NOT EXISTS {database}"));
    }

    /// Runs `statements` in [`DATABASE`]; the rows, columns with tabs between them, without a head.
    pub fn sql(&self, statements: &str) -> String {
        self.sql_in(DATABASE, statements)
    }

    /// As [`Self::sql`], in another database.
    pub fn sql_in(&self, database: &str, statements: &str) -> String {
        run(&self.client(database, statements))
    }

    /// As [`Self::sql`]; the error's text if it fails.
    pub fn try_sql(&self, statements: &str) -> Result<String, String> {
        try_run(&self.client(DATABASE, statements))
    }

    /// A session that has run `statements` (`BEGIN; SELECT … FOR UPDATE`) and stays open until it is dropped.
    pub fn hold(&self, statements: &str) -> Session {
        Session::hold(Command::new("mariadb").args(self.login(DATABASE)).arg("--unbuffered"), statements)
    }

    /// How many connections others than the one that asks have.
    pub fn connections(&self) -> u64 {
        let count = "SELECT count(*) - 1 FROM information_schema.processlist WHERE command <> 'Daemon' AND host <> ''";
        self.sql_in("", count).parse().unwrap()
    }

    /// The server's folder; its data lies in `data`, its log in `log`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn client(&self, database: &str, statements: &str) -> Command {
        let mut command = Command::new("mariadb");
        command.args(self.login(database)).arg("-e").arg(statements);
        command
    }

    fn login(&self, database: &str) -> Vec<String> {
        let mut words: Vec<String> =
            ["--no-defaults", "--protocol=tcp", "-h", "127.0.0.1", "-u", "root", "-N", "-B", "--connect-timeout=5"]
                .map(str::to_owned)
                .into();
        words.extend(["-P".into(), self.port.to_string()]);
        words.extend((!database.is_empty()).then(|| database.to_owned()));
        words
    }
}

fn install(folder: &Path) {
    std::fs::create_dir(folder.join("tmp")).unwrap();
    run(Command::new(program("mariadb-install-db"))
        .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
        .args(["--skip-name-resolve", "--innodb-log-file-size=16M"])
        .args(nix::unistd::geteuid().is_root().then_some("--user=root"))
        .arg(format!("--tmpdir={}", folder.join("tmp").display()))
        .arg(format!("--datadir={}", folder.join("data").display())));
}

#[test]
fn mariadb_keeps_what_it_has_confirmed_over_kills() {
    let mut server = MariaDb::start(&[]);
    server.sql("CREATE TABLE t (n BIGINT); INSERT INTO t VALUES (1)");
    for n in 2..5 {
        server.sql(&format!("UPDATE t SET n = {n}"));
        server.kill9();
        assert!(server.try_sql("SELECT 1").is_err(), "somebody answers for a dead server");
        server.start_again();
        assert_eq!(server.sql("SELECT n FROM t"), n.to_string());
    }
    server.stop();
    server.start_again();
    assert_eq!(server.sql("SELECT n FROM t"), "4");
}

/// The fault itself, so that a test of it can be believed.
#[test]
fn mariadb_with_a_lazy_log_loses_what_it_has_confirmed() {
    let lazy = ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-log-at-timeout=2700"];
    let mut server = MariaDb::start_on_disk(&[]);
    server.sql("CREATE TABLE t (n BIGINT); INSERT INTO t VALUES (1)");
    server.stop();
    server.start_again_with(&lazy);
    server.sql("UPDATE t SET n = 2");
    assert_eq!(server.sql("SELECT n FROM t"), "2");
    server.kill9();
    server.start_again();
    assert_eq!(server.sql("SELECT n FROM t"), "1");
}

/// What the checker says to the ranges of two sessions that take the steps of a grant in turns.
fn ranges_of_two(grant: [&str; 2]) -> Result<u64, String> {
    let server = MariaDb::start(&[]);
    server.sql("CREATE TABLE t (max_id BIGINT) ENGINE = InnoDB; INSERT INTO t VALUES (0)");
    let mut sessions = [server.hold("SET autocommit = 1"), server.hold("SET autocommit = 1")];
    let mut ranges = Vec::new();
    for step in grant {
        let ends = sessions.iter_mut().filter_map(|session| session.ask(step).parse::<i64>().ok());
        ranges.extend(ends.map(|end| (end - 999, end)));
    }
    assert_eq!(ranges.len(), 2, "{ranges:?}");
    crate::checkers::distinct(&mut ranges)
}

/// How others have made duplicates: two statements, with somebody else's between them.
#[test]
fn an_update_and_then_a_select_give_one_range_to_two_and_the_checker_sees_it() {
    let found = ranges_of_two(["UPDATE t SET max_id = max_id + 1000", "SELECT max_id FROM t"]);
    assert!(found.clone().is_err_and(|text| text.contains("came twice")), "{found:?}");
    let whole = ["UPDATE t SET max_id = LAST_INSERT_ID(max_id + 1000)", "SELECT LAST_INSERT_ID()"];
    assert_eq!(ranges_of_two(whole), Ok(2000));
}

#[test]
fn a_mariadb_replica_follows_and_is_promoted_with_what_it_has() {
    let primary = MariaDb::start(&["--server-id=1", "--log-bin"]);
    primary.sql("CREATE TABLE t (n BIGINT); INSERT INTO t VALUES (1)");
    let replica = MariaDb::replica_of(&primary);
    assert_eq!(replica.sql("SELECT n FROM t"), "1");
    primary.sql("UPDATE t SET n = 2");
    replica.await_position(&primary);
    assert_eq!(replica.sql("SELECT n FROM t"), "2");
    replica.stop_following();
    primary.sql("UPDATE t SET n = 3");
    replica.promote();
    assert_eq!(replica.sql("SELECT n FROM t; SELECT @@read_only"), "2\n0");
}
