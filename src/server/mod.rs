//! Sockets and tasks: accepts connections and gives each a task on a lane. Knows bytes and time, not ids.
//!
//! Limits hold before a connection costs anything: too many clients get Redis' text and are closed; a failing `accept`
//! backs off and goes on, so that one bad moment doesn't starve the listener. On a stop the listeners close first, then
//! each connection at a command boundary.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use crate::clock::Boot;
use crate::command::{Context, Peer};
use crate::telemetry::Throttle;

mod buffers;
mod connection;
mod lanes;
mod shutdown;

use lanes::Lanes;

pub use connection::Rules;
pub use shutdown::stop_signals;

/// Section `server` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the Redis protocol is served: `host:port`. Empty: on no TCP port.
    pub addr: String,
    /// The path of a unix socket to serve on as well. Empty: none.
    pub unix_socket: String,
    /// How many connections there may be at once, 1 to 1 000 000; the open-file limit may allow fewer.
    pub max_clients: u32,
    /// The most ids one command may ask for, 1 to 10 000.
    pub max_count: u32,
    /// How long a request may wait for ids, counted from when its bytes were read; 0 to 10 s.
    #[serde(with = "humantime_serde")]
    pub wait_max: Duration,
    /// A connection that has sent nothing for so long is closed; 0: never.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// How long a node that was asked to stop goes on serving before it closes its listeners.
    #[serde(with = "humantime_serde")]
    pub drain_delay: Duration,
    /// How long a stop waits for connections to end, at most.
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
    /// A connection is closed between two commands when it is older than this; 0: never.
    #[serde(with = "humantime_serde")]
    pub max_connection_age: Duration,
    /// Lets a listener that others can reach serve without users.
    pub allow_unauthenticated: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addr: "127.0.0.1:6390".into(),
            unix_socket: String::new(),
            max_clients: 10_000,
            max_count: 10_000,
            wait_max: Duration::from_millis(250),
            idle_timeout: Duration::ZERO,
            drain_delay: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(10),
            max_connection_age: Duration::ZERO,
            allow_unauthenticated: false,
        }
    }
}

/// A connection that nobody answers is noticed after this long without traffic.
const KEEPALIVE: Duration = Duration::from_mins(1);

/// Bytes that the peer does not acknowledge for this long end the connection. Linux also counts the time in which a peer
/// acknowledges but has no room, so it must not be shorter than what a slow reader may take (`connection::WRITE_STALL`).
const USER_TIMEOUT: Duration = Duration::from_mins(1);

/// The pause after a failed `accept` (no file descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Connections that the kernel keeps for us until they are accepted.
const BACKLOG: i32 = 1024;

/// What all connections share.
pub struct Shared {
    /// The settings.
    pub config: Config,
    /// What commands work on.
    pub context: Arc<Context>,
    /// Departures from the right behaviour, for tests that must find them.
    pub rules: Rules,
    /// Cancelled when connections are to close at their next command boundary.
    pub drain: CancellationToken,
    foreign: Mutex<Throttle>,
    refused: Mutex<Throttle>,
}

impl Shared {
    /// What all connections share; `rules` are the right ones but in tests.
    pub fn new(config: Config, context: Arc<Context>, rules: Rules) -> Self {
        Self {
            config,
            context,
            rules,
            drain: CancellationToken::new(),
            foreign: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Whether a connection that speaks another protocol is logged: a port scan must not fill the log.
    fn foreign_protocol(&self, now: Boot) -> bool {
        Self::may_log(&self.foreign, now)
    }

    fn may_log(throttle: &Mutex<Throttle>, now: Boot) -> bool {
        let mut throttle = throttle.lock().unwrap_or_else(PoisonError::into_inner);
        throttle.permit(Duration::from_nanos(now.0)).is_some()
    }
}

/// One place to listen.
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// A connection that belongs to no event loop yet.
enum Accepted {
    Tcp(std::net::TcpStream),
    Unix(StdUnixStream),
}

impl Listener {
    /// The next connection, and who it is.
    async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, addr) = listener.accept().await?;
                tune(&stream);
                let local = stream.local_addr().map(|addr| addr.to_string()).unwrap_or_default();
                let peer = Peer { addr: addr.to_string(), local, unix: false };
                Ok((Accepted::Tcp(stream.into_std()?), peer))
            }
            Self::Unix(listener, path) => {
                let (stream, _) = listener.accept().await?;
                let addr = format!("{}:0", path.display());
                let peer = Peer { addr: addr.clone(), local: addr, unix: true };
                Ok((Accepted::Unix(stream.into_std()?), peer))
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The listeners, bound and not yet accepting, and the lanes that will serve what they accept.
pub struct Server {
    tcp: Option<Listener>,
    unix: Option<Listener>,
    lanes: Lanes,
}

impl Server {
    /// Binds what the configuration names.
    ///
    /// # Errors
    /// The text names the key, the address and what to do.
    pub async fn bind(config: &Config) -> Result<Self, String> {
        let (addr, path) = (config.addr.as_str(), config.unix_socket.as_str());
        if addr.is_empty() && path.is_empty() {
            return Err("server.addr and server.unix_socket are both empty: name at least one to listen on".into());
        }
        let mut server = Self { tcp: None, unix: None, lanes: Lanes::start().map_err(|error| lanes_error(&error))? };
        if !addr.is_empty() {
            let listener = bind_tcp(addr).await.map_err(|error| bind_error("server.addr", addr, &error))?;
            server.tcp = Some(Listener::Tcp(listener));
        }
        if !path.is_empty() {
            let listener =
                bind_unix(Path::new(path)).map_err(|error| bind_error("server.unix_socket", path, &error))?;
            server.unix = Some(Listener::Unix(listener, PathBuf::from(path)));
        }
        Ok(server)
    }

    /// The TCP address that was bound: the port is a real one also where port 0 was asked for.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.tcp {
            Some(Listener::Tcp(listener)) => listener.local_addr().ok(),
            _ => None,
        }
    }

