//! Files and folders that are not as they should be, and what a statement does when the file goes away.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::*;
use crate::store::{EngineKind, Order};

const TIMEOUT: Duration = Duration::from_secs(10);

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn open(&self) -> Result<Opened, OpenError> {
        Sqlite::open(&self.file("idgen.db"), TIMEOUT).await
    }

    async fn store(&self) -> Sqlite {
        self.open().await.expect("a database").store
    }

    async fn refused(&self) -> OpenError {
        self.open().await.expect_err("a refusal")
    }

    /// A file that another program made with SQLite, with `pragma` set.
    async fn foreign(&self, name: &str, pragma: &'static str) {
        use sqlx::{ConnectOptions as _, Connection as _};
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.file(name)).create_if_missing(true);
        let mut connection = options.connect().await.expect("connect");
        sqlx::raw_sql(pragma).execute(&mut connection).await.expect("the pragma");
        sqlx::raw_sql("CREATE TABLE IF NOT EXISTS x (y)").execute(&mut connection).await.expect("a table");
        connection.close().await.expect("close");
    }
}

async fn tag(store: &Sqlite) -> TagName {
    let definition = Definition {
        engine: EngineKind::Segment,
        order: Order::Node,
        step: 1000,
        min_step: 100,
        max_step: 1_000_000,
        id_limit: MAX_ID,
        qps: 0,
        burst: 0,
        critical: false,
        description: String::new(),
    };
    let tag = TagName::new(b"order").expect("a tag");
    store.create(&tag, &definition, 1, 10).await.expect("create");
    tag
}

#[tokio::test]
async fn the_first_start_makes_the_file_and_later_ones_find_it() {
    let folder = Folder::new();
    let path = folder.file("new/data/idgen.db");
    let opened = Sqlite::open(&path, TIMEOUT).await.expect("a new database");
    assert!(opened.created && opened.path.is_absolute());
    assert_eq!(opened.path, fs::canonicalize(&path).expect("the file"));
    let tag = tag(&opened.store).await;
    assert_eq!(opened.store.grant(&tag, 10).await.expect("grant").range.last(), 10);
    opened.store.close().await;
    drop(opened);
    let opened = Sqlite::open(&path, TIMEOUT).await.expect("the same database");
    assert!(!opened.created);
    assert_eq!(opened.store.grant(&tag, 10).await.expect("grant").range.last(), 20);
    assert!(!folder.file("new/data/idgen.db.new").exists());
}

#[tokio::test]
async fn every_table_is_strict_and_commits_are_synced() {
    let folder = Folder::new();
    let store = folder.store().await;
    let loose = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND strict = 0 AND name NOT LIKE 'sqlite_%'";
    let loose: Vec<String> = sqlx::query_scalar(loose).fetch_all(store.pool()).await.expect("tables");
    assert_eq!(loose, Vec::<String>::new());
    let weak = store.durability().await.expect("pragmas");
    assert!(weak.iter().all(|text| text.contains("in memory")), "{weak:?}");
    sqlx::raw_sql("PRAGMA synchronous = NORMAL").execute(store.pool()).await.expect("the pragma");
    assert!(store.durability().await.expect("pragmas").iter().any(|text| text.contains("synchronous")));
}

#[tokio::test]
async fn nothing_makes_a_counter_a_floating_point_number_or_moves_it_out_of_bounds() {
    let folder = Folder::new();
    let store = folder.store().await;
    tag(&store).await;
    for sql in [
        "UPDATE id_alloc SET max_id = 9223372036854775807 + 1",
        "UPDATE id_alloc SET max_id = 1.5",
        "UPDATE id_alloc SET max_id = -1",
        "UPDATE id_alloc SET id_limit = 5, max_id = 6",
        "UPDATE id_alloc SET floor = max_id + 1",
        "UPDATE id_alloc SET step = 0",
        "UPDATE id_alloc SET step = -5",
        "UPDATE id_alloc SET grant_nonce = x'00'",
    ] {
        assert!(sqlx::raw_sql(sql).execute(store.pool()).await.is_err(), "{sql}");
    }
}

#[tokio::test]
async fn a_second_process_is_refused_and_told_who_has_the_folder() {
    let folder = Folder::new();
    let store = folder.store().await;
    let error = folder.refused().await;
    assert!(matches!(error, OpenError::InUse(..)), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("pid {}", std::process::id())) && text.contains("database.dsn"), "{text}");
    assert!(text.contains(&fs::canonicalize(folder.0.path()).expect("a folder").display().to_string()), "{text}");
    store.close().await;
    drop(store);
    folder.store().await;
}

