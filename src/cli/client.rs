//! A connection to a server that speaks the Redis protocol: requests out, replies in, each within a time limit.
//!
//! For commands that ask more than one question (`healthcheck` asks one and needs no runtime for it). A token goes to
//! `AUTH` and stands in no text. Rejected: a Redis client library, for five commands of version 2 of the protocol.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use crate::server;

/// How long connecting to one address may take.
const CONNECT: Duration = Duration::from_secs(5);

/// The most bytes of a reply that are read: far above any that is asked for.
const MAX_REPLY: usize = 16 << 20;

/// How many bytes are read at once.
const READ: usize = 64 << 10;

/// A reply.
pub type Reply = OwnedFrame;

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// `host:port`
    Address(String),
    /// A unix socket.
    Socket(PathBuf),
}

impl Place {
    /// Where the server of this section listens.
    pub fn of(server: &server::Config) -> Self {
        if server.addr.is_empty() {
            Self::Socket(server.unix_socket.clone().into())
        } else {
            Self::Address(server.addr.clone())
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(addr) => f.write_str(addr),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Who logs in.
#[derive(Clone, Default)]
pub struct Login {
    /// The user's name; empty: the default user.
    pub user: String,
    /// The password or token; empty: no login.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A stream of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// An open connection. After an error it is of no more use: replies would no longer belong to their requests.
pub struct Client {
    stream: Box<dyn Stream>,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects and logs in.
    ///
    /// # Errors
    /// In words, without the place: nobody answers, or the login is refused.
    pub async fn connect(place: &Place, login: &Login) -> Result<Self, String> {
        let stream = open(place).await.map_err(|error| format!("no answer: {error}"))?;
        let mut client = Self { stream, buffer: Vec::new() };
        if login.password.is_empty() {
            return Ok(client);
        }
        let (user, password) = (login.user.as_bytes(), login.password.as_bytes());
        let words: &[&[u8]] = if user.is_empty() { &[b"AUTH", password] } else { &[b"AUTH", user, password] };
        match client.call(words, CONNECT).await {
            Ok(Reply::Error(text)) => Err(format!("the login is refused: {}", shown(&text))),
            Ok(_) => Ok(client),
            Err(error) => Err(format!("no answer to the login: {error}")),
        }
    }

    /// One request and its reply, which may take `limit`.
    ///
    /// # Errors
    /// The connection broke, or the time is over. Whether the server carried the request out is not known then.
    pub async fn call(&mut self, words: &[&[u8]], limit: Duration) -> io::Result<Reply> {
        let mut request = Vec::new();
        write(&mut request, words);
        self.exchange(&request, 1, limit).await?.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Sends `requests`, made by [`write`], and reads `count` replies, which together may take `limit`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn exchange(&mut self, requests: &[u8], count: usize, limit: Duration) -> io::Result<Vec<Reply>> {
        let work = async {
            self.stream.write_all(requests).await?;
            let mut replies = Vec::with_capacity(count);
            while replies.len() < count {
                replies.push(self.read().await?);
            }
            Ok(replies)
        };
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no reply within {limit:?}"));
        tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
    }

    async fn read(&mut self) -> io::Result<Reply> {
        loop {
            let decoded = decode(&self.buffer);
            let decoded = decoded.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "not a Redis reply"))?;
            if let Some((reply, used)) = decoded {
                self.buffer.drain(..used);
                return Ok(reply);
            }
            if self.buffer.len() > MAX_REPLY {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the reply is too long"));
            }
            self.buffer.reserve(READ);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
        }
    }
}

async fn open(place: &Place) -> io::Result<Box<dyn Stream>> {
    let late = || io::Error::from(io::ErrorKind::TimedOut);
    match place {
        Place::Socket(path) => {
            let stream = tokio::time::timeout(CONNECT, UnixStream::connect(path)).await.map_err(|_| late())??;
            Ok(Box::new(stream))
        }
        Place::Address(addr) => {
            let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
            for addr in tokio::net::lookup_host(addr.as_str()).await? {
                match tokio::time::timeout(CONNECT, TcpStream::connect(reachable(addr))).await {
                    Ok(Ok(stream)) => {
                        stream.set_nodelay(true)?;
                        return Ok(Box::new(stream));
                    }
                    Ok(Err(error)) => last = error,
                    Err(_) => last = late(),
                }
            }
            Err(last)
        }
    }
}

/// Where a listener on `addr` is found: one on all addresses at the loopback one.
pub fn reachable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        let loopback = if addr.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) };
        addr.set_ip(loopback);
    }
    addr
}

