//! Builds everything from the configuration, runs it, and takes it down in reverse.
//!
//! Start: listeners first (a port in use should cost nothing), where clients are told that the node is loading; then the
//! database with its identity, the worker registry, the catalogue, and only then ids. Stop: readiness goes, clients finish what was read, the worker id closes, unused
//! tails go back, the database closes.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::acl::Users;
use crate::admin::{Admin, Sight};
use crate::clock::{Clock, SystemClock, rfc3339};
use crate::command::{Clients, Context, Settings, Stats};
use crate::config::Config;
use crate::engine::snowflake::Snowflake;
use crate::health::{Health, Part, State};
use crate::ids::Incarnation;
use crate::limit::Limit;
use crate::metrics::{Metrics, NodeReading, SnowflakeReading};
use crate::server::{self, Server, Shared};
use crate::telemetry::{self, Telemetry};

mod data;
mod node;
mod seeded;

use data::Data;
use node::Node;

/// Assumed difference between the clocks of hosts, for the rule after a restore.
const ASSUMED_SKEW: Duration = Duration::from_secs(1);

/// How far `after-restore` raises every counter when nothing is said: more ids than a restored copy is likely to lack.
pub const DEFAULT_SKIP: u64 = 1_000_000;

/// Why a process ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configuration or the identity of the data can't be used: nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// Something this process needs failed.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// The exit code: 78 for what a person has to put right first, else 1.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(_) => 78,
            Self::Failed(_) => 1,
        }
    }
}

/// `idgen serve`: runs until a signal asks it to stop.
///
/// # Errors
/// Why it could not start.
pub fn serve(config: Config) -> Result<(), Error> {
    let telemetry = Telemetry::start(&config.log, config.color).map_err(|error| Error::Failed(error.to_string()))?;
    raise_open_files();
    runtime()?.block_on(run(config, &telemetry))
}

/// `idgen init`: creates the database, the identity and the worker bounds; again is fine.
///
/// # Errors
/// Why it could not.
pub fn init(config: &Config) -> Result<(), Error> {
    runtime()?.block_on(async {
        let data = Data::open(config).await?;
        data.guarantee(config).await?;
        let line = format!("{} {}", if data.created { "created" } else { "ready" }, data.place);
        data.close().await;
        say(&line)
    })
}

/// `idgen after-restore`: makes a restored copy of the database safe: raises every counter by `skip` and every worker bound
/// above all windows that can have been lost. No server may be running on it: for a SQLite file its lock sees to that.
///
/// # Errors
/// Why it could not.
pub fn after_restore(config: &Config, skip: u64) -> Result<(), Error> {
    runtime()?.block_on(async {
        let data = Data::open_restored(config).await?;
        let reach = config.snowflake.window + config.snowflake.max_ahead + 2 * ASSUMED_SKEW;
        let hi = SystemClock.wall().millis().saturating_add(u64::try_from(reach.as_millis()).unwrap_or(u64::MAX));
        let workers = data.registry.raise_all(hi).await.map_err(|error| Error::Failed(error.to_string()))?;
        let tags = data.store.raise_all(skip).await.map_err(|error| Error::Failed(error.text))?;
        data.close().await;
        say(&format!(
            "raised the counters of {tags} tags by {skip} and the bounds of {workers} worker ids to {}",
            rfc3339(hi)
        ))
    })
}

/// Writes a line for the person who ran the command.
fn say(line: &str) -> Result<(), Error> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| Error::Failed(format!("done, but not said: {error}")))
}

/// Runs a task without which the node is only half alive: should it panic, the process ends, and is started again whole.
async fn core<T>(name: &'static str, task: impl Future<Output = T>) -> T {
    struct Whole(&'static str);
    impl Drop for Whole {
        fn drop(&mut self) {
            if std::thread::panicking() {
                tracing::error!(error_kind = "system", "the task of the {} has panicked: the process ends", self.0);
                std::process::abort();
            }
        }
    }
    let _whole = Whole(name);
    task.await
}

/// The runtime of everything but the connections, which have lanes of their own: refills, the catalogue, accepting. One
/// thread is enough for what mostly waits.
fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(1).enable_all().thread_name("idgen").build();
    runtime.map_err(|error| Error::Failed(format!("the runtime could not be started: {error}")))
}

