//! `INFO [section …]`: one bulk string in both versions of the protocol (clients that read a RESP3 verbatim string show its
//! `txt:`). Sections, titles and field names are those that tools look for; a field stands here only if it is true.

use std::fmt::Write as _;

use super::server::Memory;
use super::session::{Call, Session};
use super::{Context, Error, REDIS_VERSION, VERSION};
use crate::health::Phase;
use crate::resp::Value;

/// How many seconds a client is told to wait before it asks a loading node again.
const LOADING_ETA_SECONDS: u32 = 1;

/// Writes the fields of a section.
type Section = fn(&mut String, &Context);

/// Name, title, and whether it is told when nothing is asked for.
const SECTIONS: [(&str, &str, bool, Section); 11] = [
    ("server", "Server", true, server),
    ("clients", "Clients", true, clients),
    ("memory", "Memory", true, memory),
    ("persistence", "Persistence", true, persistence),
    ("stats", "Stats", true, stats),
    ("replication", "Replication", true, replication),
    ("cpu", "CPU", true, cpu),
    ("commandstats", "Commandstats", false, commandstats),
    ("errorstats", "Errorstats", true, errorstats),
    ("latencystats", "Latencystats", false, latencystats),
    ("keyspace", "Keyspace", true, keyspace),
];

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn info(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let asked: Vec<String> = call.rest(1).map(|name| String::from_utf8_lossy(name).to_ascii_lowercase()).collect();
    Ok(Value::bulk(text(call.context, &asked)))
}

fn text(context: &Context, asked: &[String]) -> String {
    let has = |name: &str| asked.iter().any(|one| one == name);
    let all = has("all") || has("everything");
    let default = asked.is_empty() || has("default");
    let mut text = String::new();
    for (name, title, by_default, write) in SECTIONS {
        if all || (default && by_default) || has(name) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {title}\r\n");
            write(&mut text, context);
        }
        if name == "latencystats" && (all || default || has("cluster")) {
            text.push_str(if text.is_empty() { "# Cluster\r\n" } else { "\r\n# Cluster\r\n" });
            line(&mut text, "cluster_enabled", 0);
        }
    }
    text
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(text, "{name}:{value}\r\n");
}

fn server(text: &mut String, context: &Context) {
    let settings = &context.settings;
    let uptime = context.clock.boot().since(settings.started).as_secs();
    line(text, "redis_version", REDIS_VERSION);
    line(text, "idgen_version", VERSION);
    line(text, "redis_mode", "standalone");
    line(text, "os", operating_system());
    line(text, "arch_bits", usize::BITS);
    line(text, "process_id", std::process::id());
    line(text, "run_id", &settings.run_id);
    line(text, "tcp_port", settings.tcp_port);
    line(text, "server_time_usec", context.clock.wall().0 / 1000);
    line(text, "uptime_in_seconds", uptime);
    line(text, "uptime_in_days", uptime / 86_400);
    line(text, "config_file", &settings.config_file);
}

fn operating_system() -> String {
    let told = nix::sys::utsname::uname().map(|name| {
        let part = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
        [part(name.sysname()), part(name.release()), part(name.machine())].join(" ")
    });
    told.unwrap_or_else(|_| std::env::consts::OS.to_owned())
}

fn clients(text: &mut String, context: &Context) {
    line(text, "connected_clients", context.clients.len());
    line(text, "cluster_connections", 0);
    line(text, "maxclients", context.settings.max_clients);
    line(text, "blocked_clients", 0);
    line(text, "tracking_clients", 0);
    line(text, "pubsub_clients", context.clients.all().iter().filter(|client| client.subscribed()).count());
}

fn memory(text: &mut String, _: &Context) {
    let memory = Memory::read();
    line(text, "used_memory", memory.resident);
    line(text, "used_memory_human", human(memory.resident));
    line(text, "used_memory_rss", memory.resident);
    line(text, "used_memory_rss_human", human(memory.resident));
    line(text, "used_memory_peak", memory.peak);
    line(text, "used_memory_peak_human", human(memory.peak));
    line(text, "maxmemory", 0);
    line(text, "maxmemory_human", "0B");
    line(text, "maxmemory_policy", "noeviction");
}

