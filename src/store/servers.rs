//! Databases on the servers that the tests are given, one for each test, dropped at its end.

use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

use super::Config;
use super::mysql::MySql;
use super::network::Network as _;

/// The address of a server in `variable`, ending in `/`.
#[expect(clippy::disallowed_methods, reason = "tests are told by the environment where the servers are")]
pub(crate) fn address(variable: &str) -> String {
    let address = std::env::var(variable).unwrap_or_default();
    assert!(!address.is_empty(), "{variable} names no server: `make test` starts one and sets it");
    format!("{}/", address.trim_end_matches('/'))
}

/// A database of its own on the MySQL or MariaDB server.
pub(crate) struct MySqlDatabase {
    server: String,
    name: String,
}

impl MySqlDatabase {
    pub(crate) async fn new() -> Self {
        let database = Self {
            server: address("IDGEN_TEST_MYSQL_DSN"),
            name: format!("idgen_{:032x}", crate::ids::random_u128().expect("randomness")),
        };
        database
            .admin()
            .await
            .execute(AssertSqlSafe(format!("CREATE DATABASE {}", database.name)))
            .await
            .expect("made");
        database
    }

    /// The section that names it.
    pub(crate) fn config(&self) -> Config {
        let dsn = format!("{}{}", self.server, self.name);
        Config { dsn, statement_timeout: Duration::from_secs(10), ..Config::default() }
    }

    /// A store with its tables made.
    pub(crate) async fn store(&self) -> MySql {
        MySql::open(&self.config(), true).await.expect("a store")
    }

    /// A connection past the store, to this database once it exists.
    pub(crate) async fn connection(&self) -> MySqlConnection {
        let mut connection = self.admin().await;
        connection.execute(AssertSqlSafe(format!("USE {}", self.name))).await.expect("the database");
        connection
    }

    async fn admin(&self) -> MySqlConnection {
        let config = Config { dsn: format!("{}mysql", self.server), ..Config::default() };
        let server = config.server().expect("a DSN");
        let options = MySqlConnectOptions::new().host(&server.host).port(server.port).username(&server.user);
        let mut options = options.ssl_mode(sqlx::mysql::MySqlSslMode::Disabled).disable_statement_logging();
        if let Some(password) = &server.password {
            options = options.password(password);
        }
        options.connect().await.expect("the server that IDGEN_TEST_MYSQL_DSN names")
    }
}

impl Drop for MySqlDatabase {
    fn drop(&mut self) {
        let (server, name) = (std::mem::take(&mut self.server), std::mem::take(&mut self.name));
        // A test's own runtime can't be waited on from inside.
        let cleaning = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let database = std::mem::ManuallyDrop::new(Self { server, name });
                let mut admin = database.admin().await;
                // The test's runtime stands still meanwhile: a transaction that it has yet to roll back would keep the
                // tables for ever.
                let others = "SELECT CAST(id AS CHAR) FROM information_schema.processlist WHERE db = ?";
                let others = sqlx::query_scalar::<_, String>(others).bind(&database.name).fetch_all(&mut admin).await;
                for other in others.expect("the connections to it") {
                    // It may have ended by itself.
                    drop(admin.execute(AssertSqlSafe(format!("KILL {other}"))).await);
                }
                let sql = format!("DROP DATABASE IF EXISTS {}", database.name);
                drop(admin.execute(AssertSqlSafe(sql)).await);
            });
        });
        // Should it fail, it has said so; a second panic would hide the test's own.
        drop(cleaning.join());
    }
}
