//! Bad configurations and broken disks: a clear text that names the key or the file, the specified exit code, nothing lost.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::node::{PATIENCE, Setup, Shell, eventually};
use crate::wire::Value;

/// A person has to put the configuration or the data right first.
const CONFIG: i32 = 78;
/// Something failed that may pass: starting again may help.
const FAILURE: i32 = 1;

/// The start is refused with the exit code `expected`, and its text has all of `words`.
fn refused(setup: &Setup, expected: i32, words: &[&str]) {
    told(setup.refused(), expected, words);
}

fn told((code, text): (i32, String), expected: i32, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "the text does not name {word:?} (exit code {code}):\n{text}");
    }
    assert_eq!(code, expected, "the exit code of:\n{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// Keys with their values, and the words that the refusal must have.
type Case = (&'static [(&'static str, &'static str)], &'static [&'static str]);

#[test]
fn bad_values_are_refused_by_the_name_of_their_key() {
    let cases: &[Case] = &[
        (&[("server.adr", "127.0.0.1:1")], &["server.adr", "server.addr"]),
        (&[("snowflak.epoch_millis", "0")], &["snowflak", "snowflake"]),
        (&[("snowflake.datacenter_id", "99")], &["snowflake.datacenter_id"]),
        (&[("snowflake.datacenter_id", "-1")], &["snowflake.datacenter_id"]),
        (&[("snowflake.worker_id_hint", "99")], &["snowflake.worker_id_hint"]),
        (&[("snowflake.worker_bits", "60")], &["snowflake.worker_bits"]),
        (&[("snowflake.sequence_bits", "0")], &["snowflake.sequence_bits"]),
        (&[("snowflake.timestamp_bits", "45")], &["snowflake.timestamp_bits"]),
        (&[("snowflake.epoch_millis", "99999999999999")], &["snowflake.epoch_millis"]),
        (&[("snowflake.preset", "js99")], &["snowflake.preset", "js53"]),
        (&[("segment.default_step", "0")], &["segment.default_step"]),
        (&[("segment.min_step", "5000"), ("segment.max_step", "10")], &["segment.min_step"]),
        (&[("segment.preload_threshold", "1.5")], &["segment.preload_threshold"]),
        (&[("server.max_count", "0")], &["server.max_count"]),
        (&[("server.wait_max", "soon")], &["server.wait_max"]),
        (&[("server.addr", "nowhere")], &["server.addr"]),
        (&[("server.addr", "0.0.0.0:0")], &["server.addr", "allow_unauthenticated"]),
        (&[("tags.unknown", "perhaps")], &["tags.unknown"]),
        (&[("etcd.endpoints", "http://127.0.0.1:2379")], &["etcd.endpoints", "database.dsn"]),
        (&[("database.dsn", "")], &["database.dsn"]),
        (&[("database.dsn", "oracle://db")], &["database.dsn"]),
    ];
    for (pairs, words) in cases {
        let setup = pairs.iter().fold(Setup::new(), |setup, (key, value)| setup.set(key, value));
        refused(&setup, CONFIG, words);
        assert!(!setup.database().exists(), "{pairs:?} left a database behind");
    }
}

#[test]
fn an_unknown_key_in_the_file_is_refused_with_the_nearest_one() {
    refused(&Setup::new().config("server:\n  adress: 127.0.0.1:1\n"), CONFIG, &["server.adress", "server.addr"]);
    refused(&Setup::new().config("server: [\n"), CONFIG, &["idgen.yaml"]);
}

#[test]
fn a_port_in_use_is_named() {
    let setup = Setup::new();
    let _taken = TcpListener::bind(setup.addr()).unwrap();
    refused(&setup, FAILURE, &[&setup.addr().to_string()]);
    let setup = Setup::new();
    let _taken = TcpListener::bind(setup.admin()).unwrap();
    refused(&setup, FAILURE, &[&setup.admin().to_string()]);
}

#[test]
fn a_second_process_on_the_same_data_folder_is_refused_and_the_first_goes_on() {
    let setup = Setup::new();
    let node = setup.start();
    let second = Setup::new().set("database.dsn", &format!("sqlite://{}", setup.database().display()));
    refused(&second, FAILURE, &[&setup.database().parent().unwrap().display().to_string()]);
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(1));
    node.stop();
    second.start().stop();
}

#[test]
fn a_folder_that_can_not_be_written_is_named() {
    let setup = Setup::new().run_by_nobody();
    refused(&setup, CONFIG, &["idgen-data"]);
    // The folder is there, and belongs to someone else.
    fs::create_dir(setup.folder().join("idgen-data")).unwrap();
    refused(&setup, CONFIG, &["idgen-data"]);
}

#[test]
fn a_file_that_is_no_database_is_left_alone_and_named() {
    let setup = Setup::new();
    fs::create_dir(setup.folder().join("idgen-data")).unwrap();
    let garbage = b"this is not a database\n".repeat(1000);
    fs::write(setup.database(), &garbage).unwrap();
    refused(&setup, CONFIG, &["idgen.db"]);
    assert_eq!(fs::read(setup.database()).unwrap(), garbage, "the file was changed");
}

#[test]
fn the_database_of_another_program_is_left_alone_and_named() {
    let setup = Setup::new();
    fs::create_dir(setup.folder().join("idgen-data")).unwrap();
    Shell::run(&setup.database(), "CREATE TABLE songs (title TEXT); INSERT INTO songs VALUES ('x')");
    let before = fs::read(setup.database()).unwrap();
    refused(&setup, CONFIG, &["idgen.db"]);
    assert_eq!(fs::read(setup.database()).unwrap(), before, "the file was changed");
}

#[test]
fn a_damaged_database_is_refused_and_left_alone() {
    let setup = Setup::new();
    let node = setup.start();
    node.connect().call(&["IDGET", "order"]).int();
    node.stop();
    let mut bytes = fs::read(setup.database()).unwrap();
    for byte in bytes.iter_mut().skip(4096) {
        *byte ^= 0xA5;
    }
    fs::write(setup.database(), &bytes).unwrap();
    refused(&setup, CONFIG, &["idgen.db"]);
    assert_eq!(fs::read(setup.database()).unwrap(), bytes, "the file was changed");
}

/// A data folder in which a node has run.
fn used() -> Setup {
    let setup = Setup::new();
    let node = setup.start();
    node.connect().call(&["IDGET", "order"]).int();
    node.stop();
    setup
}

#[test]
fn a_database_of_a_newer_program_is_refused_and_left_alone() {
    let setup = used();
    Shell::run(&setup.database(), "PRAGMA user_version = 9999");
    let before = fs::read(setup.database()).unwrap();
    refused(&setup, CONFIG, &["idgen.db", "newer", "9999"]);
    assert_eq!(fs::read(setup.database()).unwrap(), before, "the file was changed");
}

#[test]
fn a_deleted_database_is_never_made_anew() {
    let setup = used();
    fs::remove_file(setup.database()).unwrap();
    refused(&setup, CONFIG, &["idgen.db", "gone"]);
    assert!(!setup.database().exists(), "a new database was made");
}

#[test]
fn a_new_name_beside_other_data_is_refused_by_the_name_of_the_other() {
    let setup = used();
    let old = setup.database();
    let new = old.with_file_name("new.db");
    let setup = setup.set("database.dsn", &format!("sqlite://{}", new.display()));
    refused(&setup, CONFIG, &["new.db", &old.display().to_string()]);
    assert!(!new.exists(), "a new database was made");
}

#[test]
fn after_restore_where_there_is_no_database_is_refused_and_makes_none() {
    let setup = Setup::new();
    told(setup.run(&["after-restore"]), CONFIG, &["idgen.db"]);
    assert!(!setup.database().exists(), "a new database was made");
}

#[test]
fn after_restore_under_a_running_server_is_refused() {
    let setup = Setup::new();
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(1));
    told(setup.run(&["after-restore"]), FAILURE, &["idgen-data", "in use"]);
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(2));
}

