//! How the server is reached, what every connection is set to, and what the server's settings mean for what it confirms.
//!
//! Guaranteed: each connection commits every statement by itself, waits for rows and tables for a short time only, and
//! reads what is committed; a server that takes no writes is refused at the start. Rejected: trusting the server's
//! defaults (a lock wait of 50 seconds, or `autocommit = 0` from an `init_connect`).

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlPool, MySqlPoolOptions, MySqlSslMode};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _, SqlSafeStr as _};

use super::errors::{self, Phase, words};
use crate::store::network::{ACQUIRE_TIMEOUT, IDLE_TIMEOUT, LOCK_TIMEOUT, MAX_LIFETIME, OpenError, TRUSTED_IDLE};
use crate::store::{Server, Tls};

/// How long connecting may take at the start, where nobody waits for an id.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Below this a wait for a replica's receipt falls back to going on without it before an outage is over.
const LEAST_RECEIPT_TIMEOUT_MS: u64 = 3_600_000;

pub(super) fn options(server: &Server) -> MySqlConnectOptions {
    let mode = match server.tls {
        Tls::Off => MySqlSslMode::Disabled,
        Tls::Prefer => MySqlSslMode::Preferred,
        Tls::Require => MySqlSslMode::Required,
        Tls::VerifyAuthority => MySqlSslMode::VerifyCa,
        Tls::VerifyFull => MySqlSslMode::VerifyIdentity,
    };
    let mut options = MySqlConnectOptions::new()
        .host(&server.host)
        .port(server.port)
        .username(&server.user)
        .database(&server.database)
        .ssl_mode(mode)
        .pipes_as_concat(false)
        .disable_statement_logging();
    if let Some(password) = &server.password {
        options = options.password(password);
    }
    if let Some(socket) = &server.socket {
        options = options.socket(socket);
    }
    if let Some(file) = &server.ca_file {
        options = options.ssl_ca(file);
    }
    if let Some(capacity) = server.statement_cache {
        options = options.statement_cache_capacity(capacity);
    }
    options
}

