//! Every error text: Redis' own ones byte for byte, compared with a real redis-server; ours by their prefix and shape.
//!
//! After each error the connection goes on.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

use crate::node::{PATIENCE, Setup, eventually, free_port};
use crate::wire::{Conn, Value};

/// A redis-server to compare with.
pub struct Redis {
    child: Child,
    addr: SocketAddr,
}

impl Redis {
    /// Starts it on a private port, with nothing on disk.
    pub fn start() -> Self {
        let addr: SocketAddr = (Ipv4Addr::LOCALHOST, free_port()).into();
        let child = Command::new("redis-server")
            .args(["--port", &addr.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--dir", "/tmp"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is missing: `tests/install test` installs it");
        let redis = Self { child, addr };
        eventually("redis-server is ready", PATIENCE, || {
            (Conn::try_connect(addr).ok()?.try_call(&["PING"]).ok()? == Value::Simple("PONG".into())).then_some(())
        });
        redis
    }

    /// A new connection.
    pub fn connect(&self) -> Conn {
        Conn::try_connect(self.addr).unwrap()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sequences of requests whose replies must be those of Redis, each on a new connection.
const AS_REDIS: &[&[&[&str]]] = &[
    // unknown command
    &[&["FOO"]],
    &[&["foo", "a", "b "]],
    &[&["FOO", "a\r\nb", "'"]],
    &[&[
        "FOO",
        "0123456789012345678901234567890123456789",
        "0123456789012345678901234567890123456789",
        "0123456789012345678901234567890123456789",
        "0123456789",
        "x",
    ]],
    // arity
    &[&["GET"]],
    &[&["GET", "a", "b"]],
    &[&["INCR"]],
    &[&["INCR", "a", "b"]],
    &[&["INCRBY", "a"]],
    &[&["ECHO"]],
    &[&["PING", "a", "b"]],
    &[&["SELECT"]],
    &[&["CLIENT"]],
    &[&["CLIENT", "SETNAME"]],
    &[&["CLIENT", "GETNAME", "x"]],
    &[&["CONFIG"]],
    &[&["CONFIG", "GET"]],
    &[&["RESET", "x"]],
    // unknown subcommand
    &[&["CLIENT", "FOO"]],
    &[&["CONFIG", "FOO"]],
    &[&["COMMAND", "FOO"]],
    &[&["ACL", "FOO"]],
    &[&["SLOWLOG", "FOO"]],
    &[&["LATENCY", "FOO"]],
    // numbers
    &[&["INCRBY", "a", "abc"]],
    &[&["INCRBY", "a", "1.5"]],
    &[&["INCRBY", "a", ""]],
    &[&["INCRBY", "a", "011"]],
    &[&["INCRBY", "a", "+1"]],
    &[&["INCRBY", "a", " 1"]],
    &[&["INCRBY", "a", "1 "]],
    &[&["INCRBY", "a", "-0"]],
    &[&["INCRBY", "a", "0x1"]],
    &[&["INCRBY", "a", "9223372036854775808"]],
    &[&["INCRBY", "a", "-9223372036854775809"]],
    // select
    &[&["SELECT", "16"]],
    &[&["SELECT", "-1"]],
    &[&["SELECT", "abc"]],
    // transactions
    &[&["EXEC"]],
    &[&["DISCARD"]],
    &[&["MULTI"], &["MULTI"], &["EXEC"]],
    &[&["MULTI"], &["WATCH", "a"], &["PING"], &["EXEC"]],
    &[&["MULTI"], &["FOO"], &["EXEC"], &["PING"]],
    &[&["MULTI"], &["GET"], &["PING"], &["EXEC"], &["EXEC"]],
    &[&["MULTI"], &["PING"], &["DISCARD"], &["EXEC"]],
    &[&["MULTI"], &["INCRBY", "a", "abc"], &["ECHO", "b"], &["EXEC"]],
    &[&["MULTI"], &["EXEC"]],
    &[&["MULTI"], &["PING"], &["EXEC", "x"], &["EXEC"], &["EXEC", "x"], &["PING"]],
    &[&["WATCH", "a"], &["EXEC", "x"], &["INCR", "a"], &["MULTI"], &["PING"], &["EXEC"]],
    // login, without any user configured
    &[&["AUTH", "x"]],
    &[&["AUTH", "a", "b", "c"]],
    &[&["AUTH", "nobody", "x"]],
    &[&["HELLO", "3", "AUTH", "nobody", "x"], &["GET", "nothing"]],
    // HELLO
    &[&["HELLO", "4"]],
    &[&["HELLO", "1"]],
    &[&["HELLO", "abc"]],
    &[&["HELLO", "3", "FOO"]],
    &[&["HELLO", "3", "SETNAME"]],
    &[&["HELLO", "3", "SETNAME", "a b"]],
    // client names, kill
    &[&["CLIENT", "SETNAME", "a b"]],
    &[&["CLIENT", "SETNAME", "a\nb"]],
    &[&["CLIENT", "KILL", "127.0.0.1:1"]],
    &[&["CLIENT", "REPLY", "FOO"]],
    // config, cluster
    &[&["CONFIG", "SET", "no-such-option", "1"]],
    &[&["CONFIG", "GET", "no-such-option"]],
    &[&["CLUSTER", "SLOTS"]],
    &[&["CLUSTER", "INFO"]],
    &[&["READONLY"]],
    &[&["READWRITE"]],
    &[&["ASKING"]],
    // subscribe mode of RESP2
    &[&["SUBSCRIBE", "c"], &["GET", "a"], &["PING"], &["PING", "x"], &["UNSUBSCRIBE", "c"], &["PING"]],
    // what has no error in it either
    &[&["PING"], &["PING", "x"], &["ECHO", "x"], &["SELECT", "0"], &["SELECT", "15"], &["CLIENT", "GETNAME"]],
    &[&["CLIENT", "SETNAME", "me"], &["CLIENT", "GETNAME"], &["RESET"], &["CLIENT", "GETNAME"]],
    &[&["MULTI"], &["PING"], &["ECHO", "x"], &["EXEC"], &["WATCH", "a"], &["UNWATCH"]],
    &[&["GET", "nothing"], &["EXISTS", "nothing"], &["TYPE", "nothing"], &["DBSIZE"], &["SCAN", "0"]],
    &[&["INCR", "n"], &["INCR", "n"], &["GET", "n"], &["INCRBY", "n", "10"], &["INCR", "n"], &["EXISTS", "n"]],
];

#[test]
fn redis_own_texts_are_given_byte_for_byte() {
    let (node, redis) = (Setup::new().start(), Redis::start());
    let mut different = Vec::new();
    for case in AS_REDIS {
        let replies = |mut conn: Conn| case.iter().map(|words| conn.try_call(words).ok()).collect::<Vec<_>>();
        let (ours, theirs) = (replies(node.connect()), replies(redis.connect()));
        if ours != theirs {
            different.push(format!("{case:?}\n  idgen: {ours:?}\n  redis: {theirs:?}"));
        }
    }
    assert!(different.is_empty(), "{} cases differ:\n{}", different.len(), different.join("\n"));
}

/// One line of `PREFIX text`, and the word that makes clients reconnect in no other text.
fn well_formed(reply: &Value, prefix: &str) {
    let text = reply.error();
    let (found, rest) = text.split_once(' ').unwrap_or_else(|| panic!("no text after the prefix: {text:?}"));
    assert_eq!(found, prefix, "{text:?}");
    assert!(!rest.is_empty() && !text.contains(['\r', '\n']), "{text:?}");
    assert!(prefix == "READONLY" || !text.contains("READONLY"), "{text:?}");
    assert!(text.len() < 512, "user text is cut: {} bytes", text.len());
}

#[test]
fn a_bad_count_is_refused_with_the_limit_and_the_connection_goes_on() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    for command in ["IDMGET", "IDRANGE"] {
        for n in ["0", "-1", "10001", "9223372036854775808", "abc", "", "1.5", "01"] {
            let reply = conn.call(&[command, "order", n]);
            well_formed(&reply, "IDCOUNT");
            assert!(reply.error().contains("10000"), "the limit is not named: {reply:?}");
        }
    }
    for n in ["0", "-1", "10001", "-9223372036854775808", "9223372036854775807"] {
        well_formed(&conn.call(&["INCRBY", "order", n]), "IDCOUNT");
    }
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1), "nothing was drawn");
}