#[tokio::test]
async fn a_deleted_database_is_never_silently_started_again() {
    let folder = Folder::new();
    let store = folder.store().await;
    store.close().await;
    drop(store);
    fs::rename(folder.file("idgen.db"), folder.file("backup")).expect("move it away");
    for _ in 0..2 {
        let error = folder.refused().await;
        assert!(matches!(error, OpenError::Gone(_)), "{error}");
    }
    fs::rename(folder.file("backup"), folder.file("idgen.db")).expect("put it back");
    assert!(!folder.open().await.expect("it is back").created);
}

#[tokio::test]
async fn a_log_that_vanished_after_a_crash_is_missed_unless_the_copy_is_a_restored_one() {
    let folder = Folder::new();
    let store = folder.store().await;
    let tag = tag(&store).await;
    store.grant(&tag, 5000).await.expect("a grant, which stands in the log alone");
    // What a crash leaves behind: the files as they are while the process runs.
    let crashed = Folder::new();
    for name in ["idgen.db", "idgen.db-wal", "idgen.db.lock"] {
        fs::copy(folder.file(name), crashed.file(name)).expect("a copy");
    }
    fs::remove_file(crashed.file("idgen.db-wal")).expect("the log");
    for _ in 0..2 {
        let error = crashed.refused().await;
        assert!(matches!(error, OpenError::LogGone(_)), "{error}");
    }
    let restored = Sqlite::open_restored(&crashed.file("idgen.db"), TIMEOUT).await.expect("for after-restore");
    restored.store.close().await;
    drop(restored);
    drop(crashed.store().await);
    drop(crashed.store().await);
    drop(store);
    let range = folder.store().await.grant(&tag, 1).await.expect("with its log").range;
    assert_eq!(range.start(), 5001, "a store that was dropped without a close is no crash");
}

#[tokio::test]
async fn a_new_database_does_not_start_beside_another_ones_data() {
    let folder = Folder::new();
    folder.store().await.close().await;
    let other = Sqlite::open(&folder.file("other.db"), TIMEOUT).await.expect_err("a refusal");
    assert!(matches!(&other, OpenError::OtherData(_, found) if found.contains("idgen.db")), "{other}");
    fs::write(folder.file("notes.txt"), "not ours").expect("a file");
    let elsewhere = Folder::new();
    fs::write(elsewhere.file("notes.txt"), "not ours").expect("a file");
    assert!(elsewhere.open().await.expect("files of others don't matter").created);
}

#[tokio::test]
async fn a_foreign_file_is_refused_and_left_as_it_is() {
    for (content, what) in [(&b""[..], "empty"), (&[b'x'; 5000][..], "not a SQLite file")] {
        let folder = Folder::new();
        fs::write(folder.file("idgen.db"), content).expect("a file");
        let error = folder.refused().await;
        assert!(matches!(&error, OpenError::Foreign(..)) && error.to_string().contains(what), "{error}");
        assert_eq!(fs::read(folder.file("idgen.db")).expect("the file"), content);
    }
    let folder = Folder::new();
    folder.foreign("idgen.db", "PRAGMA application_id = 7").await;
    let before = fs::read(folder.file("idgen.db")).expect("the file");
    let error = folder.refused().await;
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(fs::read(folder.file("idgen.db")).expect("the file"), before);
}

#[tokio::test]
async fn a_file_of_a_newer_program_is_refused() {
    let folder = Folder::new();
    let store = folder.store().await;
    sqlx::raw_sql("PRAGMA user_version = 999").execute(store.pool()).await.expect("the pragma");
    store.close().await;
    drop(store);
    let error = folder.refused().await;
    assert!(matches!(error, OpenError::Newer(_, 999, _)), "{error}");
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let folder = Folder::new();
    let store = folder.store().await;
    tag(&store).await;
    store.close().await;
    drop(store);
    let mut content = fs::read(folder.file("idgen.db")).expect("the file");
    content.iter_mut().skip(4096).step_by(3).for_each(|byte| *byte ^= 0x5a);
    fs::write(folder.file("idgen.db"), content).expect("damage");
    let error = folder.refused().await;
    assert!(matches!(error, OpenError::Corrupt(..)), "{error}");
}

#[tokio::test]
async fn a_folder_that_can_not_be_used_is_named() {
    let folder = Folder::new();
    fs::write(folder.file("file"), "").expect("a file");
    let error = Sqlite::open(&folder.file("file/idgen.db"), TIMEOUT).await.expect_err("no folder");
    assert!(matches!(error, OpenError::Folder(..)), "{error}");
    if !nix::unistd::geteuid().is_root() {
        fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o500)).expect("read-only");
        assert!(matches!(folder.refused().await, OpenError::Folder(..)));
        fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o700)).expect("writable again");
    }
    let error = Sqlite::open(std::path::Path::new("/proc/idgen.db"), TIMEOUT).await.expect_err("no file there");
    assert!(matches!(error, OpenError::Folder(..)), "{error}");
}

