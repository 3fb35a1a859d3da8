//! The Redis protocol as bytes: requests out of a read buffer, replies into a write buffer. Pure: no socket, no clock.
//!
//! Guaranteed: one [`Request`] for each command of the stream whatever the reads split it into; memory bounded by
//! [`Limits`] and by the bytes that have really arrived, never by a length a client announces; a reply is always whole.
//! How: requests are flat (arrays of bulk strings, or inline lines), so a small resumable scanner is enough, and its
//! arguments are spans of the read buffer. Hot replies are written by hand, the rest is a tree ([`Value`]).
//! Rejected: a general decoder for requests (it recurses as deep as the client says, and costs twenty times as much).

mod inline;
mod reply;
mod request;
mod value;

use std::borrow::Cow;

pub use reply::{IdForm, array_header, bulk, error, id, ids, integer, null, simple};
pub use request::{Request, Scan, Scanner};
pub use value::Value;

#[cfg(test)]
mod tests;

/// The version of the protocol a connection speaks: 2 until `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2: every map and set is a flat array.
    #[default]
    Resp2,
    /// RESP3: maps, sets, doubles, booleans, pushes and one null of its own.
    Resp3,
}

/// What one request may cost. A larger value in any of them is a [`ProtocolError`], found before memory is spent on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Arguments of one request, its name among them.
    pub max_args: usize,
    /// Bytes of one argument.
    pub max_bulk: usize,
    /// Bytes of an inline request, or of a line that holds a length, without its line end.
    pub max_inline: usize,
    /// Bytes of one request that is an array, line ends and lengths included. At most `u32::MAX` takes effect.
    pub max_total: usize,
    /// Whether the connection has logged in: decides which texts the errors have.
    pub authenticated: bool,
}

impl Limits {
    /// For a connection that has yet to log in: enough for `AUTH` and `HELLO`, too little for a memory bomb.
    pub const BEFORE_LOGIN: Self =
        Self { max_args: 10, max_bulk: 16 * 1024, max_inline: 64 * 1024, max_total: 64 * 1024, authenticated: false };

    /// For a connection that may send commands.
    pub const AFTER_LOGIN: Self = Self {
        max_args: 1 + 1024,
        max_bulk: 64 * 1024,
        max_inline: 64 * 1024,
        max_total: 1024 * 1024,
        authenticated: true,
    };

    /// The most bytes that can be waiting for the rest of their request: with more than these in the buffer the scanner
    /// answers with a request or an error, never with [`Scan::Incomplete`].
    #[must_use]
    pub const fn max_pending(&self) -> usize {
        let line = self.max_inline.saturating_add(1);
        if self.max_total > line { self.max_total } else { line }
    }
}

/// How the scanner works. The default is the only right one; the others are seeded bugs, kept so that the tests can
/// prove that they would notice them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Bug: reserve memory for the length a bulk string announces, before its bytes are there.
    pub trust_bulk_length: bool,
}

/// Why a stream of requests can't be read on. The connection is closed after [`ProtocolError::text`] has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtocolError {
    /// The number of arguments is no number, or above the limit.
    InvalidMultibulkLength,
    /// The length of an argument is no number, negative, above the limit, or not what follows.
    InvalidBulkLength,
    /// More arguments than a connection may send before it has logged in.
    UnauthenticatedMultibulkLength,
    /// A longer argument than a connection may send before it has logged in.
    UnauthenticatedBulkLength,
    /// The line with the number of arguments does not end.
    TooBigMbulkCount,
    /// The line with the length of an argument does not end.
    TooBigBulkCount,
    /// An element of the array is no bulk string: the byte that stands in place of its `$`.
    ExpectedBulk(u8),
    /// An inline request has a quote that does not end, or that ends within a word.
    UnbalancedQuotes,
    /// An inline request does not end.
    TooBigInline,
    /// All arguments together are above the limit.
    TooBigRequest,
    /// HTTP, most likely sent by a browser on behalf of a hostile page: close without a word.
    CrossProtocol,
    /// The first bytes of a TLS handshake.
    Tls,
}

impl ProtocolError {
    /// The label under which the error is counted in `idgen_protocol_errors_total`.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::InvalidMultibulkLength => "invalid_multibulk_length",
            Self::InvalidBulkLength => "invalid_bulk_length",
            Self::UnauthenticatedMultibulkLength => "unauthenticated_multibulk_length",
            Self::UnauthenticatedBulkLength => "unauthenticated_bulk_length",
            Self::TooBigMbulkCount => "too_big_mbulk_count",
            Self::TooBigBulkCount => "too_big_bulk_count",
            Self::ExpectedBulk(_) => "expected_bulk",
            Self::UnbalancedQuotes => "unbalanced_quotes",
            Self::TooBigInline => "too_big_inline",
            Self::TooBigRequest => "too_big_request",
            Self::CrossProtocol => "cross_protocol",
            Self::Tls => "tls",
        }
    }

    /// The text of the error reply, for [`error`]; `None` where the connection is closed in silence.
    #[must_use]
    pub fn text(self) -> Option<Cow<'static, str>> {
        let text = match self {
            Self::InvalidMultibulkLength => "ERR Protocol error: invalid multibulk length",
            Self::InvalidBulkLength => "ERR Protocol error: invalid bulk length",
            Self::UnauthenticatedMultibulkLength => "ERR Protocol error: unauthenticated multibulk length",
            Self::UnauthenticatedBulkLength => "ERR Protocol error: unauthenticated bulk length",
            Self::TooBigMbulkCount => "ERR Protocol error: too big mbulk count string",
            Self::TooBigBulkCount => "ERR Protocol error: too big bulk count string",
            Self::UnbalancedQuotes => "ERR Protocol error: unbalanced quotes in request",
            Self::TooBigInline => "ERR Protocol error: too big inline request",
            Self::TooBigRequest => "ERR Protocol error: too big request",
            Self::Tls => "ERR Protocol error: this port does not speak TLS",
            Self::CrossProtocol => return None,
            Self::ExpectedBulk(byte) => {
                let shown = match byte {
                    b'\r' | b'\n' => " ".to_owned(),
                    b' '..=b'~' => char::from(byte).to_string(),
                    _ => format!("\\x{byte:02x}"),
                };
                return Some(format!("ERR Protocol error: expected '$', got '{shown}'").into());
            }
        };
        Some(text.into())
    }
}