#[test]
fn a_bad_tag_is_refused_and_the_connection_goes_on() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    let long = "x".repeat(129);
    let bad = ["", "a\nb", "a\r\nb", "a b", "a\"b", "a'b", "a\\b", "caf\u{e9}", "a\u{0}b", "a\u{7f}", &long];
    for tag in bad {
        for words in
            [&["IDGET", tag][..], &["INCR", tag], &["IDMGET", tag, "2"], &["IDRANGE", tag, "2"], &["INCRBY", tag, "2"]]
        {
            well_formed(&conn.call(words), "IDTAG");
        }
        well_formed(&conn.call(&["IDTAG", "CREATE", tag]), "IDTAG");
    }
    let longest = "x".repeat(128);
    for tag in [&longest, "!", "~", "{a}:b.c/d-e_f", "a:b"] {
        assert_eq!(conn.call(&["IDGET", tag]), Value::Int(1), "{tag}");
    }
}

#[test]
fn nothing_on_the_wire_can_erase_or_lower_ids() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
    let commands: &[&[&str]] = &[
        &["FLUSHALL"],
        &["FLUSHDB"],
        &["DEL", "order"],
        &["SET", "order", "5"],
        &["EXPIRE", "order", "1"],
        &["DECR", "order"],
        &["DECRBY", "order", "2"],
    ];
    for words in commands {
        well_formed(&conn.call(words), "IDTYPE");
    }
    for words in [&["SHUTDOWN"][..], &["MONITOR"], &["DEBUG", "SLEEP", "1"]] {
        assert!(conn.call(words).error().starts_with("ERR unknown command"), "{words:?}");
    }
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(2));
}

