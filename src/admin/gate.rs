//! The way into the HTTP listener: how many connections, and what each may cost before it has asked for anything.
//!
//! A connection's head is read here, within a time and a size, and only a whole one goes on to HTTP. Where all places are
//! taken, the connection that has kept its head back longest gives its place up: who asks at once, such as a probe, always
//! gets in. Who speaks another protocol, most likely Redis' on the wrong port, is told so in one line that its client shows.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// How many connections are held at once.
pub const MAX_CONNECTIONS: usize = 32;

/// The most bytes of a request's head.
pub const MAX_HEAD: usize = 8 * 1024;

/// How long a request's head may take to come.
pub const HEAD_TIME: Duration = Duration::from_secs(5);

/// How long an answer may take to be read by the client.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// The pause after an accept that failed, as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const NOT_HTTP: &str =
    "-ERR this port speaks HTTP: /metrics /livez /readyz /startupz; ids are served at server.addr\r\n";

/// A listener whose connections have sent a whole head.
#[derive(Debug)]
pub struct Gate {
    listener: TcpListener,
    head_time: Duration,
    places: Arc<Semaphore>,
    reading: Reading,
    /// Accepted, and still without a place.
    pending: Option<TcpStream>,
    enter: mpsc::Sender<Entered>,
    entered: mpsc::Receiver<Entered>,
}

/// The connections whose heads are being read, the oldest first.
#[derive(Clone, Debug, Default)]
struct Reading(Arc<Mutex<Heads>>);

#[derive(Debug, Default)]
struct Heads {
    begun: u64,
    open: VecDeque<(u64, CancellationToken)>,
}

impl Reading {
    /// Notes one more; its number, and what ends it.
    fn begin(&self) -> (u64, CancellationToken) {
        let mut heads = self.lock();
        heads.begun += 1;
        let one = (heads.begun, CancellationToken::new());
        heads.open.push_back(one.clone());
        one
    }

    fn end(&self, number: u64) {
        self.lock().open.retain(|(other, _)| *other != number);
    }

    fn end_oldest(&self) {
        if let Some((_, token)) = self.lock().open.pop_front() {
            token.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Heads> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Lets connections of `listener` in that send a head within `head_time`.
    pub fn new(listener: TcpListener, head_time: Duration) -> Self {
        let (enter, entered) = mpsc::channel(MAX_CONNECTIONS);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Self { listener, head_time, places, reading: Reading::default(), pending: None, enter, entered }
    }
}

/// Accepts the next connection into `pending`, unless one is there, and waits for a place for it. May be dropped at any
/// await: what was accepted stays.
async fn arrive(
    listener: &TcpListener,
    pending: &mut Option<TcpStream>,
    places: &Arc<Semaphore>,
    reading: &Reading,
) -> io::Result<OwnedSemaphorePermit> {
    if pending.is_none() {
        *pending = Some(listener.accept().await?.0);
        if places.available_permits() == 0 {
            reading.end_oldest();
        }
    }
    Arc::clone(places).acquire_owned().await.map_err(io::Error::other)
}

impl Listener for Gate {
    type Io = Entered;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Entered, SocketAddr) {
        loop {
            let arrival = tokio::select! {
                Some(entered) = self.entered.recv() => {
                    let peer = entered.stream.peer_addr().unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], 0)));
                    return (entered, peer);
                }
                arrival = arrive(&self.listener, &mut self.pending, &self.places, &self.reading) => arrival,
            };
            match arrival {
                Ok(place) => {
                    let Some(stream) = self.pending.take() else { continue };
                    let (enter, head_time, reading) = (self.enter.clone(), self.head_time, self.reading.clone());
                    tokio::spawn(async move {
                        if let Some(entered) = admit(stream, place, head_time, &reading).await {
                            let _ = enter.send(entered).await;
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, error_kind = "system", "the admin listener could not accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Reads the head; answers and ends a connection that doesn't send a proper one.
async fn admit(
    mut stream: TcpStream,
    place: OwnedSemaphorePermit,
    head_time: Duration,
    reading: &Reading,
) -> Option<Entered> {
    let mut head = BytesMut::with_capacity(1024);
    let (number, given_up) = reading.begin();
    let verdict = tokio::select! {
        verdict = timeout(head_time, read_head(&mut stream, &mut head)) => verdict,
        () = given_up.cancelled() => return None,
    };
    reading.end(number);
    let answer = match verdict {
        Ok(Verdict::Whole) => {
            return Some(Entered { stream, head, deadline: Box::pin(sleep(ANSWER_TIME)), _place: place });
        }
        Ok(Verdict::Gone) => return None,
        Ok(Verdict::Foreign) => NOT_HTTP.to_owned(),
        Ok(Verdict::TooLong) => refusal("431 Request Header Fields Too Large", "The request's head is above 8 KiB."),
        Err(_) => refusal("408 Request Timeout", "The request's head took too long to come."),
    };
    let farewell = async {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await?;
        // What is still on its way is read, since closing on it would tear the answer away from the client.
        let mut rest = (&mut stream).take(MAX_HEAD as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(Duration::from_secs(1), farewell).await;
    None
}

fn refusal(status: &str, text: &str) -> String {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}\n"
    )
}

enum Verdict {
    Whole,
    Foreign,
    TooLong,
    Gone,
}

async fn read_head(stream: &mut TcpStream, head: &mut BytesMut) -> Verdict {
    loop {
        if is_foreign(head) {
            return Verdict::Foreign;
        }
        if head.windows(4).any(|window| window == b"\r\n\r\n") {
            return Verdict::Whole;
        }
        if head.len() >= MAX_HEAD {
            return Verdict::TooLong;
        }
        let room = MAX_HEAD - head.len();
        match (&mut *stream).take(room as u64).read_buf(head).await {
            Ok(0) | Err(_) => return Verdict::Gone,
            Ok(_) => {}
        }
    }
}

/// Whether what has come so far can't begin an HTTP request.
fn is_foreign(head: &[u8]) -> bool {
    match head.iter().position(|&byte| byte == b'\n') {
        Some(end) => !head.iter().take(end).copied().collect::<Vec<_>>().windows(6).any(|window| window == b" HTTP/"),
        None => head.first().is_some_and(|byte| !byte.is_ascii_alphabetic()),
    }
}

/// A connection that has sent a whole head, which is read again from memory.
#[derive(Debug)]
pub struct Entered {
    stream: TcpStream,
    head: BytesMut,
    deadline: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Entered {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Entered {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.head.is_empty() {
            self.check(context)?;
            return Pin::new(&mut self.stream).poll_read(context, buf);
        }
        let n = self.head.len().min(buf.remaining());
        buf.put_slice(self.head.get(..n).unwrap_or_default());
        self.head.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Entered {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
