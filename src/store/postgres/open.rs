//! How a PostgreSQL database is reached, checked and prepared.
//!
//! Guaranteed: a server that is a replica, or was made read-only, is refused before anything is written; a server on
//! another machine is verified (see `store/dsn.rs`). How: one connection first, outside of the pool, whose error says what
//! is wrong, then the pool, whose connections are made when they are needed. The startup message holds nothing that a
//! pooler refuses. Rejected: the driver's own reading of a DSN, which takes a password file and more from the environment.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, Row as _};
use tokio::runtime::Handle;

use super::failure::{self, Effect};
use super::session::{Sessions, terms};
use super::{Postgres, schema};
use crate::store::network::{
    ACQUIRE_TIMEOUT, IDLE_TIMEOUT, MAX_LIFETIME, OpenError, REGISTRY_CONNECTIONS, SCHEMA_LOCK_TIMEOUT, TRUSTED_IDLE,
};
use crate::store::warm::Warm;
use crate::store::{Config, Kind, Server, StoreError, Tls};

/// The key of the advisory lock under which the tables and the identity are made: "idgn" and "init" as numbers. Such locks
/// belong to one database.
pub(super) const LOCK: &str = "1768187758, 1768843636";

pub(super) async fn open(config: &Config, may_create: bool) -> Result<Postgres, OpenError> {
    let server = config.server().map_err(OpenError::Dsn)?;
    let place = server.to_string();
    let options = options(&server);
    let refused = |error: sqlx::Error| OpenError::of_store(&place, &failure::of_acquiring(&error, &place));
    reach(&options).await.map_err(refused)?;
    let sessions = Arc::new(Sessions {
        warm: Warm::new(pool(&options, config.max_open_conns), config.max_open_conns),
        registry: pool(&options, REGISTRY_CONNECTIONS),
        place,
        limit: config.statement_timeout,
        runtime: Handle::current(),
    });
    refuse_read_only(&sessions).await?;
    schema::ensure(&sessions, may_create).await?;
    Ok(Postgres(sessions))
}

/// How to get to `server`. Whatever says where it is, who logs in and how far it is trusted is said here, so that no
/// variable of the environment says it to the driver.
fn options(server: &Server) -> PgConnectOptions {
    let mode = match server.tls {
        Tls::Off => PgSslMode::Disable,
        Tls::Prefer => PgSslMode::Prefer,
        Tls::Require => PgSslMode::Require,
        Tls::VerifyAuthority => PgSslMode::VerifyCa,
        Tls::VerifyFull => PgSslMode::VerifyFull,
    };
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(&server.host)
        .port(server.port)
        .username(&server.user)
        .password(server.password.as_deref().unwrap_or_default())
        .database(&server.database)
        .ssl_mode(mode)
        .application_name("idgen")
        // Poolers refuse startup parameters that they don't know, and this is one.
        .extra_float_digits(None)
        // No statement is prepared; see `session`.
        .statement_cache_capacity(0)
        .disable_statement_logging();
    if let Some(socket) = &server.socket {
        options = options.socket(socket);
    }
    if let Some(file) = &server.ca_file {
        options = options.ssl_root_cert(file);
    }
    options
}

/// Connects once, for the sake of a true reason why not.
async fn reach(options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let attempt = async { options.connect().await?.close().await };
    // Silence looks to the caller as it does later, when the pool waits in vain.
    tokio::time::timeout(ACQUIRE_TIMEOUT, attempt).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

fn pool(options: &PgConnectOptions, most: u32) -> PgPool {
    PgPoolOptions::new()
        .max_connections(most)
        .min_connections(0)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .max_lifetime(MAX_LIFETIME)
        .idle_timeout(IDLE_TIMEOUT)
        // A round trip for each statement would double the time of a grant: only what has lain idle is tried.
        .test_before_acquire(false)
        .before_acquire(|connection, state| {
            Box::pin(
                async move { if state.idle_for > TRUSTED_IDLE { Ok(answers(connection).await) } else { Ok(true) } },
            )
        })
        // The driver's own test on return waits for ever, and holds a place in the pool meanwhile.
        .after_release(|connection, _| Box::pin(async move { Ok(answers(connection).await) }))
        .connect_lazy_with(options.clone())
}

async fn answers(connection: &mut PgConnection) -> bool {
    const PATIENCE: Duration = Duration::from_secs(1);
    matches!(tokio::time::timeout(PATIENCE, connection.ping()).await, Ok(Ok(())))
}

/// Refuses a server on which no grant could be written.
async fn refuse_read_only(sessions: &Arc<Sessions>) -> Result<(), OpenError> {
    let place = &sessions.place;
    let failed = |error: StoreError| OpenError::of_store(place, &error);
    let sql = "SELECT pg_is_in_recovery() AS replica, current_setting('transaction_read_only') AS fenced";
    let rows = sessions.session().await.map_err(failed)?.run(sql, Effect::Nothing).await.map_err(failed)?;
    let row = rows.first().ok_or_else(|| OpenError::Sql(place.clone(), "it does not tell its state".into()))?;
    if row.try_get("replica").unwrap_or(true) {
        return Err(OpenError::ReadOnly(place.clone(), "it is a replica, in recovery".into()));
    }
    if row.try_get::<String, _>("fenced").is_ok_and(|value| value == "on") {
        return Err(OpenError::ReadOnly(place.clone(), "default_transaction_read_only is on".into()));
    }
    Ok(())
}

/// Begins the transaction that reads or writes the identity, one at a time over all nodes. A process that fails here ends,
/// and its connections with it.
pub(super) async fn found(sessions: &Sessions) -> Result<sqlx::Transaction<'static, sqlx::Postgres>, OpenError> {
    let place = &sessions.place;
    let begin = format!("BEGIN; {} {}", terms(sessions.limit), lock());
    let patience = SCHEMA_LOCK_TIMEOUT + sessions.limit;
    match tokio::time::timeout(patience, sessions.registry.begin_with(sqlx::AssertSqlSafe(begin))).await {
        Ok(Ok(transaction)) => Ok(transaction),
        Ok(Err(error)) => match failure::of_statement(&error, Effect::Nothing, place).error {
            error if error.reason == "locked" => Err(OpenError::Busy(place.clone(), SCHEMA_LOCK_TIMEOUT)),
            error => Err(OpenError::of_store(place, &error)),
        },
        Err(_) => Err(OpenError::Unreachable(place.clone(), format!("no answer within {patience:?}"))),
    }
}

/// The statements that take the lock on the tables and the identity. It ends with its transaction, so it works behind a
/// pooler and can't be left behind.
pub(super) fn lock() -> String {
    format!(
        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {}; SELECT pg_advisory_xact_lock({LOCK})",
        SCHEMA_LOCK_TIMEOUT.as_millis()
    )
}

impl OpenError {
    pub(super) fn of_store(place: &str, error: &StoreError) -> Self {
        let place = place.to_owned();
        // Its text begins with the place, and so do ours.
        let words = error.text.strip_prefix(&format!("{place}: ")).map_or(error.text.clone(), str::to_owned);
        match (error.reason, error.kind) {
            ("login", _) => Self::Login(place, words),
            ("tls", _) => Self::Certificate(place, words),
            ("readonly", _) => Self::ReadOnly(place, words),
            (_, Kind::Transient | Kind::Unknown) => Self::Unreachable(place, words),
            _ => Self::Sql(place, words),
        }
    }
}
