//! What the fuzz targets share: the protocol edge itself, and a connection that cuts its stream as the fuzzer says.
//!
//! The room is included by its path, which it allows because it imports nothing of the project: the targets build in
//! seconds, without databases under the address sanitizer.

#[path = "../../src/resp/mod.rs"]
pub mod resp;

use resp::{Limits, ProtocolError, Scan, Scanner};

/// Limits so small that short inputs reach them.
pub const TINY: Limits = Limits { max_args: 3, max_bulk: 12, max_inline: 20, max_total: 40, authenticated: true };

/// The arguments of each request of a stream, and its error or how many bytes wait for more.
pub type Outcome = (Vec<Vec<Vec<u8>>>, Result<usize, ProtocolError>);

/// Gives `stream` to a new scanner in pieces of these sizes, and at last what is left.
///
/// # Panics
/// When the scanner breaks a promise.
pub fn feed(stream: &[u8], pieces: impl IntoIterator<Item = usize>, limits: &Limits) -> Outcome {
    let (mut requests, mut scanner, mut buffer) = (Vec::new(), Scanner::new(), Vec::new());
    let (mut rest, mut pieces) = (stream, pieces.into_iter());
    while !rest.is_empty() {
        let (piece, tail) = rest.split_at(pieces.next().unwrap_or(rest.len()).clamp(1, rest.len()));
        buffer.extend_from_slice(piece);
        rest = tail;
        let mut cursor = 0;
        loop {
            let more = match scanner.next(&buffer[cursor..], limits) {
                Ok(Scan::Request(request)) => {
                    assert!((1..=limits.max_args).contains(&request.len()));
                    assert!(request.args().all(|argument| argument.len() <= limits.max_bulk));
                    requests.push(request.args().map(<[u8]>::to_vec).collect());
                    true
                }
                Ok(Scan::Incomplete) => false,
                Err(error) => return (requests, Err(error)),
            };
            cursor += scanner.consumed();
            let arrived = stream.len() - rest.len();
            let allowed = (2 * (limits.max_inline + 8 * limits.max_args) + 64).min(10 * arrived + 64);
            assert!(scanner.memory() <= allowed, "{} bytes held, {arrived} arrived", scanner.memory());
            if !more {
                break;
            }
        }
        buffer.drain(..cursor);
        assert!(buffer.len() <= limits.max_pending());
    }
    (requests, Ok(buffer.len()))
}