/// Appends a request of these words.
pub fn write(request: &mut Vec<u8>, words: &[&[u8]]) {
    request.extend(format!("*{}\r\n", words.len()).into_bytes());
    for word in words {
        request.extend(format!("${}\r\n", word.len()).into_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
}

/// The text of a string reply; `None` for any other.
pub fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::SimpleString(bytes) | Reply::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

/// What somebody else has sent, fit for a terminal.
pub fn shown(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
    }

    /// A server that says `answer` in pieces of three bytes to whatever comes first, and then closes.
    fn server(answer: &'static [u8]) -> (Place, std::thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = Place::Address(listener.local_addr().expect("bound").to_string());
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut request = vec![0; 512];
            let length = stream.read(&mut request).expect("a request");
            for piece in answer.chunks(3) {
                stream.write_all(piece).expect("written");
            }
            request.truncate(length);
            request
        });
        (place, thread)
    }

    #[test]
    fn replies_come_in_the_order_of_the_requests_however_they_are_cut() {
        let (place, server) = server(b"+OK\r\n*2\r\n:1\r\n$3\r\nabc\r\n");
        let replies = run(async {
            let mut client = Client::connect(&place, &Login::default()).await.expect("connected");
            let mut requests = Vec::new();
            write(&mut requests, &[b"A"]);
            write(&mut requests, &[b"B", b"x y"]);
            client.exchange(&requests, 2, SECOND).await.expect("two replies")
        });
        let list = Reply::Array(vec![Reply::Integer(1), Reply::BulkString(b"abc".to_vec())]);
        assert_eq!(replies, [Reply::SimpleString(b"OK".to_vec()), list]);
        assert_eq!(server.join().expect("ended"), b"*1\r\n$1\r\nA\r\n*2\r\n$1\r\nB\r\n$3\r\nx y\r\n");
    }

    #[test]
    fn a_refused_login_is_told_without_the_password() {
        let (place, server) = server(b"-WRONGPASS invalid username-password pair\r\n");
        let login = Login { user: "shop".into(), password: "geheim".into() };
        let error = run(Client::connect(&place, &login)).err().expect("refused");
        assert!(error.contains("WRONGPASS") && !error.contains("geheim"), "{error}");
        assert!(!format!("{login:?}").contains("geheim"));
        assert_eq!(server.join().expect("ended"), b"*3\r\n$4\r\nAUTH\r\n$4\r\nshop\r\n$6\r\ngeheim\r\n");
    }

    #[test]
    fn an_end_or_silence_within_a_reply_is_an_error() {
        let (place, _server) = server(b"$5\r\nab");
        run(async {
            let mut client = Client::connect(&place, &Login::default()).await.expect("connected");
            let error = client.call(&[b"GET"], SECOND).await.expect_err("no whole reply");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        });
        // Accepted by the kernel, answered by nobody.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = Place::Address(listener.local_addr().expect("bound").to_string());
        run(async {
            let mut client = Client::connect(&place, &Login::default()).await.expect("connected");
            let error = client.call(&[b"GET"], Duration::from_millis(20)).await.expect_err("silence");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_loopback() {
        let addr = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert_eq!(reachable(addr("0.0.0.0:6390")), addr("127.0.0.1:6390"));
        assert_eq!(reachable(addr("[::]:6390")), addr("[::1]:6390"));
        assert_eq!(reachable(addr("10.0.0.1:6390")), addr("10.0.0.1:6390"));
    }

    #[test]
    fn what_others_send_can_not_steer_a_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb\nü"), "a\\u{1b}[2Jb\\nü");
    }
}
