//! Database servers that belong to one test, which may kill, stop, pause and start them again.
//!
//! Each has a folder in memory and a port of its own, and is ready when it has answered. They are the test's own
//! children, ended by process id when dropped; when the test fails, the end of their logs is printed. Whatever a server
//! has confirmed is on "disk" (`/dev/shm` outlives a process, so `kill -9` loses what the server itself kept back, as a
//! crash does). Tests that only need *a* database share the servers of `tests/services`.

mod mariadb;
mod pgbouncer;
mod postgres;
mod process;

pub use mariadb::MariaDb;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;

/// The database that every server has from its start.
pub const DATABASE: &str = "idgen";