/// Lets the process open as many files as the system allows it: each connection is one.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Files that are kept free for the database, the log and the admin listener.
const RESERVED_FILES: u64 = 128;

/// `server.max_clients`, or what the limit on open files leaves of it.
fn max_clients(config: &server::Config) -> u32 {
    let files =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(now, _)| now);
    let most = u32::try_from(files.saturating_sub(RESERVED_FILES)).unwrap_or(u32::MAX).max(1);
    if most < config.max_clients {
        tracing::warn!("server.max_clients is {} but the limit on open files leaves {most}", config.max_clients);
    }
    config.max_clients.min(most)
}

async fn run(config: Config, telemetry: &Telemetry) -> Result<(), Error> {
    let stop = CancellationToken::new();
    server::stop_signals(stop.clone()).map_err(|error| Error::Failed(format!("no signals: {error}")))?;
    let mut server_config = config.server.clone();
    server_config.max_clients = max_clients(&config.server);
    let server = Server::bind(&server_config).await.map_err(Error::Failed)?;

    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let node = Node::build(&config, &clock)?;
    node.health.set(Part::Store, State::Down("the database is being opened".into()));
    let admin = AdminThread::start(&config, &server, &node.health, &node.metrics)?;
    let context = context(&config, &server_config, &server, &node, &clock)?;
    publish(&node.metrics, telemetry, &context, &node.snowflake, node.router.store_name());
    let listening = server.local_addr();
    let shared = Arc::new(Shared::new(server_config.clone(), context, seeded::of_server()));
    let closing = CancellationToken::new();
    let serving = tokio::spawn(core("server", server.run(shared, closing.clone())));

    let opened = tokio::select! {
        opened = node.open(&config) => opened.map(Some),
        () = stop.cancelled() => Ok(None),
    };
    if let Ok(Some(_)) = &opened {
        summarize(&server_config, listening, &admin, &node.snowflake);
        stop.cancelled().await;
    }
    node.drain(&server_config, &closing).await;
    let _ = serving.await;
    let ended = match opened {
        Ok(data) => {
            node.take_down(data).await;
            tracing::info!("stopped");
            Ok(())
        }
        Err(error) => Err(error),
    };
    admin.stop().await;
    ended
}

/// The HTTP listener on its thread, there from the first moment on so that a slow start can be looked at; or none.
struct AdminThread {
    addr: Option<std::net::SocketAddr>,
    thread: Option<std::thread::JoinHandle<()>>,
    stop: CancellationToken,
}

impl AdminThread {
    fn start(config: &Config, server: &Server, health: &Arc<Health>, metrics: &Arc<Metrics>) -> Result<Self, Error> {
        let failed = |error| {
            let addr = &config.admin.addr;
            let fix = "if another server has this port, choose another with --admin-addr HOST:PORT, or none with ''";
            Error::Failed(format!("admin.addr: cannot listen on {addr}: {error}; {fix}"))
        };
        let stop = CancellationToken::new();
        let Some(admin) = Admin::bind(&config.admin, &config.host.name).map_err(failed)? else {
            return Ok(Self { addr: None, thread: None, stop });
        };
        let addr = admin.local_addr().ok();
        let watched = server.event_loops().chain([tokio::runtime::Handle::current()]).collect();
        let sight = Sight { metrics: Arc::clone(metrics), health: Arc::clone(health), watched };
        let thread = Some(admin.spawn(sight, stop.clone()).map_err(failed)?);
        Ok(Self { addr, thread, stop })
    }

    async fn stop(self) {
        self.stop.cancel();
        if let Some(thread) = self.thread {
            let _ = tokio::task::spawn_blocking(|| thread.join()).await;
        }
    }
}

