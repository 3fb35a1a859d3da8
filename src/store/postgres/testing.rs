//! A database of its own for a test, on the server that `make test` has started, and what stands between: a proxy that
//! cuts connections at a chosen message, and a real PgBouncer.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::ids::random_u128;
use crate::store::{Config, Server};

/// Where the tests' server is.
pub(crate) const VARIABLE: &str = "IDGEN_TEST_POSTGRES_DSN";

/// A database that is dropped with this.
pub(crate) struct Database {
    admin: String,
    name: String,
    pub(crate) server: Server,
}

impl Database {
    pub(crate) async fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "where the tests' server is, only its starter knows")]
        let admin = std::env::var(VARIABLE);
        let admin =
            admin.unwrap_or_else(|_| panic!("{VARIABLE} is not set: `make test` starts a PostgreSQL and sets it"));
        let config = Config { dsn: admin.clone(), ..Config::default() };
        let server = config.server().unwrap_or_else(|error| panic!("{VARIABLE}: {error}"));
        let name = format!("idgen_{:032x}", random_u128().expect("randomness"));
        let database = Self { admin, name, server };
        database.on_server(&format!("CREATE DATABASE {}", database.name)).await;
        database
    }

    /// The configuration that leads to it, through `port` where one is named.
    pub(crate) fn config(&self, port: Option<u16>) -> Config {
        let Server { user, password, host, .. } = &self.server;
        let password = password.as_ref().map_or(String::new(), |password| format!(":{password}"));
        let port = port.unwrap_or(self.server.port);
        let (host, name) = (if port == self.server.port { host } else { "127.0.0.1" }, &self.name);
        let dsn = format!("postgres://{user}{password}@{host}:{port}/{name}");
        Config { dsn, statement_timeout: Duration::from_secs(10), ..Config::default() }
    }

    /// Runs `sql` as the database's administrator, outside of it.
    pub(crate) async fn on_server(&self, sql: &str) {
        administer(&self.admin, sql).await;
    }

    /// Runs `sql` inside of it.
    pub(crate) async fn run(&self, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut connection = self.connect().await;
        let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await;
        connection.close().await.expect("close");
        rows
    }

    /// Another program's connection.
    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.config(None).dsn).await.expect("the database")
    }

    /// Ends every session of the database but the caller's.
    pub(crate) async fn end_sessions(&self) {
        let sql = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'", self.name);
        self.on_server(&sql).await;
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (admin, sql) = (self.admin.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        // The test's own runtime can't be waited on from here.
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(administer(&admin, &sql));
        });
        assert!(thread.join().is_ok() || std::thread::panicking(), "the database {} was not dropped", self.name);
    }
}

async fn administer(dsn: &str, sql: &str) {
    let mut connection = PgConnection::connect(dsn).await.expect("the server");
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.expect(sql);
    connection.close().await.expect("close");
}

/// What the proxy does with the answers of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Fault {
    /// They pass.
    None,
    /// The connection is cut after the first row of an answer, before what confirms it.
    CutAfterRow,
    /// They are kept back.
    Silence,
}

/// A proxy that reads the server's messages.
pub(super) struct Proxy {
    pub(super) port: u16,
    fault: Arc<AtomicU8>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn new(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let fault = Arc::new(AtomicU8::new(Fault::None as u8));
        let (seen, target) = (Arc::clone(&fault), (server.host.clone(), server.port));
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (seen, target) = (Arc::clone(&seen), target.clone());
                tokio::spawn(async move {
                    let server = TcpStream::connect(target).await.expect("the server");
                    pass(client, server, &seen).await;
                });
            }
        });
        Self { port, fault, accepting }
    }

    pub(super) fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Passes bytes on until one side ends or the fault says so.
async fn pass(client: TcpStream, server: TcpStream, fault: &AtomicU8) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forth = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let back = async {
        loop {
            let kind = from_server.read_u8().await?;
            let length = from_server.read_u32().await?;
            let mut body = vec![0; length as usize - 4];
            from_server.read_exact(&mut body).await?;
            if fault.load(Ordering::SeqCst) == Fault::Silence as u8 {
                std::future::pending::<()>().await;
            }
            to_client.write_all(&[&[kind][..], &length.to_be_bytes(), &body].concat()).await?;
            if kind == b'D' && fault.load(Ordering::SeqCst) == Fault::CutAfterRow as u8 {
                return std::io::Result::Ok(());
            }
        }
    };
    tokio::select! {
        _ = forth => {}
        _ = back => {}
    }
}

/// A PgBouncer in transaction mode, whose few server connections all of its clients share.
pub(crate) struct PgBouncer {
    pub(crate) port: u16,
    child: Child,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    pub(crate) async fn start(server: &Server) -> Self {
        // Somebody else may take the port between its choice and its use.
        for _ in 0..5 {
            let mut bouncer = Self::spawn(server).await;
            if bouncer.answers().await {
                return bouncer;
            }
        }
        panic!("pgbouncer ends at once, five times");
    }

    async fn spawn(server: &Server) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port().await;
        let Server { host, port: behind, user, .. } = server;
        let password = server.password.as_ref().map_or(String::new(), |password| format!(" password={password}"));
        let config = format!(
            "[databases]\n* = host={host} port={behind} user={user}{password}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\n"
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, config).expect("its configuration");
        // It refuses to run as root, and then has to be able to read its configuration.
        let root = nix::unistd::geteuid().is_root();
        // Debian keeps it where only root looks.
        let debian = "/usr/sbin/pgbouncer";
        let program = if std::path::Path::new(debian).exists() { debian } else { "pgbouncer" };
        let mut command = Command::new(if root { "setpriv" } else { program });
        if root {
            let nobody = nix::unistd::User::from_name("nobody").expect("users").expect("nobody");
            nix::unistd::chown(folder.path(), Some(nobody.uid), None).expect("chown");
            nix::unistd::chown(&file, Some(nobody.uid), None).expect("chown");
            command.args(["--reuid=nobody", "--clear-groups", program]);
        }
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("pgbouncer: `make test` installs it");
        Self { port, child, _folder: folder }
    }

    /// Waits until it listens; whether it is still there then.
    async fn answers(&mut self) -> bool {
        let started = async {
            while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
                if self.ended() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), started).await.expect("pgbouncer listens");
        !self.ended()
    }

    fn ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address").port()
}