#[test]
fn our_commands_keep_redis_words_for_arity_and_syntax() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    for name in ["idget", "idmget", "idrange", "iddecode", "idinfo", "idtag"] {
        let expected = format!("ERR wrong number of arguments for '{name}' command");
        assert_eq!(conn.call(&[name]), Value::Error(expected));
    }
    for words in
        [&["IDGET", "order", "FOO"][..], &["IDMGET", "order", "2", "FOO"], &["IDTAG", "CREATE", "order", "FOO", "1"]]
    {
        let reply = conn.call(words);
        well_formed(&reply, "ERR");
        assert!(reply.error().starts_with("ERR syntax error near 'FOO': use ID"), "{reply:?}");
    }
    assert!(conn.call(&["IDTAG", "FOO"]).error().starts_with("ERR unknown subcommand 'FOO'. Try IDTAG HELP."));
    well_formed(&conn.call(&["IDINFO", "nobody"]), "IDNOTAG");
    assert_eq!(conn.call(&["IDGET", "order"]), Value::Int(1));
}

#[test]
fn a_number_that_is_no_id_of_the_layout_is_told_with_the_layout() {
    let node = Setup::new().set("snowflake.preset", "js53").start();
    let reply = node.connect().call(&["IDDECODE", "9223372036854775807"]);
    well_formed(&reply, "IDTYPE");
    let expected =
        "IDTYPE 9223372036854775807 is no Snowflake id of this layout (epoch=1577808000000 bits=41/0/5/7 tick=1ms)";
    assert!(reply.error().starts_with(expected), "{reply:?}");
}

#[test]
fn a_snowflake_batch_above_what_can_be_made_in_time_is_a_count_error() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    assert_eq!(conn.call(&["IDTAG", "CREATE", "event", "ENGINE", "snowflake"]).text(), "OK");
    // 2^12 - 16 consecutive ids fit into any tick, one more does not.
    assert!(conn.call(&["INCRBY", "event", "4080"]).int() > 0);
    well_formed(&conn.call(&["INCRBY", "event", "4081"]), "IDCOUNT");
    assert_eq!(conn.call(&["IDMGET", "event", "10000"]).array().len(), 10_000);
}

#[test]
fn every_error_is_counted_by_its_prefix() {
    let node = Setup::new().start();
    let mut conn = node.connect();
    well_formed(&conn.call(&["IDMGET", "order", "0"]), "IDCOUNT");
    well_formed(&conn.call(&["IDMGET", "order", "0"]), "IDCOUNT");
    conn.call(&["FOO"]).error();
    let info = conn.call(&["INFO", "errorstats"]);
    assert!(info.text().contains("errorstat_IDCOUNT:count=2"), "{info:?}");
    assert!(info.text().contains("errorstat_ERR:count=1"), "{info:?}");
}
