//! What no room can check alone: rules over several sections, and the bounds of what this node offers.
//!
//! Each rule gives the key to change and the fix. A rule that keeps ids from repeating has no switch that turns it off.

use std::net::IpAddr;
use std::time::Duration;

use super::{Config, Problem, defaults, layers, tags};
use crate::acl::Users;
use crate::clock::Wall;

/// The longest path of a unix socket that Linux takes, in bytes.
const MAX_SOCKET_PATH: usize = 107;

/// The longest silence or age of a connection that is a setting and not a slip of the pen.
const LONG: Duration = Duration::from_hours(30 * 24);

/// Every problem of `config`, which may be none. `known` are those of single values, which are left out of `config`.
pub fn all(config: &Config, wall: Wall, known: &[Problem]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let users = config.auth.users.iter().any(|user| user.enabled);
    // Users that can't be used are still meant to be there.
    let users = users || known.iter().any(|problem| problem.key == "auth.users");
    listeners(config, users, &mut problems);
    preset(config, &mut problems);
    bounds(config, &mut problems);
    database(config, &mut problems);
    tags::check(&config.tags, &mut problems);
    rooms(config, wall, &mut problems);
    problems
}

/// What each room says about its own section. The texts begin with the key.
fn rooms(config: &Config, wall: Wall, problems: &mut Vec<Problem>) {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let said = [
        config.log.validate().map_err(|error| text(&error)),
        Users::new(&config.auth).map(drop).map_err(|error| text(&error)),
        config.snowflake.validate(wall).map_err(|error| text(&error)),
        config.segment.validate(),
        config.database.validate(),
        config.rate_limit.validate(),
    ];
    for problem in said.into_iter().filter_map(Result::err).map(|text| told(&text)) {
        // What was said already for reasons that only several sections together give is the better text.
        if !problems.iter().any(|other| other.key == problem.key) {
            problems.push(problem);
        }
    }
}

/// The problem that `text` tells, which begins with a key, most often followed by a colon.
fn told(text: &str) -> Problem {
    let key = defaults::keys().iter().map(|key| key.name.as_str()).filter(|key| text.starts_with(key));
    match key.max_by_key(|key| key.len()) {
        Some(key) => Problem::new(key, text.strip_prefix(key).unwrap_or(text).trim_start_matches([':', ' '])),
        None => Problem::new("configuration", text),
    }
}

/// Why etcd's endpoints can't be used.
pub fn etcd(config: &Config) -> Problem {
    let key = "etcd.endpoints";
    if config.database.dsn.starts_with("sqlite") {
        return Problem::new(key, "etcd together with a SQLite database: segment tags of two nodes would repeat ids")
            .fix("leave etcd.endpoints empty, or name in database.dsn a database that the nodes share");
    }
    Problem::new(key, "this version doesn't speak to etcd")
        .fix("leave etcd.endpoints empty; worker ids come from the database")
}

/// A preset and widths that say something else.
fn preset(config: &Config, problems: &mut Vec<Problem>) {
    for (key, width) in config.snowflake.preset_widths() {
        let Some(set) = config.values.get(key) else { continue };
        // What `print-config` prints says the same twice, and no more.
        if set.value.clone().into_int().is_ok_and(|value| value == i64::from(width)) {
            continue;
        }
        let preset = &config.snowflake.preset;
        let text = format!(
            "{} is set together with snowflake.preset {preset} ({}), which makes it {width}",
            layers::show(&set.value),
            config.origin("snowflake.preset")
        );
        problems.push(Problem::new(key, text).fix(format!("leave out {key} or snowflake.preset")));
    }
}