#[tokio::test]
async fn a_grant_fails_when_the_file_was_taken_away_or_replaced() {
    let folder = Folder::new();
    let store = folder.store().await;
    let tag = tag(&store).await;
    store.grant(&tag, 10).await.expect("grant");
    fs::rename(folder.file("idgen.db"), folder.file("away")).expect("take it away");
    let error = store.grant(&tag, 10).await.expect_err("no file");
    assert_eq!((error.kind, error.reason), (Kind::Permanent, "gone"), "{error}");
    assert_eq!(store.probe().await, Err(error));
    fs::copy(folder.file("away"), folder.file("idgen.db")).expect("replace it");
    let error = store.grant(&tag, 10).await.expect_err("another file");
    assert!(error.kind == Kind::Permanent && error.text.contains("replaced"), "{error}");
    fs::remove_file(folder.file("idgen.db")).expect("remove the copy");
    fs::rename(folder.file("away"), folder.file("idgen.db")).expect("put it back");
    assert_eq!(store.grant(&tag, 10).await.expect("it works again").range.last(), 20);
    fs::remove_file(folder.file("idgen.db-wal")).expect("delete the log");
    assert_eq!(store.grant(&tag, 10).await.expect_err("no log").kind, Kind::Permanent);
}

#[tokio::test]
async fn a_lock_that_somebody_else_holds_makes_a_grant_busy_and_nothing_more() {
    use sqlx::{ConnectOptions as _, Connection as _};
    let folder = Folder::new();
    let store = Sqlite::open(&folder.file("idgen.db"), Duration::from_millis(400)).await.expect("open").store;
    let tag = tag(&store).await;
    let mut shell =
        sqlx::sqlite::SqliteConnectOptions::new().filename(folder.file("idgen.db")).connect().await.expect("a shell");
    let held = shell.begin_with("BEGIN IMMEDIATE").await.expect("a lock");
    let error = store.grant(&tag, 10).await.expect_err("locked");
    assert_eq!((error.kind, error.reason), (Kind::Transient, "busy"), "{error}");
    assert_eq!(store.probe().await.expect_err("locked").reason, "busy");
    assert!(store.find(&tag).await.expect("reads work").is_some());
    held.rollback().await.expect("rollback");
    assert_eq!(store.probe().await, Ok(()));
    assert_eq!(store.grant(&tag, 10).await.expect("grant").range.start(), 1);
}

#[tokio::test]
async fn a_grant_that_was_dropped_half_way_is_not_given_twice() {
    let folder = Folder::new();
    let store = folder.store().await;
    let tag = tag(&store).await;
    let mut last = 0;
    for micros in 0..200 {
        let pause = Duration::from_micros(micros * 10);
        if let Ok(granted) = tokio::time::timeout(pause, store.grant(&tag, 10)).await {
            let range = granted.expect("grant").range;
            assert!(range.start() > last);
            last = range.last();
        }
    }
    let range = store.grant(&tag, 10).await.expect("the connection is sound").range;
    assert!(range.start() > last);
    assert_eq!(store.find(&tag).await.expect("find").expect("a row").max_id, range.last());
}

#[tokio::test]
async fn a_full_disk_fails_and_works_again_when_there_is_room() {
    let folder = Folder::new();
    let store = folder.store().await;
    let tag = tag(&store).await;
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(store.pool()).await.expect("pages");
    let full = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
    sqlx::raw_sql(full).execute(store.pool()).await.expect("the limit");
    let long = Alteration { description: Some("x".repeat(255)), ..Alteration::default() };
    let mut failed = None;
    for n in 0..100 {
        let name = TagName::new(format!("{n:0>100}").as_bytes()).expect("a tag");
        let row = store.find(&tag).await.expect("find").expect("a row");
        let definition = row.definition.altered(&long);
        if let Err(error) = store.create(&name, &definition, 1, 1000).await {
            failed = Some(error);
            break;
        }
    }
    let error = failed.expect("no room");
    assert_eq!(error.reason, "full", "{error}");
    assert!(error.text.contains("disk is full"), "{error}");
    assert_eq!(store.grant(&tag, 10).await.expect("a grant needs no new page").range.start(), 1);
    sqlx::raw_sql("PRAGMA max_page_count = 1000000").execute(store.pool()).await.expect("room");
    let name = TagName::new(b"another").expect("a tag");
    let definition = store.find(&tag).await.expect("find").expect("a row").definition;
    store.create(&name, &definition, 1, 1000).await.expect("it works again");
}

#[test]
fn file_systems_of_other_machines_are_known_by_their_number() {
    for (magic, name) in [(0x6969, "nfs"), (0xff53_4d42, "cifs"), (0x6573_5546, "fuse"), (0x0102_1997, "9p")] {
        assert_eq!(open::network_kind(magic), Some(name));
    }
    assert_eq!(open::network_kind(0xef53), None, "ext4");
    assert_eq!(open::network_kind(-11_317_950), Some("cifs"), "a 32-bit number that was taken for a negative one");
}
