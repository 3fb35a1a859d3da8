//! What every registry must do, run over all of them. A new registry is done when it passes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Executor as _, SqlitePool};

use super::anchored::{Anchored, Facts};
use super::memory::{Fault, MemoryRegistry};
use super::sql::{SqlRegistry, create_bounds};
use super::{Bound, RegistryError, Swap, WorkerRegistry, unclaimed};
use crate::ids::Incarnation;
use crate::store::network::Network as _;
use crate::store::postgres::Postgres;
use crate::store::postgres::testing::{Database, PgBouncer};
use crate::store::servers::MySqlDatabase;

const WORKERS: u32 = 4;
const HI: u64 = 1_000;
const TIMEOUT: Duration = Duration::from_secs(10);
const ME: Incarnation = Incarnation(7);
const OTHER: Incarnation = Incarnation(u128::MAX);

fn record(previous: &Bound, incarnation: Incarnation, hi: u64) -> Bound {
    Bound { hi, incarnation, n: previous.n + 1, wall_ms: hi / 2, host: "a host".to_owned() }
}

async fn a_claim_is_a_compare_and_set(registry: &dyn WorkerRegistry) {
    let all = registry.list().await.expect("listed");
    assert_eq!(all.iter().map(|worker| worker.id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(all.iter().all(|worker| worker.bound == Some(unclaimed(HI)) && worker.owner.is_none()));

    let mine = record(&unclaimed(HI), ME, 2_000);
    assert_eq!(registry.claim(1, &unclaimed(HI), &mine).await, Ok(Swap::Done));
    assert_eq!(registry.read(1).await, Ok(Some(mine.clone())), "the record is read back as a whole");
    let listed = registry.list().await.expect("listed");
    assert_eq!(listed[1].bound.as_ref(), Some(&mine));
    assert_eq!(listed[1].owner.as_ref().map(|owner| (owner.incarnation, owner.host.as_str())), Some((ME, "a host")));

    let theirs = record(&unclaimed(HI), OTHER, 9_000);
    assert_eq!(registry.claim(1, &unclaimed(HI), &theirs).await, Ok(Swap::Refused), "the guard is old");
    for wrong in [
        Bound { hi: 2_001, ..mine.clone() },
        Bound { n: 2, ..mine.clone() },
        Bound { incarnation: OTHER, ..mine.clone() },
    ] {
        assert_eq!(registry.renew(1, &wrong, &record(&mine, ME, 3_000)).await, Ok(Swap::Refused), "{wrong:?}");
    }
    assert_eq!(registry.read(1).await, Ok(Some(mine)), "nothing was written");
    assert_eq!(registry.read(0).await, Ok(Some(unclaimed(HI))), "nor elsewhere");
}

async fn a_bound_only_grows(registry: &dyn WorkerRegistry) {
    let first = record(&unclaimed(HI), ME, 2_000);
    assert_eq!(registry.claim(2, &unclaimed(HI), &first).await, Ok(Swap::Done));
    for hi in [0, 1_999, 2_000] {
        assert_eq!(registry.renew(2, &first, &record(&first, ME, hi)).await, Ok(Swap::Refused), "to {hi}");
        assert_eq!(registry.claim(2, &first, &record(&first, ME, hi)).await, Ok(Swap::Refused), "to {hi}");
    }
    let second = record(&first, ME, 2_001);
    assert_eq!(registry.renew(2, &first, &second).await, Ok(Swap::Done));
    assert_eq!(registry.renew(2, &first, &record(&first, ME, 5_000)).await, Ok(Swap::Refused), "a late copy");
    assert_eq!(registry.read(2).await, Ok(Some(second)));
}

async fn a_release_keeps_the_bound(registry: &dyn WorkerRegistry) {
    let mine = record(&unclaimed(HI), ME, 2_000);
    assert_eq!(registry.claim(3, &unclaimed(HI), &mine).await, Ok(Swap::Done));
    registry.release(3, OTHER).await.expect("no error");
    assert!(registry.list().await.expect("listed")[3].owner.is_some(), "another one's release does nothing");
    registry.release(3, ME).await.expect("released");
    let listed = registry.list().await.expect("listed");
    assert_eq!((listed[3].bound.as_ref(), listed[3].owner.as_ref()), (Some(&mine), None));
    let theirs = record(&mine, OTHER, 4_000);
    assert_eq!(registry.claim(3, &mine, &theirs).await, Ok(Swap::Done));
    registry.release(3, ME).await.expect("no error");
    assert!(registry.list().await.expect("listed")[3].owner.is_some(), "a late release does nothing");
}

async fn raise_all_raises_and_drops_owners(registry: &dyn WorkerRegistry) {
    let mine = record(&unclaimed(HI), ME, 9_000);
    assert_eq!(registry.claim(0, &unclaimed(HI), &mine).await, Ok(Swap::Done));
    assert_eq!(registry.raise_all(5_000).await, Ok(u64::from(WORKERS)));
    let listed = registry.list().await.expect("listed");
    let bounds: Vec<_> = listed.iter().map(|worker| worker.bound.as_ref().map_or(0, |bound| bound.hi)).collect();
    assert_eq!(bounds, [9_000, 5_000, 5_000, 5_000]);
    assert!(listed.iter().all(|worker| worker.owner.is_none()));
    assert_eq!(registry.renew(0, &mine, &record(&mine, ME, 10_000)).await, Ok(Swap::Refused), "an owner from before");
}

async fn a_worker_id_without_a_record_is_never_used(registry: &dyn WorkerRegistry, missing: &[u32]) {
    for &worker in missing {
        assert_eq!(registry.read(worker).await, Ok(None));
        let next = record(&unclaimed(HI), ME, 2_000);
        assert_eq!(registry.claim(worker, &unclaimed(HI), &next).await, Ok(Swap::Refused));
        assert_eq!(registry.renew(worker, &unclaimed(HI), &next).await, Ok(Swap::Refused));
        assert_eq!(registry.read(worker).await, Ok(None), "it stays missing");
    }
    let listed = registry.list().await.expect("listed");
    assert_eq!(listed.len(), 4, "missing ones are shown");
    let shown: Vec<u32> = listed.iter().filter(|worker| worker.bound.is_none()).map(|worker| worker.id).collect();
    assert!(shown.iter().all(|worker| missing.contains(worker)) && !shown.is_empty());
}

async fn of_many_claims_one_wins(registry: Arc<dyn WorkerRegistry>) {
    let claims: Vec<_> = (1..=20_u128)
        .map(|number| {
            let registry = Arc::clone(&registry);
            tokio::spawn(async move {
                let next = record(&unclaimed(HI), Incarnation(number), 2_000 + u64::try_from(number).unwrap_or(0));
                (number, registry.claim(0, &unclaimed(HI), &next).await)
            })
        })
        .collect();
    let mut winners = BTreeSet::new();
    for claim in claims {
        let (number, outcome) = claim.await.expect("no panic");
        if outcome.expect("answered") == Swap::Done {
            winners.insert(number);
        }
    }
    let stands = registry.read(0).await.expect("read").expect("a record").incarnation.0;
    assert_eq!(winners.into_iter().collect::<Vec<_>>(), [stands]);
}

async fn sqlite(folder: &tempfile::TempDir) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(folder.path().join("registry.db")).create_if_missing(true);
    SqlitePoolOptions::new().max_connections(2).connect_with(options).await.expect("a database")
}

async fn sql_registry(folder: &tempfile::TempDir) -> (SqlRegistry<sqlx::Sqlite>, SqlitePool) {
    let pool = sqlite(folder).await;
    pool.execute(include_str!("../../migrations/sqlite/0002_worker_bound.sql")).await.expect("migrated");
    let mut connection = pool.acquire().await.expect("a connection");
    create_bounds(&mut *connection, 3, WORKERS, HI).await.expect("created");
    drop(connection);
    (SqlRegistry::new(pool.clone(), 3, WORKERS, TIMEOUT), pool)
}

/// The registry in a PostgreSQL database, through what listens on `port` where it is named.
async fn postgres(database: &Database, port: Option<u16>) -> SqlRegistry<sqlx::Postgres> {
    let store = Postgres::open(&database.config(port), true).await.expect("a new database");
    let mut founding = store.found().await.expect("a transaction");
    create_bounds(&mut *founding, 3, WORKERS, HI).await.expect("created");
    founding.commit().await.expect("committed");
    SqlRegistry::new(store.registry_pool(), 3, WORKERS, TIMEOUT)
}

async fn mysql_registry(database: &MySqlDatabase) -> Anchored {
    let store = database.store().await;
    create_bounds(&mut database.connection().await, 3, WORKERS, HI).await.expect("created");
    let registry = SqlRegistry::new(store.registry_pool(), 3, WORKERS, TIMEOUT);
    let facts = Facts { name: "mysql", exclusive: false, leases: false };
    let anchored = Anchored::new(facts, tokio::runtime::Handle::current());
    anchored.open(Arc::new(registry));
    anchored
}

macro_rules! conforms {
    ($($name:ident),+) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$name(&super::MemoryRegistry::new(super::WORKERS, super::HI, true)).await;
                super::$name(&super::MemoryRegistry::new(super::WORKERS, super::HI, false)).await;
            })+
        }
        mod sql {
            $(#[tokio::test]
            async fn $name() {
                let folder = tempfile::tempdir().expect("a folder");
                super::$name(&super::sql_registry(&folder).await.0).await;
            })+
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                let database = super::Database::new().await;
                super::$name(&super::postgres(&database, None).await).await;
            })+
        }
        mod pgbouncer {
            $(#[tokio::test]
            async fn $name() {
                let database = super::Database::new().await;
                let bouncer = super::PgBouncer::start(&database.server).await;
                super::$name(&super::postgres(&database, Some(bouncer.port)).await).await;
            })+
        }
        mod mysql {
            $(#[tokio::test]
            async fn $name() {
                let database = super::MySqlDatabase::new().await;
                super::$name(&super::mysql_registry(&database).await).await;
            })+
        }
    };
}

