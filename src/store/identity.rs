//! Which cluster a database belongs to, and what all nodes on it must agree on.
//!
//! Written once, when the database is first used, and compared at every start: a node whose registry, datacenter or
//! layout differs could repeat ids, so it refuses to start. Nothing here ever changes a value that stands.

use std::future::Future;

use sqlx::Row as _;

use crate::ids::random_u128;

/// What a node brings along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The kind of worker registry: `sql` or `etcd`.
    pub registry: &'static str,
    /// `snowflake.datacenter_id`.
    pub datacenter_id: u64,
    /// The Snowflake layout, in its text form.
    pub layout: String,
}

/// How the database answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// It had none; this node's was written, with a new cluster id.
    Created(String),
    /// It has the same; its cluster id.
    Same(String),
}

/// Why a node may not use the database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It was made with another value: a matter of configuration, exit code 78.
    #[error(
        "{key} is {wanted} here, but this database was made with {stored}; ids would repeat: {fix}, or use another database"
    )]
    Mismatch {
        /// The key of the configuration.
        key: &'static str,
        /// What the database holds.
        stored: String,
        /// What the node brings.
        wanted: String,
        /// What makes the node fit.
        fix: String,
    },
    /// The database could not be asked.
    #[error("the identity of the database can't be read: {0}")]
    Store(String),
}

/// The identity as it stands in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    cluster: String,
    registry: String,
    datacenter_id: i64,
    layout: String,
}

/// The table of the identity behind one connection.
pub trait Table: Send {
    /// The row, if there is one.
    ///
    /// # Errors
    /// Why it could not be read.
    fn stored(&mut self) -> impl Future<Output = Result<Option<Stored>, sqlx::Error>> + Send;

    /// Adds the row.
    ///
    /// # Errors
    /// Why it could not, such as that there is one.
    fn store(&mut self, cluster: &str, wanted: &Wanted) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

macro_rules! table {
    ($connection:ty, $insert:literal) => {
        impl Table for $connection {
            async fn stored(&mut self) -> Result<Option<Stored>, sqlx::Error> {
                // Kept nowhere: behind a pooler the next transaction has another connection.
                let query = sqlx::query("SELECT cluster, registry, datacenter_id, layout FROM idgen_identity");
                let query = query.persistent(false);
                let Some(row) = query.fetch_optional(self).await? else { return Ok(None) };
                Ok(Some(Stored {
                    cluster: row.try_get("cluster")?,
                    registry: row.try_get("registry")?,
                    datacenter_id: row.try_get("datacenter_id")?,
                    layout: row.try_get("layout")?,
                }))
            }

            async fn store(&mut self, cluster: &str, wanted: &Wanted) -> Result<(), sqlx::Error> {
                let query = sqlx::query($insert).persistent(false).bind(cluster).bind(wanted.registry);
                let query = query.bind(i64::try_from(wanted.datacenter_id).unwrap_or(i64::MAX)).bind(&wanted.layout);
                query.execute(self).await.map(drop)
            }
        }
    };
}

table!(
    sqlx::SqliteConnection,
    "INSERT INTO idgen_identity (one, cluster, registry, datacenter_id, layout) VALUES (1, ?, ?, ?, ?)"
);
table!(
    sqlx::MySqlConnection,
    "INSERT INTO idgen_identity (one, cluster, registry, datacenter_id, layout) VALUES (1, ?, ?, ?, ?)"
);
table!(
    sqlx::PgConnection,
    "INSERT INTO idgen_identity (one, cluster, registry, datacenter_id, layout) VALUES (1, $1, $2, $3, $4)"
);

/// A transaction that no other start has at the same time. Dropped before [`Self::commit`], it did nothing.
pub trait Transaction: Send {
    /// The driver's connection.
    type Connection: Table;

    /// The connection, inside the transaction.
    fn connection(&mut self) -> &mut Self::Connection;