    /// The event loops that serve connections: a server of which one stands still is not alive.
    pub fn event_loops(&self) -> impl Iterator<Item = tokio::runtime::Handle> {
        self.lanes.event_loops()
    }

    /// Accepts until `closing`, then waits for the connections to end, at most `server.shutdown_timeout`.
    pub async fn run(self, shared: Arc<Shared>, closing: CancellationToken) {
        let Self { tcp, unix, lanes } = self;
        tokio::join!(accept(tcp, &shared, &lanes, &closing), accept(unix, &shared, &lanes, &closing));
        shared.drain.cancel();
        let left = lanes.finish(shared.config.shutdown_timeout).await;
        if left > 0 {
            tracing::warn!(connections = left, "server.shutdown_timeout is over: closing the connections left");
        }
    }
}

fn lanes_error(error: &io::Error) -> String {
    format!("the threads that serve connections could not be started: {error}; the system's limits may be too low")
}

fn bind_error(key: &str, place: &str, error: &io::Error) -> String {
    let fix = match error.kind() {
        io::ErrorKind::AddrInUse => "another program (or another idgen) listens there: stop it or choose another",
        io::ErrorKind::PermissionDenied => "this user may not listen there: choose a port above 1023 or another folder",
        io::ErrorKind::AddrNotAvailable => "this machine has no such address: use one it has, or 0.0.0.0",
        _ => "give an address as host:port, or a path in a folder that exists",
    };
    format!("{key}: cannot listen on {place}: {error}; {fix}")
}

async fn bind_tcp(addr: &str) -> io::Result<TcpListener> {
    let addr = tokio::net::lookup_host(addr).await?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// A socket file left behind by a process that is gone is replaced; one that answers is not. Only this user may connect.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    if path.exists() {
        use std::os::unix::fs::FileTypeExt;
        if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path is a file that is no socket"));
        }
        std::fs::remove_file(path)?;
    }
    // Bound under another name in the same folder and renamed once its mode is set: nobody can connect in between.
    let hidden = path.with_extension(format!("{}.new", std::process::id()));
    let listener = UnixListener::bind(&hidden)?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o700))?;
    std::fs::rename(&hidden, path)?;
    Ok(listener)
}

/// Accepts until `closing`, then closes the listener.
async fn accept(listener: Option<Listener>, shared: &Arc<Shared>, lanes: &Lanes, closing: &CancellationToken) {
    let Some(listener) = listener else { return };
    loop {
        let accepted = tokio::select! {
            biased;
            () = closing.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((Accepted::Tcp(stream), peer)) => {
                start(lanes, shared, peer, move || TcpStream::from_std(stream));
            }
            Ok((Accepted::Unix(stream), peer)) => {
                start(lanes, shared, peer, move || UnixStream::from_std(stream));
            }
            Err(error) => accept_failed(&error, shared).await,
        }
    }
}

async fn accept_failed(error: &io::Error, shared: &Shared) {
    if Shared::may_log(&shared.refused, shared.context.clock.boot()) {
        tracing::warn!(error_kind = "system", "a connection could not be accepted: {error}");
    }
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

/// Gives the connection a task, or Redis' text when there are too many already. It is opened where it will be served.
fn start<S>(lanes: &Lanes, shared: &Arc<Shared>, peer: Peer, open: impl FnOnce() -> io::Result<S> + Send + 'static)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let shared = Arc::clone(shared);
    let client = shared.context.clients.enter(peer, shared.context.clock.boot(), shared.config.max_clients);
    lanes.spawn(async move {
        match (open(), client) {
            (Ok(stream), Some(client)) => connection::run(stream, client, shared).await,
            (Ok(stream), None) => {
                shared.context.metrics.connections_rejected.add("max_clients", 1);
                refuse(stream).await;
            }
            (Err(error), client) => {
                client.inspect(|client| shared.context.clients.leave(client));
                accept_failed(&error, &shared).await;
            }
        }
    });
}

/// Says that there are too many clients; a peer that doesn't read it is not waited for.
async fn refuse<S: tokio::io::AsyncWrite + Unpin>(mut stream: S) {
    let answer = async {
        stream.write_all(b"-ERR max number of clients reached\r\n").await?;
        stream.shutdown().await
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), answer).await;
}

/// Options that only make dead peers noticed sooner and replies leave at once; without one of them all still works.
fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let socket = socket2::SockRef::from(stream);
    let _ = socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE));
    let _ = socket.set_tcp_user_timeout(Some(USER_TIMEOUT));
}