conforms!(
    a_claim_is_a_compare_and_set,
    a_bound_only_grows,
    a_release_keeps_the_bound,
    raise_all_raises_and_drops_owners
);

#[tokio::test]
async fn of_many_claims_one_wins_everywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    of_many_claims_one_wins(Arc::new(sql_registry(&folder).await.0)).await;
    of_many_claims_one_wins(Arc::new(MemoryRegistry::new(WORKERS, HI, false))).await;
    let database = Database::new().await;
    of_many_claims_one_wins(Arc::new(postgres(&database, None).await)).await;
    let database = MySqlDatabase::new().await;
    of_many_claims_one_wins(Arc::new(mysql_registry(&database).await)).await;
}

#[tokio::test]
async fn missing_records_stay_missing_everywhere() {
    let memory = MemoryRegistry::new(WORKERS, HI, true);
    memory.overwrite(1, None);
    a_worker_id_without_a_record_is_never_used(&memory, &[1, 4]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, pool) = sql_registry(&folder).await;
    pool.execute("DELETE FROM worker_bound WHERE w IN (1, 3)").await.expect("deleted");
    a_worker_id_without_a_record_is_never_used(&registry, &[1, 3, 4]).await;
    let database = Database::new().await;
    let registry = postgres(&database, None).await;
    database.run("DELETE FROM worker_bound WHERE w IN (1, 3)").await.expect("deleted");
    a_worker_id_without_a_record_is_never_used(&registry, &[1, 3, 4]).await;
    let database = MySqlDatabase::new().await;
    let registry = mysql_registry(&database).await;
    database.connection().await.execute("DELETE FROM worker_bound WHERE w IN (1, 3)").await.expect("deleted");
    a_worker_id_without_a_record_is_never_used(&registry, &[1, 3, 4]).await;
}

