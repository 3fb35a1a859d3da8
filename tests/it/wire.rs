//! A small blocking RESP client of our own, so that the tests share no code with what they test.
//!
//! It sends bytes as they are and reads one reply of either protocol version at a time.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};

use crate::node::PATIENCE;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `+text`
    Simple(String),
    /// `-PREFIX text`
    Error(String),
    /// `:n`
    Int(i64),
    /// `$n` and `=n`
    Bulk(String),
    /// `$-1`, `*-1` and `_`
    Nil,
    /// `*n`, `~n` and `>n`
    Array(Vec<Value>),
    /// `%n`
    Map(Vec<(Value, Value)>),
    /// `,x`
    Double(f64),
    /// `#t` and `#f`
    Bool(bool),
}

impl Value {
    /// The integer, or a failure that shows what came instead.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(n) => *n,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    /// The integers of an array.
    pub fn ints(&self) -> Vec<i64> {
        self.array().iter().map(Self::int).collect()
    }

    /// The elements of an array.
    pub fn array(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    /// The text of a bulk or simple string.
    pub fn text(&self) -> &str {
        match self {
            Self::Bulk(text) | Self::Simple(text) => text,
            other => panic!("expected a string, got {other:?}"),
        }
    }

    /// The text of an error.
    pub fn error(&self) -> &str {
        match self {
            Self::Error(text) => text,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    /// The value of `field` in a map, or in the flat array that RESP2 has for one.
    pub fn field(&self, field: &str) -> &Self {
        let named = |name: &Self| matches!(name, Self::Bulk(text) | Self::Simple(text) if text == field);
        let found = match self {
            Self::Map(pairs) => pairs.iter().find(|(name, _)| named(name)).map(|(_, value)| value),
            Self::Array(items) => items.chunks(2).find(|pair| named(&pair[0])).and_then(|pair| pair.get(1)),
            _ => None,
        };
        found.unwrap_or_else(|| panic!("no field {field} in {self:?}"))
    }
}

/// A connection.
pub struct Conn {
    stream: TcpStream,
    buffer: Vec<u8>,
    at: usize,
}

/// `words` as one request.
pub fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

impl Conn {
    /// Connects; reading waits for at most [`PATIENCE`].
    pub fn try_connect(addr: SocketAddr) -> Result<Self> {
        Self::over(TcpStream::connect(addr)?)
    }

    /// A connection over a socket that was made and connected by the test.
    pub fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, buffer: Vec::new(), at: 0 })
    }

    /// Turns the connection to RESP3.
    pub fn resp3(mut self) -> Self {
        let hello = self.call(&["HELLO", "3"]);
        assert_eq!(hello.field("proto"), &Value::Int(3), "{hello:?}");
        self
    }

    /// The socket, for what only a test of sockets does.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends `bytes` as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap_or_else(|error| panic!("send: {error}"));
    }

    /// Sends `bytes`; a connection that was closed is an error, not a failure.
    pub fn try_send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// Sends one request and reads its reply.
    pub fn call(&mut self, words: &[&str]) -> Value {
        self.try_call(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// As [`Conn::call`]; a connection that was closed is an error, not a failure.
    pub fn try_call(&mut self, words: &[&str]) -> Result<Value> {
        self.stream.write_all(&request(words))?;
        self.try_read()
    }

    /// Reads one reply.
    pub fn read(&mut self) -> Value {
        self.try_read().unwrap_or_else(|error| panic!("read: {error}"))
    }

    /// Reads the head of an array and leaves its elements to be read one by one; how many there are.
    pub fn read_length(&mut self) -> usize {
        let line = self.line().unwrap_or_else(|error| panic!("read: {error}"));
        line.strip_prefix('*').and_then(|length| length.parse().ok()).unwrap_or_else(|| panic!("no array: {line:?}"))
    }

    /// Reads one reply; the end of the connection between two replies is `UnexpectedEof` with an empty text, the end
    /// within a reply is `InvalidData`.
    pub fn try_read(&mut self) -> Result<Value> {
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
            self.fill()?;
        }
        self.value().map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::new(ErrorKind::InvalidData, "the connection ended within a reply"),
            _ => error,
        })
    }

    /// Reads everything up to the end of the connection, however it ends.
    pub fn rest(&mut self) -> String {
        let mut bytes = self.buffer.split_off(self.at);
        self.at = self.buffer.len();
        let _ = self.stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether the other side has closed the connection, with nothing left to read.
    pub fn is_closed(&mut self) -> bool {
        self.at == self.buffer.len() && matches!(self.try_read(), Err(error) if closed(&error))
    }

    fn fill(&mut self) -> Result<()> {
        let start = self.buffer.len();
        self.buffer.resize(start + 65_536, 0);
        let got = self.stream.read(&mut self.buffer[start..]);
        self.buffer.truncate(start + got.as_ref().map_or(0, |got| *got));
        if got? == 0 { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    fn line(&mut self) -> Result<String> {
        let mut seen = self.at;
        loop {
            if let Some(end) = self.buffer[seen..].windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8_lossy(&self.buffer[self.at..seen + end]).into_owned();
                self.at = seen + end + 2;
                return Ok(line);
            }
            seen = self.buffer.len().saturating_sub(1).max(self.at);
            self.fill()?;
        }
    }

    fn value(&mut self) -> Result<Value> {
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| bad(&line))?;
        let length = || rest.parse::<i64>().map_err(|_| bad(&line));
        Ok(match kind {
            "+" => Value::Simple(rest.into()),
            "-" => Value::Error(rest.into()),
            ":" => Value::Int(length()?),
            "," => Value::Double(rest.parse().map_err(|_| bad(&line))?),
            "#" => Value::Bool(rest == "t"),
            "_" => Value::Nil,
            "$" | "=" | "*" | "~" | ">" if rest == "-1" => Value::Nil,
            "$" | "=" => Value::Bulk(self.bulk(usize::try_from(length()?).map_err(|_| bad(&line))?)?),
            "*" | "~" | ">" => Value::Array((0..length()?).map(|_| self.value()).collect::<Result<_>>()?),
            "%" => Value::Map((0..length()?).map(|_| Ok((self.value()?, self.value()?))).collect::<Result<_>>()?),
            _ => return Err(bad(&line)),
        })
    }

    fn bulk(&mut self, length: usize) -> Result<String> {
        while self.buffer.len() < self.at + length + 2 {
            self.fill()?;
        }
        let bytes = self.buffer[self.at..self.at + length].to_vec();
        if &self.buffer[self.at + length..self.at + length + 2] != b"\r\n" {
            return Err(bad("a bulk string that does not end with CRLF"));
        }
        self.at += length + 2;
        String::from_utf8(bytes).map_err(|_| bad("a bulk string that is no text"))
    }
}

/// Whether `error` says that the other side has gone.
pub fn closed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

fn bad(line: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not a reply: {line:?}"))
}
