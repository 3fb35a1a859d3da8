//! `process_*`, the names every Prometheus exporter gives, read from `/proc`. What can't be read is left out.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

use super::families::{Families, precise};

/// Adds the numbers of this process.
pub fn collect(families: &mut Families) {
    if let Some(stat) = Stat::read() {
        let help = "CPU time of the process in seconds, user and system.";
        families.counter_f64("process_cpu_seconds_total", help, &[], stat.cpu_seconds);
        let mut gauge = |name, help, value| families.gauge(name, help, &[], value);
        gauge("process_threads", "Threads of the process.", stat.threads);
        gauge("process_virtual_memory_bytes", "Address space of the process in bytes.", stat.virtual_bytes);
        gauge(
            "process_resident_memory_bytes",
            "Memory of the process that is resident, in bytes.",
            stat.resident_bytes,
        );
        if let Some(boot) = boot_time() {
            let start = boot + stat.start_seconds;
            gauge("process_start_time_seconds", "When the process started, in seconds since 1970.", start);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is the folder that is being read.
        let open = precise(open.count().saturating_sub(1) as u64);
        families.gauge("process_open_fds", "Open file descriptors.", &[], open);
    }
    if let Ok((most, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        families.gauge("process_max_fds", "The most file descriptors that may be open.", &[], precise(most));
    }
}

struct Stat {
    cpu_seconds: f64,
    threads: f64,
    start_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl Stat {
    fn read() -> Option<Self> {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        let ticks = sysconf(SysconfVar::CLK_TCK).ok()??;
        let page = sysconf(SysconfVar::PAGE_SIZE).ok()??;
        Self::parse(&text, precise(u64::try_from(ticks).ok()?), precise(u64::try_from(page).ok()?))
    }

    /// The fields of proc(5), counted from the one after the command's name, which may itself hold spaces.
    fn parse(text: &str, ticks: f64, page: f64) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |at: usize| fields.get(at)?.parse::<u64>().ok().map(precise);
        Some(Self {
            cpu_seconds: (field(11)? + field(12)?) / ticks,
            threads: field(17)?,
            start_seconds: field(19)? / ticks,
            virtual_bytes: field(20)?,
            resident_bytes: field(21)? * page,
        })
    }
}

/// When the machine started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse::<u64>().ok().map(precise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_spaces_and_brackets_does_not_shift_the_fields() {
        let text = "7 (a ) b) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 4 0 1000 8192 3 18446744073709551615";
        let stat = Stat::parse(text, 100.0, 4096.0).unwrap();
        let read = [stat.cpu_seconds, stat.threads, stat.start_seconds, stat.virtual_bytes, stat.resident_bytes];
        assert_eq!(read.map(|value| value.to_string()), ["3", "4", "10", "8192", "12288"]);
    }

    #[test]
    fn the_numbers_of_this_process_are_there() {
        let mut families = Families::default();
        collect(&mut families);
        assert_eq!(families.into_vec().len(), 7);
    }
}