#[tokio::test]
async fn the_rows_are_created_once_and_outlive_the_pool() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, pool) = sql_registry(&folder).await;
    let mine = record(&unclaimed(HI), ME, 2_000);
    assert_eq!(registry.claim(1, &unclaimed(HI), &mine).await, Ok(Swap::Done));
    let mut connection = pool.acquire().await.expect("a connection");
    create_bounds(&mut *connection, 3, WORKERS, 0).await.expect_err("they exist");
    create_bounds(&mut *connection, 4, 1 << 14, 0).await.expect("another datacenter, as many as there can be");
    drop(connection);
    pool.close().await;
    let again = SqlRegistry::new(sqlite(&folder).await, 3, WORKERS, TIMEOUT);
    assert_eq!(again.read(1).await, Ok(Some(mine)));
}

#[tokio::test]
async fn a_database_that_is_gone_is_an_error_and_no_bound() {
    let folder = tempfile::tempdir().expect("a folder");
    let (registry, pool) = sql_registry(&folder).await;
    pool.close().await;
    assert!(matches!(registry.read(1).await, Err(RegistryError::Unavailable(_))));
    let next = record(&unclaimed(HI), ME, 2_000);
    assert!(matches!(registry.claim(1, &unclaimed(HI), &next).await, Err(RegistryError::Unavailable(_))));
}

#[test]
fn the_faults_of_the_memory_registry_are_what_they_say() {
    let registry = MemoryRegistry::new(1, HI, true);
    let step = |fault, from: &Bound, to: &Bound| {
        registry.inject(fault);
        registry.write(0, from, to, false).expect_err("a fault")
    };
    let stands = || registry.workers()[0].bound.clone().expect("a record");
    let (one, two) = (record(&unclaimed(HI), ME, 2_000), record(&unclaimed(HI), ME, 3_000));
    assert!(matches!(step(Fault::RequestLost, &unclaimed(HI), &one), RegistryError::Unknown(_)));
    assert!(matches!(step(Fault::Refused, &unclaimed(HI), &one), RegistryError::Unavailable(_)));
    assert!(matches!(step(Fault::AppliedLate, &unclaimed(HI), &one), RegistryError::Unknown(_)));
    assert_eq!(stands(), unclaimed(HI));
    assert!(matches!(step(Fault::AnswerLost, &unclaimed(HI), &two), RegistryError::Unknown(_)));
    assert_eq!(stands(), two);
    assert_eq!(registry.settle(), 0, "its guard has been passed by");
    assert_eq!(stands(), two);
}

#[tokio::test]
async fn nodes_that_share_a_database_wait_until_a_worker_id_is_ripe() {
    let database = MySqlDatabase::new().await;
    let registry = mysql_registry(&database).await;
    assert!(!registry.exclusive() && !registry.leases());
    assert_eq!(registry.name(), "mysql");
}

/// As the thread of the renewals does: its event loop ends, and the connections go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_registry_on_a_server_outlives_the_event_loop_of_its_callers() {
    let database = MySqlDatabase::new().await;
    let registry = Arc::new(mysql_registry(&database).await);
    for _ in 0..3 {
        let registry = Arc::clone(&registry);
        let caller = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(registry.read(1))
        });
        let read = tokio::task::spawn_blocking(|| caller.join().expect("no panic")).await.expect("no panic");
        assert_eq!(read, Ok(Some(unclaimed(HI))));
    }
}
