//! PgBouncer in transaction mode in front of a PostgreSQL: each transaction may meet another session of the server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::postgres::Postgres;
use super::process::{Process, folder, give_away, not_as_root, program, run, try_run};
use crate::node::free_port;

/// A running PgBouncer.
pub struct PgBouncer {
    process: Option<Process>,
    port: u16,
    folder: Arc<TempDir>,
}

impl PgBouncer {
    /// In front of `server`, with `lines` in the section `[pgbouncer]` behind the ones that the tests need.
    pub fn before(server: &Postgres, lines: &[&str]) -> Self {
        let (folder, port) = (folder("pgbouncer"), free_port());
        let path = folder.path();
        let (file, users) = (path.join("pgbouncer.ini"), path.join("users"));
        fs::write(&users, "\"postgres\" \"\"\n").unwrap();
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\nmax_client_conn = 500\n\
             default_pool_size = 10\nserver_reset_query_always = 0\n{}\n",
            server.addr().port(),
            users.display(),
            lines.join("\n"),
        );
        fs::write(&file, text).unwrap();
        give_away(path);
        let mut bouncer = Self { process: None, port, folder };
        bouncer.start_again();
        bouncer
    }

    /// Starts it on the same port after [`Self::kill9`].
    pub fn start_again(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let (file, log) = (self.folder.path().join("pgbouncer.ini"), self.folder.path().join("log"));
        let mut process = Process::start(not_as_root(&program("pgbouncer")).arg(file), &log);
        let asked = ask(self.port, "SELECT 1");
        process.answers("PgBouncer answers", || try_run(&asked).ok());
        self.process = Some(process);
    }

    /// `kill -9`.
    pub fn kill9(&mut self) {
        let mut process = self.process.take().expect("it has ended already");
        process.signal(Signal::SIGKILL);
        process.wait();
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The DSN of `database` through it; the database must be there.
    pub fn dsn(&self, database: &str) -> String {
        Postgres::dsn_at(self.addr(), database)
    }

    /// Runs one statement in the server's database `postgres` through it.
    pub fn sql(&self, statement: &str) -> String {
        run(&ask(self.port, statement))
    }
}

fn ask(port: u16, statement: &str) -> Command {
    let mut command = Command::new("psql");
    let port = port.to_string();
    command.args(["-X", "-q", "-At", "-h", "127.0.0.1", "-U", "postgres", "-d", "postgres", "-p", &port]);
    command.args(["-c", statement]).env("PGCONNECT_TIMEOUT", "5");
    command
}

#[test]
fn pgbouncer_passes_statements_on() {
    let server = Postgres::start(&[]);
    let bouncer = PgBouncer::before(&server, &[]);
    assert_eq!(bouncer.sql("SELECT current_setting('port')"), server.addr().port().to_string());
    assert_eq!(bouncer.dsn("idgen"), format!("postgres://postgres@{}/idgen", bouncer.addr()));
}