fn human(bytes: u64) -> String {
    let hundredths = |unit: u64| format!("{}.{:02}", bytes / unit, bytes % unit * 100 / unit);
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => hundredths(1024) + "K",
        1_048_576..1_073_741_824 => hundredths(1_048_576) + "M",
        _ => hundredths(1_073_741_824) + "G",
    }
}

/// Redis' words for a server that is not ready stand here; the rest of the section says that there is no snapshot and no
/// log of commands.
fn persistence(text: &mut String, context: &Context) {
    let loading = context.health.phase() == Phase::Loading;
    line(text, "loading", u8::from(loading));
    if loading {
        line(text, "loading_eta_seconds", LOADING_ETA_SECONDS);
    }
    line(text, "async_loading", 0);
    line(text, "rdb_bgsave_in_progress", 0);
    line(text, "aof_enabled", 0);
    line(text, "aof_rewrite_in_progress", 0);
}

fn stats(text: &mut String, context: &Context) {
    let stats = &context.stats;
    let now = context.clock.boot();
    line(text, "total_connections_received", context.clients.opened());
    line(text, "total_commands_processed", stats.calls());
    line(text, "instantaneous_ops_per_sec", stats.calls_per_second(now, context.settings.started));
    line(text, "total_net_input_bytes", stats.net_input.get());
    line(text, "total_net_output_bytes", stats.net_output.get());
    line(text, "rejected_connections", context.clients.refused());
    line(text, "expired_keys", 0);
    line(text, "evicted_keys", 0);
    line(text, "pubsub_channels", 0);
    line(text, "pubsub_patterns", 0);
    line(text, "total_error_replies", stats.errors_since_reset().iter().map(|(_, count)| count).sum::<u64>());
}

fn replication(text: &mut String, _: &Context) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
    line(text, "master_repl_offset", 0);
}

fn cpu(text: &mut String, _: &Context) {
    use nix::sys::resource::{UsageWho, getrusage};
    use nix::sys::time::TimeValLike as _;
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let seconds = |micros: i64| format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        line(text, "used_cpu_sys", seconds(usage.system_time().num_microseconds()));
        line(text, "used_cpu_user", seconds(usage.user_time().num_microseconds()));
    }
}

fn commandstats(text: &mut String, context: &Context) {
    for (row, counted) in context.stats.commands() {
        let (calls, failed, rejected) = (counted.durations.count(), counted.failed(), counted.rejected());
        if calls + rejected == 0 {
            continue;
        }
        let sum = counted.durations.sum();
        let hundredths = sum.as_nanos() / 10 / u128::from(calls.max(1));
        let _ = write!(
            text,
            "cmdstat_{}:calls={calls},usec={},usec_per_call={}.{:02},rejected_calls={rejected},failed_calls={failed}\r\n",
            row.name,
            sum.as_micros(),
            hundredths / 100,
            hundredths % 100,
        );
    }
}

fn errorstats(text: &mut String, context: &Context) {
    for (prefix, count) in context.stats.errors_since_reset() {
        let _ = write!(text, "errorstat_{prefix}:count={count}\r\n");
    }
}

fn latencystats(text: &mut String, context: &Context) {
    for (row, counted) in context.stats.commands() {
        let durations = &counted.durations;
        if durations.count() > 0 {
            let [half, most, nearly_all] = [500, 990, 999].map(|quantile| durations.percentile(quantile));
            let name = row.name;
            let _ = write!(
                text,
                "latency_percentiles_usec_{name}:p50={half}.000,p99={most}.000,p99.9={nearly_all}.000\r\n"
            );
        }
    }
}

fn keyspace(text: &mut String, context: &Context) {
    let tags = context.router.len();
    if tags > 0 {
        let _ = write!(text, "db0:keys={tags},expires=0,avg_ttl=0\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_readable() {
        let cases = [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_572_864, "1.50M"), (5_368_709_120, "5.00G")];
        for (bytes, expected) in cases {
            assert_eq!(human(bytes), expected);
        }
    }
}