fn context(
    config: &Config,
    limits: &server::Config,
    server: &Server,
    node: &Node,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<Context>, Error> {
    let bound = server.local_addr();
    let run_id = (Incarnation::random(), Incarnation::random());
    let (Ok(first), Ok(second)) = run_id else { return Err(Error::Failed("no randomness".into())) };
    let users = Users::new(&config.auth).map_err(|error| Error::Refused(error.to_string()))?;
    node.metrics.node_rate_limit.set(config.rate_limit.rate().qps());
    let limited = users.iter().map(|user| user.limit().rate().qps()).filter(|&qps| qps > 0);
    node.metrics.user_rate_limit.set(limited.min().unwrap_or(0));
    let settings = Settings {
        max_count: u64::from(config.server.max_count),
        max_clients: limits.max_clients,
        idle_timeout: config.server.idle_timeout,
        tcp_port: bound.map_or(0, |addr| addr.port()),
        bind: bound.map_or_else(String::new, |addr| addr.ip().to_string()),
        unix_socket: config.server.unix_socket.clone(),
        config_file: config.file(),
        run_id: format!("{first}{second}").chars().take(40).collect(),
        started: clock.boot(),
        shown: config.shown(),
    };
    Ok(Arc::new(Context {
        router: Arc::clone(&node.router),
        clock: Arc::clone(clock),
        health: Arc::clone(&node.health),
        metrics: Arc::clone(&node.metrics),
        limit: Limit::new(config.rate_limit.rate(), clock.boot()),
        users,
        clients: Clients::default(),
        stats: Arc::new(Stats::default()),
        settings,
    }))
}

/// A few lines that say what runs where.
fn summarize(
    config: &server::Config,
    listening: Option<std::net::SocketAddr>,
    admin: &AdminThread,
    snowflake: &Snowflake,
) {
    // A worker id that is wanted is told by the engine, as soon as it is claimed.
    if !snowflake.wanted() {
        tracing::info!("no Snowflake tag yet: a worker id is claimed at the first one");
    }
    tracing::info!("Snowflake timestamps last until {}", rfc3339(snowflake.view().exhaustion_ms));
    if let Some(addr) = admin.addr {
        tracing::info!("metrics and health on http://{addr}/metrics /livez /readyz /startupz");
    }
    if !config.unix_socket.is_empty() {
        tracing::info!("serving the Redis protocol on {}", config.unix_socket);
    }
    if let Some(addr) = listening {
        tracing::info!("serving the Redis protocol on {addr}: redis-cli -p {} IDGET order", addr.port());
    }
}

/// What is read at a scrape rather than counted.
fn publish(
    metrics: &Arc<Metrics>,
    telemetry: &Telemetry,
    context: &Arc<Context>,
    snowflake: &Arc<Snowflake>,
    store: &'static str,
) {
    let (snowflake, dropped) = (Arc::clone(snowflake), telemetry.dropped());
    let (store, health, router) = (metrics.store(store), Arc::clone(&context.health), Arc::clone(&context.router));
    metrics.add_source(move |families| {
        reading(&snowflake).collect(families);
        store.up.set(i64::from(![Part::Store, Part::Catalogue].iter().any(|part| health.is_down(*part))));
        let age = router.catalogue_age();
        NodeReading { catalogue_age: age, panics: telemetry::panics(), log_dropped: dropped() }.collect(families);
    });
}

fn reading(snowflake: &Snowflake) -> SnowflakeReading {
    let (view, counts) = (snowflake.view(), snowflake.metrics());
    // What time was led ahead by, to get above a worker id's bound, is a part of how far ids are from the wall clock.
    let offset_ns = view.clock_offset_ns.saturating_sub_unsigned(view.lead_ns);
    let nanos = Duration::from_nanos(offset_ns.unsigned_abs()).as_secs_f64();
    SnowflakeReading {
        rollbacks: counts.rollbacks.get(),
        clock_offset_seconds: if offset_ns < 0 { -nanos } else { nanos },
        sequence_exhausted: counts.sequence_exhausted.get(),
        exhaustion_seconds: Duration::from_millis(view.exhaustion_ms).as_secs_f64(),
        worker_id: view.worker,
        window_remaining_seconds: Duration::from_millis(view.window_remaining_ms).as_secs_f64(),
        workers_lost: counts.lost.get(),
        register_failures: counts.register_failures.get(),
        registry: snowflake.registry_name(),
        regressions: counts.regressions.get(),
    }
}
