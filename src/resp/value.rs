//! The general reply: a tree, written in the version of the protocol the connection speaks.
//!
//! Guaranteed: one whole element in either version, members in the order given. How: single values go through the
//! encoders of the `redis-protocol` crate; the heads of arrays, maps, sets and pushes are written here, since that
//! crate keeps maps and sets as hash tables: their order would be lost, and one with an array as a key would panic.
//! Not offered: attributes and big numbers, which common clients can't read.

use std::borrow::Cow;

use redis_protocol::resp2::{self, types::BorrowedFrame as Frame2};
use redis_protocol::resp3::{self, types::BorrowedFrame as Frame3};

use super::Protocol;
use super::reply::{error_line, header, null, one_line};

/// A reply of any shape. For the few that are written often there are functions in [`crate::resp`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A status, one line.
    Simple(Cow<'static, str>),
    /// An error: prefix, space, text; see [`error`](super::error).
    Error(Cow<'static, str>),
    /// Bytes of any kind.
    Bulk(Vec<u8>),
    /// An integer.
    Integer(i64),
    /// A floating-point number; RESP2: a bulk string.
    Double(f64),
    /// Yes or no; RESP2: 1 or 0.
    Boolean(bool),
    /// No value; RESP2: the null bulk string.
    Null,
    /// Values in order.
    Array(Vec<Value>),
    /// Pairs in order; RESP2: an array of keys and values in turn.
    Map(Vec<(Value, Value)>),
    /// Values of which none should occur twice; RESP2: an array.
    Set(Vec<Value>),
    /// A message that answers no request; RESP2: an array.
    Push(Vec<Value>),
}

impl Value {
    /// A bulk string of these bytes.
    pub fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().to_vec())
    }

    /// Writes the whole reply. Its depth is what the caller built; no request can choose it.
    pub fn write(&self, out: &mut Vec<u8>, protocol: Protocol) {
        match self {
            Self::Array(members) => write_members(out, protocol, b'*', members),
            Self::Set(members) => write_members(out, protocol, b'~', members),
            Self::Push(members) => write_members(out, protocol, b'>', members),
            Self::Map(pairs) => {
                let (kind, len) = match protocol {
                    Protocol::Resp2 => (b'*', pairs.len() * 2),
                    Protocol::Resp3 => (b'%', pairs.len()),
                };
                header(out, kind, len as u64, false);
                for (key, value) in pairs {
                    key.write(out, protocol);
                    value.write(out, protocol);
                }
            }
            Self::Simple(text) => write_scalar(out, protocol, &Scalar::Simple(&one_line(text))),
            Self::Error(text) => write_scalar(out, protocol, &Scalar::Error(&error_line(text))),
            Self::Bulk(bytes) => write_scalar(out, protocol, &Scalar::Bulk(bytes)),
            Self::Integer(value) => write_scalar(out, protocol, &Scalar::Integer(*value)),
            Self::Double(value) => write_scalar(out, protocol, &Scalar::Double(*value)),
            Self::Boolean(value) => write_scalar(out, protocol, &Scalar::Boolean(*value)),
            Self::Null => null(out, protocol),
        }
    }
}

fn write_members(out: &mut Vec<u8>, protocol: Protocol, kind: u8, members: &[Value]) {
    let kind = if protocol == Protocol::Resp2 { b'*' } else { kind };
    header(out, kind, members.len() as u64, false);
    for member in members {
        member.write(out, protocol);
    }
}

/// A value without members, its text checked.
enum Scalar<'a> {
    Simple(&'a str),
    Error(&'a str),
    Bulk(&'a [u8]),
    Integer(i64),
    Double(f64),
    Boolean(bool),
}

fn write_scalar(out: &mut Vec<u8>, protocol: Protocol, scalar: &Scalar<'_>) {
    match protocol {
        Protocol::Resp2 => match scalar {
            Scalar::Simple(text) => encode2(out, &Frame2::SimpleString(text.as_bytes())),
            Scalar::Error(text) => encode2(out, &Frame2::Error(text)),
            Scalar::Bulk(bytes) => encode2(out, &Frame2::BulkString(bytes)),
            Scalar::Integer(value) => encode2(out, &Frame2::Integer(*value)),
            // Redis writes `nan` in small letters.
            Scalar::Double(value) => encode2(out, &Frame2::BulkString(value.to_string().to_lowercase().as_bytes())),
            Scalar::Boolean(value) => encode2(out, &Frame2::Integer(i64::from(*value))),
        },
        Protocol::Resp3 => encode3(
            out,
            &match *scalar {
                Scalar::Simple(text) => Frame3::SimpleString { data: text.as_bytes(), attributes: None },
                Scalar::Error(data) => Frame3::SimpleError { data, attributes: None },
                Scalar::Bulk(data) => Frame3::BlobString { data, attributes: None },
                Scalar::Integer(data) => Frame3::Number { data, attributes: None },
                Scalar::Double(data) => Frame3::Double { data, attributes: None },
                Scalar::Boolean(data) => Frame3::Boolean { data, attributes: None },
            },
        ),
    }
}

fn encode2(out: &mut Vec<u8>, frame: &Frame2<'_>) {
    let start = out.len();
    out.resize(start + frame.encode_len(false), 0);
    let space = out.get_mut(start..).unwrap_or_default();
    let written = resp2::encode::encode_borrowed(space, frame, false);
    settle(out, start, written.ok(), Protocol::Resp2);
}

fn encode3(out: &mut Vec<u8>, frame: &Frame3<'_>) {
    let start = out.len();
    out.resize(start + frame.encode_len(false), 0);
    let space = out.get_mut(start..).unwrap_or_default();
    let written = resp3::encode::complete::encode_borrowed(space, frame, false);
    settle(out, start, written.ok(), Protocol::Resp3);
}

/// Cuts `out` to what has been written. A value that couldn't be encoded, which no value is known to do, becomes null:
/// an element must stand in its place, or all replies behind it would be taken for those of other requests.
fn settle(out: &mut Vec<u8>, start: usize, written: Option<usize>, protocol: Protocol) {
    out.truncate(start + written.unwrap_or(0));
    if written.is_none() {
        null(out, protocol);
    }
}
