//! A connection that cuts its stream as it is told: what the tests of the room and the fuzz targets (by its path) share.
//! The oracle is the `redis-protocol` crate.

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

use super::{Limits, ProtocolError, Request, Scan, Scanner};

/// Limits so small that short inputs reach them.
pub const TINY: Limits = Limits { max_args: 3, max_bulk: 12, max_inline: 20, max_total: 40, authenticated: true };

/// What a stream has come to.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The arguments of each request.
    pub requests: Vec<Vec<Vec<u8>>>,
    /// The error that ended it, or how many bytes wait for the rest of their request.
    pub end: Result<usize, ProtocolError>,
}

/// Gives `stream` to a new scanner in pieces of these sizes, and at last what is left.
pub fn feed(stream: &[u8], pieces: impl IntoIterator<Item = usize>, limits: &Limits) -> Outcome {
    let mut outcome = Outcome { requests: Vec::new(), end: Ok(0) };
    let mut scanner = Scanner::new();
    let mut buffer = Vec::new();
    let mut rest = stream;
    let mut pieces = pieces.into_iter();
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(pieces.next().unwrap_or(rest.len()).clamp(1, rest.len()));
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
pub fn check_memory(scanner: &Scanner, arrived: usize, limits: &Limits) -> Result<(), String> {
    let for_limits = 2 * (limits.max_inline + 8 * limits.max_args) + 64;
    let for_arrived = 10 * arrived + 64;
    let held = scanner.memory();
    if held <= for_limits.min(for_arrived) { Ok(()) } else { Err(format!("{held} bytes held, {arrived} arrived")) }
}