#[test]
fn a_database_that_someone_else_keeps_locked_may_pass() {
    let setup = used();
    let setup = setup.set("database.statement_timeout", "1s");
    let lock = Shell::lock_whole(&setup.database());
    refused(&setup, FAILURE, &["idgen.db", "locked"]);
    drop(lock);
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(2));
}

#[test]
fn an_existing_database_with_another_layout_is_refused_with_both_values() {
    let setup = Setup::new();
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDTAG", "CREATE", "event", "ENGINE", "snowflake"]).text(), "OK");
    node.connect().call(&["IDGET", "event"]).int();
    node.stop();
    let setup = setup.set("snowflake.sequence_bits", "10");
    refused(&setup, CONFIG, &["41/5/5/12", "41/5/5/10"]);
    let setup = setup.set("snowflake.sequence_bits", "12").set("snowflake.epoch_millis", "1577808000001");
    refused(&setup, CONFIG, &["1577808000000", "1577808000001"]);
    let setup = setup.set("snowflake.epoch_millis", "1577808000000");
    setup.start().stop();
}

/// A small file system of its own, taken away at the end.
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts one of `size` at `folder`.
    pub fn mount(folder: &Path, size: &str) -> Self {
        fs::create_dir_all(folder).unwrap();
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(folder)
            .status()
            .unwrap();
        assert!(status.success(), "mounting a tmpfs needs root");
        Self(folder.to_owned())
    }

    /// Uses up all space that is left but for `keep` bytes.
    pub fn fill(&self, keep: u64) -> PathBuf {
        let space = nix::sys::statvfs::statvfs(&self.0).unwrap();
        let free = space.blocks_available() * space.fragment_size();
        let ballast = self.0.join("ballast");
        fs::write(&ballast, vec![0_u8; usize::try_from(free.saturating_sub(keep)).unwrap()]).unwrap();
        ballast
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_start_on_a_disk_without_room_is_refused_by_name() {
    let setup = Setup::new();
    let disk = Disk::mount(&setup.folder().join("idgen-data"), "64k");
    disk.fill(4096);
    refused(&setup, FAILURE, &["idgen.db", "full"]);
}

#[test]
fn a_full_disk_stops_only_what_needs_room_until_there_is_some_again() {
    let setup = Setup::new();
    let disk = Disk::mount(&setup.folder().join("idgen-data"), "16m");
    let node = setup.start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDGET", "old"]), Value::Int(1));
    let ballast = disk.fill(0);
    // Each new tag is a row, and rows need room sooner or later.
    let mut names = (0..).map(|at| format!("{at}-{}", "x".repeat(100)));
    let failed = eventually("the disk is full", PATIENCE, || {
        let name = names.next()?;
        match conn.call(&["IDGET", &name]) {
            Value::Error(text) => {
                assert!(text.starts_with("IDBACKEND ") && text.contains("full") && text.contains("idgen.db"), "{text}");
                Some(name)
            }
            id => {
                assert_eq!(id, Value::Int(1));
                None
            }
        }
    });
    assert_eq!(conn.call(&["IDGET", "old"]), Value::Int(2), "what is in memory goes on");
    assert_eq!(node.http("/readyz").0, 200, "some tags can be served");
    fs::remove_file(ballast).unwrap();
    eventually("new tags work again", PATIENCE, || (conn.call(&["IDGET", &failed]) == Value::Int(1)).then_some(()));
    node.stop();
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDGET", "old"]), Value::Int(3));
    node.stop();
}

#[test]
fn a_database_that_vanished_is_never_made_anew_under_a_running_server() {
    let setup = Setup::new();
    let node = setup.start();
    let mut conn = node.connect();
    let create = ["IDTAG", "CREATE", "order", "STEP", "100", "MINSTEP", "100", "MAXSTEP", "100"];
    assert_eq!(conn.call(&create).text(), "OK");
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(setup.database().with_file_name(format!("idgen.db{suffix}")));
    }
    // An open file goes on to exist, so ids may go on, or end; they never start again.
    let mut last = 1;
    for _ in 0..50 {
        if let Value::Array(ids) = conn.call(&["IDMGET", "order", "20"]) {
            assert!(ids[0].int() > last, "{:?} after {last}", ids[0]);
            last = ids[19].int();
        }
    }
    assert!(!setup.database().exists(), "a running server made a new database");
}
