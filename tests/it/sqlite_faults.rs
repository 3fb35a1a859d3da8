//! What a node does while its SQLite file can't be written or isn't its file any more, and that a commit is on the disk
//! before anybody hears of it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::faults::Disk;
use crate::node::{Node, PATIENCE, Setup, Shell, eventually};
use crate::wire::{Conn, Value};

/// A tag whose segments have `step` ids.
fn create(conn: &mut Conn, tag: &str, step: &str) {
    let words = ["IDTAG", "CREATE", tag, "STEP", step, "MINSTEP", step, "MAXSTEP", step];
    assert_eq!(conn.call(&words), Value::Simple("OK".into()));
}

/// Draws of `tag` until the store is named; ids only go up, from `last` on.
fn until_refused(conn: &mut Conn, tag: &str, last: &mut i64) -> String {
    eventually("the tag is refused", PATIENCE, || match conn.call(&["IDGET", tag]) {
        Value::Error(text) => text.starts_with("IDBACKEND ").then_some(text),
        id => {
            assert!(id.int() > *last, "{id:?} after {last}");
            *last = id.int();
            None
        }
    })
}

fn failures(node: &Node, tag: &str, reason: &str) -> f64 {
    let name = format!("idgen_segment_fetch_fail_total{{biz_tag=\"{tag}\",reason=\"{reason}\"}}");
    node.metric(&name).unwrap_or(0.0)
}

#[test]
fn a_full_disk_ends_segments_and_not_what_is_in_memory() {
    let setup = Setup::new();
    let disk = Disk::mount(&setup.folder().join("idgen-data"), "16m");
    let node = setup.start();
    let mut conn = node.connect();
    create(&mut conn, "warm", "1000000");
    create(&mut conn, "short", "10");
    assert_eq!(conn.call(&["IDGET", "warm"]), Value::Int(1));
    // Room that the log has already is used again and again.
    Shell::run(&setup.database(), "PRAGMA wal_checkpoint(TRUNCATE)");
    let ballast = disk.fill(0);
    let mut last = 0;
    let text = until_refused(&mut conn, "short", &mut last);
    assert!(text.contains("full") && text.contains("idgen.db"), "{text}");
    assert!(failures(&node, "short", "full") >= 1.0);
    assert_eq!(conn.call(&["IDGET", "warm"]), Value::Int(2));
    fs::remove_file(ballast).unwrap();
    let next = eventually("ids come again", PATIENCE, || match conn.call(&["IDGET", "short"]) {
        Value::Int(id) => Some(id),
        _ => None,
    });
    assert!(next > last);
    node.stop();
}

#[test]
fn a_file_that_was_put_in_the_place_of_the_database_gives_nothing() {
    let setup = Setup::new();
    let node = setup.start();
    let mut conn = node.connect();
    create(&mut conn, "order", "10");
    let mut last = conn.call(&["IDGET", "order"]).int();
    let (file, copy, own) = (setup.database(), setup.folder().join("copy.db"), setup.folder().join("own.db"));
    Shell::run(&file, &format!("VACUUM INTO '{}'", copy.display()));
    let other = fs::read(&copy).unwrap();
    fs::rename(&file, &own).unwrap();
    fs::rename(&copy, &file).unwrap();
    let text = until_refused(&mut conn, "order", &mut last);
    assert!(text.contains("replaced"), "{text}");
    assert!(failures(&node, "order", "gone") >= 1.0);
    assert_eq!(fs::read(&file).unwrap(), other, "it was written to");
    fs::rename(&own, &file).unwrap();
    let next = eventually("its own file is back", PATIENCE, || match conn.call(&["IDGET", "order"]) {
        Value::Int(id) => Some(id),
        _ => None,
    });
    assert!(next > last, "{next} after {last}");
    node.stop();
}

#[test]
fn a_file_that_can_only_be_read_is_refused_at_the_start() {
    let setup = Setup::new();
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(1));
    node.stop();
    let (file, folder) = (setup.database(), setup.folder().join("idgen-data"));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    for entry in fs::read_dir(&folder).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o666)).unwrap();
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).unwrap();
    let before = fs::read(&file).unwrap();
    let setup = setup.run_by_nobody();
    let (code, text) = setup.refused();
    assert!(code == 78 || code == 1, "exit code {code}: {text}");
    assert!(text.contains("idgen.db") && !text.contains("panicked"), "{text}");
    assert_eq!(fs::read(&file).unwrap(), before);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let node = setup.start();
    assert_eq!(node.connect().call(&["IDGET", "order"]), Value::Int(2));
    node.stop();
}

/// What a power failure can't be made to show here: between any two replies with ids of a strict tag, the log is synced.
#[test]
fn a_reply_is_written_after_the_log_is_synced() {
    const REQUESTS: i64 = 30;
    let setup = Setup::new();
    let node = setup.start();
    let mut conn = node.connect();
    let order = if setup.folder().starts_with("/dev/shm") { "node" } else { "strict" };
    let words = ["IDTAG", "CREATE", "order", "ORDER", order, "STEP", "1", "MINSTEP", "1", "MAXSTEP", "1"];
    assert_eq!(conn.call(&words), Value::Simple("OK".into()));
    let trace = setup.folder().join("trace");
    let mut strace = Command::new("strace")
        .args(["-f", "-e", "trace=fdatasync,fsync,write,writev,sendto,sendmsg", "-o"])
        .arg(&trace)
        .args(["-p", &node.pid().to_string()])
        .stderr(Stdio::null())
        .spawn()
        .expect("strace is missing: `tests/install test` installs it");
    let read = || fs::read_to_string(&trace).unwrap_or_default();
    eventually("strace is attached", PATIENCE, || {
        conn.call(&["PING"]);
        read().contains("PONG").then_some(())
    });
    assert!((1..=REQUESTS).all(|id| conn.call(&["IDGET", "order"]) == Value::Int(id)));
    conn.call(&["ECHO", "the end"]);
    eventually("the trace is complete", PATIENCE, || read().contains("the end").then_some(()));
    kill(Pid::from_raw(i32::try_from(strace.id()).unwrap()), Signal::SIGTERM).unwrap();
    strace.wait().unwrap();
    let (text, mut synced, mut replies) = (read(), 0, 0);
    for line in text.lines() {
        if line.contains("sync") && line.trim_end().ends_with("= 0") {
            synced += 1;
        } else if line.contains(&format!("\":{}\\r\\n\"", replies + 1)) {
            assert!(synced > 0, "id {} was written before a sync:\n{text}", replies + 1);
            (synced, replies) = (0, replies + 1);
        }
    }
    assert_eq!(replies, REQUESTS, "{text}");
    node.stop();
}
