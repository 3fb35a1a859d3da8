//! Tests of the room as a whole: a stream means the same however it is cut, and replies can be read back.
//!
//! The oracle is the `redis-protocol` crate; the scanner is driven as a connection drives it, from a buffer that moves.

mod feed;
mod inputs;
mod random;
mod replies;
mod requests;

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

use super::*;
use feed::{Outcome, TINY, check_memory, feed};

/// The same stream whole, byte by byte and cut once at every byte; all must come to the same.
fn feed_every_way(stream: &[u8], limits: &Limits) -> Outcome {
    let whole = feed(stream, [], limits);
    let bytewise = feed(stream, std::iter::repeat(1), limits);
    assert_eq!(bytewise, whole, "byte by byte: {}", stream.escape_ascii());
    for cut in 1..stream.len() {
        assert_eq!(feed(stream, [cut], limits), whole, "cut at {cut}: {}", stream.escape_ascii());
    }
    whole
}

/// The bytes a client sends for a command.
fn command<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut out = Vec::new();
    array_header(&mut out, arguments.len());
    for argument in arguments {
        bulk(&mut out, argument.as_ref());
    }
    out
}
