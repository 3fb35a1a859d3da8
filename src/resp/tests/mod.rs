//! Tests of the room as a whole: a stream means the same however it is cut, and replies can be read back.
//!
//! The oracle is the `redis-protocol` crate; the scanner is driven as a connection drives it, from a buffer that moves.

mod random;
mod replies;
mod requests;

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

use super::*;

/// Limits so small that short inputs reach them.
const TINY: Limits = Limits { max_args: 3, max_bulk: 12, max_inline: 20, max_total: 40, authenticated: true };

/// What a stream has come to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// The arguments of each request.
    requests: Vec<Vec<Vec<u8>>>,
    /// The error that ended it, or how many bytes wait for the rest of their request.
    end: Result<usize, ProtocolError>,
}

/// Gives `stream` to a new scanner in pieces of these sizes, and at last what is left.
fn feed(stream: &[u8], pieces: impl IntoIterator<Item = usize>, limits: &Limits) -> Outcome {
    let mut outcome = Outcome { requests: Vec::new(), end: Ok(0) };
    let mut scanner = Scanner::new();
    let mut buffer = Vec::new();
    let mut rest = stream;
    let mut pieces = pieces.into_iter();
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(pieces.next().unwrap_or(rest.len()).min(rest.len()));
        buffer.extend_from_slice(piece);
        rest = tail;
        let mut cursor = 0;
        loop {
            let more = match scanner.next(&buffer[cursor..], limits) {
                Ok(Scan::Request(request)) => {
                    check(&request, limits);
                    outcome.requests.push(request.args().map(<[u8]>::to_vec).collect());
                    true
                }
                Ok(Scan::Incomplete) => false,
                Err(error) => {
                    cursor += scanner.consumed();
                    assert_eq!(scanner.next(&buffer[cursor..], limits).expect_err("again"), error, "an error stays");
                    outcome.end = Err(error);
                    return outcome;
                }
            };
            cursor += scanner.consumed();
            check_memory(&scanner, stream.len() - rest.len(), limits).expect("memory within bounds");
            if !more {
                break;
            }
        }
        // A buffer of its own for what is left: a scanner that remembered addresses would be found out.
        buffer = buffer[cursor..].to_vec();
        assert!(buffer.len() <= limits.max_pending(), "{} bytes wait", buffer.len());
        outcome.end = Ok(buffer.len());
    }
    outcome
}

/// A request keeps the limits, and one that is an array means the same to the oracle.
fn check(request: &Request<'_>, limits: &Limits) {
    assert_eq!(request.arg(0), Some(request.name()));
    assert_eq!(request.arg(request.len()), None);
    assert_eq!(request.args().count(), request.len());
    assert_eq!(request.raw().len(), request.raw_len());
    assert!((1..=limits.max_args).contains(&request.len()));
    assert!(request.args().all(|argument| argument.len() <= limits.max_bulk));
    if request.raw().starts_with(b"*") {
        assert!(request.raw_len() <= limits.max_total);
        let elements = request.args().map(|argument| OwnedFrame::BulkString(argument.to_vec())).collect();
        let oracle = decode(request.raw()).expect("valid to the oracle");
        assert_eq!(oracle, Some((OwnedFrame::Array(elements), request.raw_len())));
    } else {
        assert!(request.raw_len() <= limits.max_inline + 1);
    }
}

/// The scanner holds no more than the limits allow, nor much more than what has arrived: the shortest argument takes
/// two bytes of a line, its span eight, and a vector that grows may have room for as much again.
fn check_memory(scanner: &Scanner, arrived: usize, limits: &Limits) -> Result<(), String> {
    let for_limits = 2 * (limits.max_inline + 8 * limits.max_args) + 64;
    let for_arrived = 10 * arrived + 64;
    let held = scanner.memory();
    if held <= for_limits.min(for_arrived) { Ok(()) } else { Err(format!("{held} bytes held, {arrived} arrived")) }
}

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
