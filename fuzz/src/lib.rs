//! What the fuzz targets share: the protocol edge itself, and a connection that cuts its stream as the fuzzer says.
//!
//! The room is included by its path, which it allows because it imports nothing of the project: the targets build in
//! seconds, without databases under the address sanitizer. The connection is that of the room's own tests.

#[path = "../../src/resp/mod.rs"]
pub mod resp;

#[path = "../../src/resp/tests/feed.rs"]
mod connection;

pub use connection::{TINY, feed};
use resp::{Limits, ProtocolError, Request, Scan, Scanner};
