//! Stock Redis clients with zero options, in both protocol versions: plain, pipelined and in MULTI, each by the custom
//! command and by `incr`. The scripts in `tests/clients` check their ids themselves: 1 to 3000, without a gap.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::node::Setup;

/// The folder of the built clients; the first test to ask builds those that aren't there.
fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let root = std::env::var_os("IDGEN_TEST_CACHE")
            .map_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache/idgen-tests"), PathBuf::from);
        let cache = root.join("clients");
        let output = script("prepare").arg(&cache).output().unwrap();
        assert!(output.status.success(), "building the clients:\n{}", text(&output));
        cache
    })
}

fn script(name: &str) -> Command {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name));
    command.stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].concat().iter().map(|byte| char::from(*byte)).collect()
}

/// The client `name` draws its ids; it prints one `ok` line for each of `protocols`.
fn draws(name: &str, protocols: &[&str]) {
    let node = Setup::new().start();
    let port = node.port().to_string();
    let output = script("run").arg(cache()).args([name, "127.0.0.1", &port]).output().unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{name}: {}\n{text}", output.status);
    let ok: Vec<&str> = text.lines().filter(|line| line.starts_with("ok ")).collect();
    let told: Vec<&str> = ok.iter().filter_map(|line| line.split(' ').nth(3)).collect();
    assert_eq!(told, protocols, "{text}");
    node.stop();
}

#[test]
fn redis_cli() {
    draws("redis-cli", &["resp2", "resp3"]);
}

#[test]
fn redis_benchmark() {
    draws("redis-benchmark", &["resp2", "resp3"]);
}

#[test]
fn redis_py_5() {
    draws("redis-py-5", &["default", "resp2", "resp3"]);
}

#[test]
fn redis_py_8() {
    draws("redis-py-8", &["default", "resp2", "resp3"]);
}

#[test]
fn node_redis_4() {
    draws("redis4", &["default"]);
}

#[test]
fn node_redis_6() {
    draws("redis6", &["default", "resp2", "resp3"]);
}

#[test]
fn ioredis_5() {
    draws("ioredis5", &["default"]);
}

#[test]
fn ioredis_6() {
    draws("ioredis6", &["default", "resp2", "resp3"]);
}

#[test]
fn go_redis() {
    draws("goredis", &["default", "resp2", "resp3"]);
}

#[test]
fn rueidis() {
    draws("rueidis", &["resp3", "resp2"]);
}

#[test]
fn jedis() {
    draws("jedis", &["default", "resp3"]);
}

#[test]
fn lettuce() {
    draws("lettuce", &["default", "resp2", "resp3"]);
}

#[test]
fn redis_rs() {
    draws("redis-rs", &["default", "resp2", "resp3"]);
}

#[test]
fn fred() {
    draws("fred", &["resp2", "resp3"]);
}

#[test]
fn hiredis() {
    draws("hiredis", &["resp2", "resp3"]);
}

#[test]
fn every_client_script_has_a_test() {
    let output = script("run").arg(cache()).output().unwrap();
    let names = text(&output);
    let source = include_str!("clients.rs");
    for name in names.split_whitespace() {
        assert!(source.contains(&format!("draws(\"{name}\"")), "no test runs {name}");
    }
    assert_eq!(names.split_whitespace().count(), 15);
}
