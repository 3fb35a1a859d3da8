//! The whole server from outside: each module is named by what holds, each test by the sentence that it proves.
//!
//! Every test starts the real binary with a data folder and ports of its own, speaks to it over sockets, and keeps every
//! id that it was given. `make soak` (`IDGEN_SOAK=1`) runs the same tests longer. The support modules are `node` (the
//! process), `wire` (the protocol), `load` (clients that keep all ids) and `checkers` (what must hold for those).

// The rules below are for the server: a test may stop at the first surprise, and has to measure real time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

#[allow(dead_code, reason = "each test uses what it needs of it")]
mod chaos;
mod checkers;
mod history;
mod load;
mod node;
#[allow(dead_code, reason = "each test uses what it needs of it")]
mod outage;
#[allow(dead_code, reason = "each test uses what it needs of it")]
mod services;
mod wire;

mod admin;
mod clients;
mod clocks;
mod durability;
mod errors;
mod failover;
mod faults;
mod first_minutes;
mod fleet;
mod import;
mod kill_rounds;
mod limits;
mod loading;
mod many_tags;
mod mariadb_faults;
mod mariadb_losses;
mod postgres_faults;
mod protocol;
mod shutdown;
mod slow_database;
mod slow_readers;
mod sqlite_faults;
mod starved;
mod strict;
mod structure;
mod tags;

/// Whether the long versions are asked for.
fn soak() -> bool {
    std::env::var_os("IDGEN_SOAK").is_some()
}