fn listeners(config: &Config, users: bool, problems: &mut Vec<Problem>) {
    let server = &config.server;
    let open = server.allow_unauthenticated || users;
    for (key, addr) in [("server.addr", &server.addr), ("admin.addr", &config.admin.addr)] {
        if !addr.is_empty() {
            problems.extend(address(key, addr, open));
        }
    }
    if server.addr.is_empty() && server.unix_socket.is_empty() {
        problems
            .push(Problem::new("server.addr", "no client could connect").fix("set server.addr or server.unix_socket"));
    }
    if !server.addr.is_empty() && server.addr == config.admin.addr && !server.addr.ends_with(":0") {
        problems.push(Problem::new("admin.addr", "the same as server.addr").fix("give one of them another port"));
    }
    if server.unix_socket.len() > MAX_SOCKET_PATH {
        let text = format!("the path has {} bytes, and Linux takes {MAX_SOCKET_PATH}", server.unix_socket.len());
        problems
            .push(Problem::new("server.unix_socket", text).fix("use a shorter path, such as /run/idgen/idgen.sock"));
    }
}

/// What is wrong with listening on `addr`; `open`: everybody who reaches it may use it, or has to log in.
fn address(key: &str, addr: &str, open: bool) -> Option<Problem> {
    let Some((host, _)) = host_and_port(addr) else {
        let fix = "write 127.0.0.1:PORT, or 0.0.0.0:PORT for all addresses; an IPv6 host in brackets: [::1]:PORT";
        return Some(Problem::new(key, format!("{addr:?} is not host:port")).fix(fix));
    };
    if open || is_loopback(host) {
        return None;
    }
    let fix = "add users to auth.users, or set server.allow_unauthenticated to true, or listen on 127.0.0.1";
    Some(Problem::new(key, format!("{addr} can be reached by others, and there are no users")).fix(fix))
}

/// The parts of `host:port`; an IPv6 host stands in brackets.
pub fn host_and_port(addr: &str) -> Option<(&str, u16)> {
    let (host, port) = addr.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then_some((host, port))
}

/// Whether only this machine can reach a listener on `host`. A name other than `localhost` may mean any address.
fn is_loopback(host: &str) -> bool {
    host.parse::<IpAddr>().map_or(host == "localhost", |ip| ip.is_loopback())
}

fn bounds(config: &Config, problems: &mut Vec<Problem>) {
    let server = &config.server;
    let counts = [
        ("server.max_clients", u64::from(server.max_clients), 1, 1_000_000),
        ("server.max_count", u64::from(server.max_count), 1, 10_000),
        ("tags.max", config.tags.max, 1, 10_000_000),
    ];
    for (key, value, least, most) in counts {
        if !(least..=most).contains(&value) {
            problems
                .push(Problem::new(key, format!("{value} is outside {least} to {most}")).fix("choose a number inside"));
        }
    }
    let (second, minute) = (Duration::from_secs(1), Duration::from_mins(1));
    let durations = [
        ("server.wait_max", server.wait_max, Duration::ZERO, 10 * second),
        ("server.idle_timeout", server.idle_timeout, Duration::ZERO, LONG),
        ("server.drain_delay", server.drain_delay, Duration::ZERO, 5 * minute),
        ("server.shutdown_timeout", server.shutdown_timeout, Duration::ZERO, 5 * minute),
        ("server.max_connection_age", server.max_connection_age, Duration::ZERO, LONG),
        ("tags.refresh", config.tags.refresh, second / 100, minute),
    ];
    for (key, value, least, most) in durations {
        if !(least..=most).contains(&value) {
            let show = humantime::format_duration;
            let text = format!("{} is outside {} to {}", show(value), show(least), show(most));
            problems.push(Problem::new(key, text).fix("choose a duration inside"));
        }
    }
}

fn database(config: &Config, problems: &mut Vec<Problem>) {
    let dsn = &config.database.dsn;
    if dsn.is_empty() {
        problems.push(
            Problem::new(
                "database.dsn",
                "a node without a database needs etcd for its worker ids, which this version doesn't speak",
            )
            .fix("name a file, such as sqlite://idgen-data/idgen.db"),
        );
    }
    if let Some(ordinal @ 1..) = config.host.ordinal
        && dsn.starts_with("sqlite")
    {
        let text = format!(
            "pod {} has the ordinal {ordinal}: each pod would count in a SQLite file of its own and repeat the others' ids",
            config.host.name
        );
        problems
            .push(Problem::new("database.dsn", text).fix("run one replica, or name a database that the pods share"));
    }
}