/// The settings of a connection. `statement_timeout` is kept by MariaDB itself; zero: as long as it takes.
async fn settle(connection: &mut MySqlConnection, statement_timeout: Duration) -> Result<(), sqlx::Error> {
    let (lock, statement) = (LOCK_TIMEOUT.as_secs(), statement_timeout.as_secs_f64());
    // What stands in /*M! */ is read by MariaDB alone; MySQL has no such limit for writes.
    let sql = format!(
        "SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', \
         innodb_lock_wait_timeout = {lock}, lock_wait_timeout = {lock} /*M!100101 , max_statement_time = {statement} */; \
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(connection).await.map(drop)
}

/// A connection of its own, for what a start does.
pub(super) async fn connect(options: &MySqlConnectOptions, place: &str) -> Result<MySqlConnection, OpenError> {
    let connecting = async {
        let mut connection = options.connect().await?;
        settle(&mut connection, Duration::ZERO).await?;
        Ok(connection)
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(connected) => connected.map_err(|error| not_opened(&error, place)),
        Err(_) => Err(OpenError::Unreachable(place.to_owned(), format!("no answer within {CONNECT_TIMEOUT:?}"))),
    }
}

fn not_opened(error: &sqlx::Error, place: &str) -> OpenError {
    let (place, text) = (place.to_owned(), words(error));
    match errors::meaning(error, Phase::Connecting, "").reason {
        "connection" | "connections" | "interrupted" => OpenError::Unreachable(place, text),
        "access" | "blocked" | "schema" => OpenError::Login(place, text),
        "tls" | "configuration" => OpenError::Certificate(place, text),
        _ => OpenError::Sql(place, text),
    }
}

/// Connections that open when they are needed, each with the statement `prepared`.
pub(super) fn pool(
    options: MySqlConnectOptions,
    most: u32,
    statement_timeout: Duration,
    prepared: Option<&'static str>,
) -> MySqlPool {
    MySqlPoolOptions::new()
        .max_connections(most)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .max_lifetime(MAX_LIFETIME)
        .idle_timeout(IDLE_TIMEOUT)
        .test_before_acquire(false)
        .before_acquire(|connection, about| {
            Box::pin(async move { Ok(about.idle_for <= TRUSTED_IDLE || connection.ping().await.is_ok()) })
        })
        .after_connect(move |connection, _| {
            Box::pin(async move {
                settle(connection, statement_timeout).await?;
                let Some(sql) = prepared else { return Ok(()) };
                match connection.prepare(sql.into_sql_str()).await {
                    // What the server has against it, at the first start that there are no tables, is told by its use.
                    Ok(_) | Err(sqlx::Error::Database(_)) => Ok(()),
                    Err(error) => Err(error),
                }
            })
        })
        .connect_lazy_with(options)
}

/// The server's settings by name.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings(pub(super) BTreeMap<String, String>);

impl Settings {
    /// What asks for them: one statement, names and values as text.
    pub(super) const QUERY: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only', \
         'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'wsrep_on', \
         'rpl_semi_sync_master_enabled', 'rpl_semi_sync_source_enabled', 'rpl_semi_sync_master_timeout', \
         'rpl_semi_sync_source_timeout', 'rpl_semi_sync_master_wait_point', 'rpl_semi_sync_source_wait_point')";

    /// How many replicas are connected, where the server tells.
    pub(super) const REPLICAS: &str = "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_connected', \
                                       'Rpl_semi_sync_master_clients', 'Rpl_semi_sync_source_clients')";

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !["OFF", "0", "NO", ""].contains(&value.to_ascii_uppercase().as_str()))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    /// Which setting keeps the server from taking writes.
    pub(super) fn read_only(&self) -> Option<&'static str> {
        ["read_only", "super_read_only", "innodb_read_only"].into_iter().find(|name| self.on(name))
    }

    /// What weakens the durability of what the server confirms, in words.
    pub(super) fn weaknesses(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.get("innodb_flush_log_at_trx_commit").is_some_and(|value| value != "1") {
            found.push("innodb_flush_log_at_trx_commit is not 1".to_owned());
        }
        if self.on("log_bin") && self.get("sync_binlog").is_some_and(|value| value != "1") {
            found.push("sync_binlog is not 1 though a binary log is written".to_owned());
        }
        if self.on("wsrep_on") {
            found.push("wsrep_on: safe only while all nodes write through one member of the cluster".to_owned());
        }
        found.extend(self.replication());
        found
    }

    /// How a failover could lose what was confirmed.
    fn replication(&self) -> Option<String> {
        let either = |end: &str| [format!("rpl_semi_sync_source_{end}"), format!("rpl_semi_sync_master_{end}")];
        if !either("enabled").iter().any(|name| self.on(name)) {
            let replicas = self.number("Slaves_connected").filter(|count| *count > 0)?;
            return Some(format!(
                "{replicas} replicas copy without being waited for (no semi-synchronous replication)"
            ));
        }
        if !either("wait_point").iter().any(|name| self.get(name) == Some("AFTER_SYNC")) {
            return Some("semi-synchronous replication does not wait with AFTER_SYNC".to_owned());
        }
        let timeout = either("timeout").iter().find_map(|name| self.number(name))?;
        (timeout < LEAST_RECEIPT_TIMEOUT_MS).then(|| {
            format!("semi-synchronous replication goes on without replicas after {timeout} ms: set its timeout to 3600000 or more")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        Settings(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn a_server_that_takes_no_writes_is_known() {
        for name in ["read_only", "super_read_only", "innodb_read_only"] {
            assert_eq!(settings(&[(name, "ON")]).read_only(), Some(name));
            assert_eq!(settings(&[(name, "OFF")]).read_only(), None);
        }
    }

    #[test]
    fn each_weak_setting_is_told() {
        let good =
            [("innodb_flush_log_at_trx_commit", "1"), ("log_bin", "ON"), ("sync_binlog", "1"), ("wsrep_on", "OFF")];
        assert_eq!(settings(&good).weaknesses(), Vec::<String>::new());
        for (name, value) in [
            ("innodb_flush_log_at_trx_commit", "2"),
            ("innodb_flush_log_at_trx_commit", "0"),
            ("sync_binlog", "0"),
            ("wsrep_on", "ON"),
            ("Slaves_connected", "2"),
        ] {
            let weak = settings(&[&good[..], &[(name, value)]].concat()).weaknesses();
            assert_eq!(weak.len(), 1, "{name} = {value}: {weak:?}");
        }
        assert_eq!(settings(&[("log_bin", "OFF"), ("sync_binlog", "0")]).weaknesses(), Vec::<String>::new());
    }

    #[test]
    fn replicas_that_are_waited_for_lose_nothing() {
        let waits = |timeout, point| {
            let name = "rpl_semi_sync_master_enabled";
            settings(&[
                (name, "ON"),
                ("Slaves_connected", "1"),
                ("rpl_semi_sync_master_timeout", timeout),
                ("rpl_semi_sync_master_wait_point", point),
            ])
            .weaknesses()
        };
        assert_eq!(waits("3600000", "AFTER_SYNC"), Vec::<String>::new());
        assert_eq!(waits("10000", "AFTER_SYNC").len(), 1);
        assert_eq!(waits("3600000", "AFTER_COMMIT").len(), 1);
    }
}
