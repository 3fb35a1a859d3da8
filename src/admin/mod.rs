//! HTTP for people, Prometheus and orchestrators: `/metrics`, `/livez`, `/readyz`, `/startupz`.
//!
//! It runs on a thread of its own, so that a slow reader can't disturb ids. A connection carries one request, whose head
//! is read within a time and a size before it is looked at (`gate`); so 32 connections at once are all it ever holds.
//! Nothing here changes anything: only GET and HEAD are answered. A page in a browser can't reach it by rebinding its DNS
//! name, since names that a stranger could own are refused (`hosts`).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::health::{Health, Phase, STOPPING};
use crate::metrics::{self, Metrics};

mod gate;
mod hosts;

/// How long a stop waits for answers under way.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// How long the runtime that serves ids may take to run a task before `/livez` says that it hangs.
const LIVE_WAIT: Duration = Duration::from_secs(2);

const PATHS: &str = "/metrics   everything that is counted, for Prometheus\n\
                     /livez     200 while the program runs\n\
                     /readyz    200 while this node takes requests, else 503 and why\n\
                     /startupz  200 once this node has started, else 503 and why\n";

/// Section `admin`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where HTTP is served, `host:port`; empty: nowhere. Default `127.0.0.1:9390`.
    pub addr: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { addr: "127.0.0.1:9390".into() }
    }
}

/// What the pages show.
#[derive(Clone, Debug)]
pub struct Sight {
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What this node can do.
    pub health: Arc<Health>,
    /// The event loops that serve ids, whose life `/livez` tells.
    pub watched: Vec<tokio::runtime::Handle>,
}

/// The listener, bound and not yet served.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    hosts: hosts::Allowed,
    head_time: Duration,
}

impl Admin {
    /// Binds the address of the section; `None` when it is empty. `hostname` is the machine's name, which requests may
    /// use beside its addresses.
    ///
    /// # Errors
    /// Why the address can't be had.
    pub fn bind(config: &Config, hostname: &str) -> io::Result<Option<Self>> {
        if config.addr.is_empty() {
            return Ok(None);
        }
        let listener = TcpListener::bind(&config.addr)?;
        listener.set_nonblocking(true)?;
        let bound = config.addr.rsplit_once(':').map_or(&*config.addr, |(host, _)| host);
        Ok(Some(Self { listener, hosts: hosts::Allowed::new([bound, hostname]), head_time: gate::HEAD_TIME }))
    }

    /// The address, with the port that the system chose where the section says 0.
    ///
    /// # Errors
    /// When the system doesn't know it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves on a thread of its own until `cancel`.
    ///
    /// # Errors
    /// When the thread or its runtime can't be made.
    pub fn spawn(self, sight: Sight, cancel: CancellationToken) -> io::Result<JoinHandle<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = move || {
            if let Err(error) = runtime.block_on(self.run(sight, cancel)) {
                tracing::error!(%error, error_kind = "system", "the admin listener has ended");
            }
        };
        std::thread::Builder::new().name("idgen-admin".into()).spawn(serve)
    }

    /// Serves until `cancel`, then lets answers under way end shortly.
    ///
    /// # Errors
    /// Why the listener can't be served.
    pub async fn run(self, sight: Sight, cancel: CancellationToken) -> io::Result<()> {
        let gate = gate::Gate::new(tokio::net::TcpListener::from_std(self.listener)?, self.head_time);
        let router = router(sight, self.hosts);
        let stop = cancel.clone();
        let serve = axum::serve(gate, router).with_graceful_shutdown(async move { stop.cancelled().await });
        let late = async {
            cancel.cancelled().await;
            tokio::time::sleep(STOP_WAIT).await;
        };
        tokio::select! {
            ended = serve => ended,
            () = late => Ok(()),
        }
    }
}

fn router(sight: Sight, hosts: hosts::Allowed) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/startupz", get(startupz))
        .fallback(async || text(StatusCode::NOT_FOUND, format!("There is no such page. There are:\n{PATHS}")))
        .layer(middleware::from_fn_with_state(Arc::new(hosts), guard))
        .with_state(Arc::new(sight))
}

/// What every request must satisfy, and what every answer carries.
async fn guard(State(hosts): State<Arc<hosts::Allowed>>, request: Request, next: Next) -> Response {
    let mut given = request.headers().get_all(header::HOST).iter();
    let host = given.next().map(|host| host.to_str().unwrap_or_default());
    let mut response = if given.next().is_some() || host.is_some_and(|host| !hosts.allows(host)) {
        let told = "This Host is not a name of this server. Use an IP address, localhost or the machine's own name.\n";
        text(StatusCode::FORBIDDEN, told)
    } else if matches!(*request.method(), Method::GET | Method::HEAD) {
        next.run(request).await
    } else {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD: nothing can be changed here.\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        response
    };
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn show_metrics(State(sight): State<Arc<Sight>>) -> Response {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], sight.metrics.render()).into_response()
}

async fn livez(State(sight): State<Arc<Sight>>) -> Response {
    let turn = async {
        for event_loop in &sight.watched {
            event_loop.spawn(async {}).await?;
        }
        Ok::<_, tokio::task::JoinError>(())
    };
    match tokio::time::timeout(LIVE_WAIT, turn).await {
        Ok(Ok(())) => text(StatusCode::OK, "alive\n"),
        Ok(Err(_)) => text(StatusCode::SERVICE_UNAVAILABLE, "not alive: the server has stopped\n"),
        Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "not alive: the server hangs\n"),
    }
}

async fn readyz(State(sight): State<Arc<Sight>>) -> Response {
    match sight.health.phase() {
        Phase::Serving => reasons(StatusCode::OK, "ready", &sight.health),
        Phase::Loading => {
            reasons(StatusCode::SERVICE_UNAVAILABLE, "not ready: no tag can be served yet", &sight.health)
        }
        Phase::Draining => reasons(StatusCode::SERVICE_UNAVAILABLE, &format!("not ready: {STOPPING}"), &sight.health),
    }
}

async fn startupz(State(sight): State<Arc<Sight>>) -> Response {
    match sight.health.phase() {
        Phase::Loading => {
            reasons(StatusCode::SERVICE_UNAVAILABLE, "not started: no tag can be served yet", &sight.health)
        }
        Phase::Serving | Phase::Draining => reasons(StatusCode::OK, "started", &sight.health),
    }
}

/// The verdict, then each missing part on a line of its own.
fn reasons(status: StatusCode, verdict: &str, health: &Health) -> Response {
    let mut body = format!("{verdict}\n");
    for part in health.missing() {
        body.push_str(&part.replace(['\n', '\r'], " "));
        body.push('\n');
    }
    text(status, body)
}

fn text(status: StatusCode, body: impl Into<String>) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body.into()).into_response()
}

#[cfg(test)]
mod tests;