    /// Makes it durable.
    ///
    /// # Errors
    /// Why it may not be.
    fn commit(self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

impl<DB: sqlx::Database<Connection: Table>> Transaction for sqlx::Transaction<'static, DB> {
    type Connection = DB::Connection;

    fn connection(&mut self) -> &mut DB::Connection {
        self
    }

    fn commit(self) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        sqlx::Transaction::commit(self)
    }
}

/// Writes the identity where there is none, together with what `first` writes in the same transaction, and compares it
/// where there is one.
///
/// # Errors
/// The first difference, with both values, or why the database could not be asked.
pub async fn ensure<T: Transaction>(
    mut tx: T,
    wanted: &Wanted,
    first: impl AsyncFnOnce(&mut T::Connection) -> Result<(), sqlx::Error>,
) -> Result<Identity, IdentityError> {
    let failed = |error: sqlx::Error| IdentityError::Store(error.to_string());
    let Some(stored) = tx.connection().stored().await.map_err(failed)? else {
        let cluster = uuid(random_u128().map_err(|error| IdentityError::Store(error.to_string()))?);
        tx.connection().store(&cluster, wanted).await.map_err(failed)?;
        first(tx.connection()).await.map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        return Ok(Identity::Created(cluster));
    };
    let compared = [
        ("the worker registry", stored.registry, wanted.registry.to_owned()),
        ("snowflake.datacenter_id", stored.datacenter_id.to_string(), wanted.datacenter_id.to_string()),
        ("the snowflake layout", stored.layout, wanted.layout.clone()),
    ];
    for (key, stored, wanted) in compared {
        if stored != wanted {
            let fix = layout_keys(&stored).unwrap_or_else(|| format!("set it to {stored}"));
            return Err(IdentityError::Mismatch { key, stored, wanted, fix });
        }
    }
    Ok(Identity::Same(stored.cluster))
}

/// The keys of the configuration that make the layout of this text; `None` for any other text.
fn layout_keys(text: &str) -> Option<String> {
    let (epoch, rest) = text.strip_prefix("epoch=")?.split_once(" bits=")?;
    let bits: Vec<&str> = rest.split(' ').next()?.split('/').collect();
    let [timestamp, datacenter, worker, sequence] = bits[..] else { return None };
    let widths = match [timestamp, datacenter, worker, sequence] {
        ["41", "0", "5", "7"] => "preset: js53".to_owned(),
        _ => format!(
            "timestamp_bits: {timestamp}, datacenter_bits: {datacenter}, worker_bits: {worker}, sequence_bits: {sequence}"
        ),
    };
    let only = if widths.starts_with("preset") { "" } else { " and no preset" };
    Some(format!("set in the section snowflake {widths}, epoch_millis: {epoch}{only}"))
}

/// A random (version 4) UUID made of `random`.
fn uuid(random: u128) -> String {
    let bits = random & !(0xf << 76) & !(0b11 << 62) | (4 << 76) | (0b10 << 62);
    let hex = format!("{bits:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

#[cfg(test)]
mod tests {
    use sqlx::SqliteConnection;

    use super::*;
    use crate::store::sqlite::Sqlite;

    fn wanted() -> Wanted {
        Wanted { registry: "sql", datacenter_id: 0, layout: "epoch=1577808000000 bits=41/5/5/12 tick=1ms".into() }
    }

    async fn nothing(_: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        Ok(())
    }

    #[tokio::test]
    async fn what_belongs_to_the_identity_is_written_with_it_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = Sqlite::open(&folder.path().join("idgen.db"), std::time::Duration::from_secs(3)).await;
        let store = opened.expect("a new database").store;
        let fails = async |_: &mut SqliteConnection| Err(sqlx::Error::RowNotFound);
        ensure(store.found().await.expect("begun"), &wanted(), fails)
            .await
            .expect_err("the bounds could not be written");
        let again = ensure(store.found().await.expect("begun"), &wanted(), nothing).await;
        assert!(matches!(again, Ok(Identity::Created(_))), "{again:?}");
    }

    #[tokio::test]
    async fn the_first_node_writes_the_identity_and_every_other_must_match_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = Sqlite::open(&folder.path().join("idgen.db"), std::time::Duration::from_secs(3)).await;
        let store = opened.expect("a new database").store;
        let Ok(Identity::Created(cluster)) = ensure(store.found().await.expect("begun"), &wanted(), nothing).await
        else {
            panic!("not created")
        };
        assert_eq!(ensure(store.found().await.expect("begun"), &wanted(), nothing).await, Ok(Identity::Same(cluster)));
        for other in [
            Wanted { registry: "etcd", ..wanted() },
            Wanted { datacenter_id: 3, ..wanted() },
            Wanted { layout: "epoch=1577808000000 bits=41/0/5/7 tick=1ms".into(), ..wanted() },
        ] {
            let error = ensure(store.found().await.expect("begun"), &other, nothing).await.expect_err("a difference");
            let IdentityError::Mismatch { stored, wanted, .. } = &error else { panic!("{error}") };
            assert_ne!(stored, wanted);
            assert!(error.to_string().contains(stored.as_str()) && error.to_string().contains(wanted.as_str()));
        }
    }

    #[test]
    fn another_layout_is_told_in_keys_of_the_configuration() {
        let keys = |bits| layout_keys(&format!("epoch=1577808000000 bits={bits} tick=1ms")).expect("a layout");
        assert_eq!(keys("41/0/5/7"), "set in the section snowflake preset: js53, epoch_millis: 1577808000000");
        assert_eq!(
            keys("41/5/5/12"),
            "set in the section snowflake timestamp_bits: 41, datacenter_bits: 5, worker_bits: 5, sequence_bits: 12, \
             epoch_millis: 1577808000000 and no preset"
        );
        assert_eq!(layout_keys("sql"), None);
    }

    #[test]
    fn a_uuid_is_of_version_four() {
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
    }
}
