//! One connection: read whatever the socket has, answer all of it in order, write once.
//!
//! Two awaits a batch, no task hop, no allocation a command. Memory is bounded on both sides: a request by the scanner's
//! limits, unsent replies by pausing the parsing until the peer has taken them. A connection is never closed instead of a
//! reply, and closing lingers until the peer has read what was written (a reset would throw it away).

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::{Shared, buffers};
use crate::clock::Boot;
use crate::command::{Batch, Client, Flow, Session};
use crate::health::Phase;
use crate::resp::{Limits, ProtocolError, Scan, Scanner};

/// Unsent replies, in bytes, at which a connection stops parsing until they are written.
const OUTPUT_PAUSE: usize = 256 * 1024;

/// The same before login.
const OUTPUT_PAUSE_BEFORE_LOGIN: usize = 4 * 1024;

/// How much work a connection does before it lets others have the thread: about a millisecond's. A request costs 1 and
/// each id of it a part; see [`Session::take_work`].
const WORK_PER_TURN: u64 = 4_000;

/// Unsent replies of all connections together, in bytes; beyond it the connection with the most is closed. The allocator
/// may hold as much again that it can't give back, so the process stays below 512 MiB for them.
const MAX_TOTAL_OUTPUT: usize = 256 * 1024 * 1024;

/// A peer that takes no byte of its replies for this long is closed.
const WRITE_STALL: Duration = Duration::from_mins(1);

/// One command must have arrived whole this long after its first byte.
const SLOW_REQUEST: Duration = Duration::from_secs(10);

/// A connection must have logged in this long after it was opened.
const SLOW_LOGIN: Duration = Duration::from_secs(10);

/// How long a closing connection waits for the peer to read and to close, at most.
const LINGER: Duration = Duration::from_secs(2);

/// A peer that has sent nothing for this long has read its replies: closing does not wait for it.
const QUIET: Duration = Duration::from_secs(1);

/// Unsent replies of all connections together, in bytes.
static UNSENT: AtomicUsize = AtomicUsize::new(0);

/// Departures from the right behaviour, for tests that must find them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Replies pile up without a limit (bug B18 of the fault tests).
    pub unbounded_output: bool,
}

/// Why a connection ends, as the metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The peer closed it, or asked to.
    Closed,
    /// The socket failed.
    Broken,
    /// CLIENT KILL, or too much unsent output over all connections.
    Killed,
    /// The node is stopping, or the connection has reached its age.
    Drained,
    /// A limit on time or size; the label says which.
    Limit(&'static str),
}

struct Connection<S> {
    stream: S,
    client: Arc<Client>,
    session: Session,
    scanner: Scanner,
    input: Vec<u8>,
    /// How much of `input` has been answered.
    answered: usize,
    output: Vec<u8>,
    opened: Boot,
    /// When bytes were last read.
    read_at: Boot,
    /// When the first byte of the request that is not whole yet was read.
    partial_since: Option<Boot>,
    killed: Pin<Box<WaitForCancellationFutureOwned>>,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    shared: Arc<Shared>,
}

/// That the connection is there: ends with it, also when its task panics.
struct Presence(Arc<Shared>, Arc<Client>);

impl Presence {
    fn begin(shared: &Arc<Shared>, client: &Arc<Client>) -> Self {
        shared.context.metrics.connections.add(1);
        Self(Arc::clone(shared), Arc::clone(client))
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.context.metrics.connections.add(-1);
        self.0.context.clients.leave(&self.1);
    }
}

/// Serves one connection to its end.
pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin>(stream: S, client: Arc<Client>, shared: Arc<Shared>) {
    let mut connection = Connection {
        stream,
        session: Session::new(&shared.context, &client),
        scanner: Scanner::new(),
        input: Vec::new(),
        answered: 0,
        output: Vec::new(),
        opened: shared.context.clock.boot(),
        read_at: shared.context.clock.boot(),
        partial_since: None,
        killed: Box::pin(client.kill.clone().cancelled_owned()),
        drained: Box::pin(shared.drain.clone().cancelled_owned()),
        client,
        shared,
    };
    let _presence = Presence::begin(&connection.shared, &connection.client);
    let end = connection.serve().await;
    connection.close(end).await;
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    async fn serve(&mut self) -> End {
        loop {
            if let Err(end) = self.read().await {
                return end;
            }
            let read_at = self.shared.context.clock.boot();
            self.read_at = read_at;
            let answered = self.answer(read_at).await;
            let written = self.write().await;
            self.compact(read_at);
            let elapsed = self.shared.context.clock.boot().since(read_at);
            self.session.finish(&self.shared.context, &self.client, read_at, elapsed);
            if let Err(end) = answered.and(written) {
                return end;
            }
            // What was read is answered; what may still come, or was read in part, has not been begun.
            if self.shared.drain.is_cancelled() || self.aged() {
                return End::Drained;
            }
        }
    }

    /// Whether the connection has reached its age, as of the last read.
    fn aged(&self) -> bool {
        let age = self.shared.config.max_connection_age;
        !age.is_zero() && self.read_at.since(self.opened) >= age
    }

    /// Waits for bytes, with whatever limits on time hold now.
    async fn read(&mut self) -> Result<(), End> {
        let limit = self.time_limit();
        let shared = Arc::clone(&self.shared);
        let Self { stream, input, killed, drained, .. } = self;
        let read = poll_fn(|context| {
            if input.capacity() == 0 {
                *input = buffers::take();
            }
            input.reserve(buffers::READ_SIZE);
            let polled = tokio_util::io::poll_read_buf(Pin::new(&mut *stream), context, input);
            if polled.is_pending() && input.is_empty() {
                buffers::give(std::mem::take(input));
            }
            polled
        });
        let drain = async {
            if !shared.drain.is_cancelled() {
                drained.await;
            }
        };
        let late = async {
            match limit {
                Some((after, _)) => tokio::time::sleep(after).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            read = read => match read {
                Ok(0) => Err(End::Closed),
                Ok(count) => {
                    shared.context.stats.net_input.add(count as u64);
                    Ok(())
                }
                Err(_) => Err(End::Broken),
            },
            () = killed => Err(End::Killed),
            () = drain => Err(End::Drained),
            () = late => Err(limit.map_or(End::Closed, |(_, end)| end)),
        }
    }

    /// The nearest limit on time, from now, and how the connection ends there.
    fn time_limit(&self) -> Option<(Duration, End)> {
        let config = &self.shared.config;
        let aged = !config.max_connection_age.is_zero();
        let idle = !config.idle_timeout.is_zero();
        if self.partial_since.is_none() && self.session.authenticated() && !aged && !idle {
            return None;
        }
        let now = self.shared.context.clock.boot();
        let left = |since: Boot, limit: Duration| limit.saturating_sub(now.since(since));
        let mut limits = Vec::with_capacity(4);
        if let Some(since) = self.partial_since {
            limits.push((left(since, SLOW_REQUEST), End::Limit("slow_request")));
        } else if aged {
            limits.push((left(self.opened, config.max_connection_age), End::Drained));
        }
        if !self.session.authenticated() {
            limits.push((left(self.opened, SLOW_LOGIN), End::Limit("login")));
        }
        if idle {
            limits.push((config.idle_timeout, End::Limit("idle")));
        }
        limits.into_iter().min_by_key(|(after, _)| *after)
    }

    /// Answers all whole requests that were read, in order, into `output`.
    async fn answer(&mut self, read_at: Boot) -> Result<(), End> {
        let mut batch = Batch::new(read_at, self.shared.config.wait_max);
        let shared = Arc::clone(&self.shared);
        let mut work = 0;
        loop {
            let limits = if self.session.authenticated() { &Limits::AFTER_LOGIN } else { &Limits::BEFORE_LOGIN };
            let rest = self.input.get(self.answered..).unwrap_or_default();
            let flow = match self.scanner.next(rest, limits) {
                Ok(Scan::Request(request)) if self.session.joins(&request) => {
                    self.answered += self.scanner.consumed();
                    continue;
                }
                Ok(Scan::Request(request)) => {
                    Some(self.session.execute(&request, &shared.context, &batch, &mut self.output).await)
                }
                Ok(Scan::Incomplete) => None,
                Err(error) => {
                    self.session.settle(&shared.context, &batch, &mut self.output).await;
                    return Err(self.protocol_error(error));
                }
            };
            self.answered += self.scanner.consumed();
            match flow {
                Some(Flow::Continue) => {}
                Some(Flow::Close) => return Err(End::Closed),
                None => break,
            }
            if self.session.has_queued() {
                self.replay(&mut batch).await?;
            }
            self.make_room(&mut batch).await?;
            self.take_turns(&mut work).await;
        }
        self.session.settle(&shared.context, &batch, &mut self.output).await;
        Ok(())
    }

    /// Lets others have the thread when this connection has done enough for one turn.
    async fn take_turns(&mut self, work: &mut u64) {
        *work += self.session.take_work();
        if *work >= WORK_PER_TURN {
            *work = 0;
            tokio::task::yield_now().await;
        }
    }

    /// Executes what a transaction has queued, as if it had just been read.
    async fn replay(&mut self, batch: &mut Batch) -> Result<(), End> {
        let shared = Arc::clone(&self.shared);
        let mut work = 0;
        while self.session.execute_queued(&shared.context, batch, &mut self.output).await {
            self.make_room(batch).await?;
            self.take_turns(&mut work).await;
        }
        if self.session.closing() { Err(End::Closed) } else { Ok(()) }
    }

    /// Writes before going on when enough replies have piled up. How long the peer takes to read them is not counted as
    /// waiting for ids.
    async fn make_room(&mut self, batch: &mut Batch) -> Result<(), End> {
        let pause = if self.session.authenticated() { OUTPUT_PAUSE } else { OUTPUT_PAUSE_BEFORE_LOGIN };
        if self.output.len() < pause || self.shared.rules.unbounded_output {
            return Ok(());
        }
        let before = self.shared.context.clock.boot();
        self.write().await?;
        batch.deadline = batch.deadline.plus(self.shared.context.clock.boot().since(before));
        Ok(())
    }

    fn protocol_error(&mut self, error: ProtocolError) -> End {
        let context = &self.shared.context;
        context.metrics.protocol_errors.add(error.kind(), 1);
        if let Some(text) = error.text() {
            crate::resp::error(&mut self.output, &text);
        } else if self.shared.foreign_protocol(context.clock.boot()) {
            tracing::warn!(
                error_kind = "caller",
                peer = self.client.peer(),
                "another protocol on the Redis port ({}): connection closed",
                error.kind()
            );
        }
        End::Closed
    }

    /// Writes all replies; a peer that takes none for a minute, or is killed meanwhile, ends the connection.
    async fn write(&mut self) -> Result<(), End> {
        let (mut sent, mut total) = (0, 0);
        while let Some(rest) = self.output.get(sent..).filter(|rest| !rest.is_empty()) {
            let stream = &mut self.stream;
            let attempt = poll_fn(|context| Poll::Ready(Pin::new(&mut *stream).poll_write(context, rest))).await;
            let written = match attempt {
                Poll::Ready(Ok(0) | Err(_)) => return Err(End::Broken),
                Poll::Ready(Ok(written)) => written,
                Poll::Pending => {
                    // All the memory that is kept for the peer, whatever part of it has been sent.
                    let unsent = self.output.capacity() + self.input.capacity();
                    self.count_unsent(unsent);
                    let written = self.write_when_possible(sent).await;
                    UNSENT.fetch_sub(unsent, Ordering::Relaxed);
                    self.client.set_unsent(0);
                    written?
                }
            };
            sent += written;
            total += written as u64;
        }
        self.shared.context.stats.net_output.add(total);
        self.output.clear();
        if self.output.capacity() > buffers::READ_SIZE {
            buffers::give(std::mem::take(&mut self.output));
        }
        Ok(())
    }

    async fn write_when_possible(&mut self, sent: usize) -> Result<usize, End> {
        let Self { stream, output, killed, .. } = self;
        let rest = output.get(sent..).unwrap_or_default();
        tokio::select! {
            biased;
            written = poll_fn(|context| Pin::new(&mut *stream).poll_write(context, rest)) => match written {
                Ok(written) if written > 0 => Ok(written),
                // The kernel has the same patience, and either may run out first.
                Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(End::Limit("output")),
                Ok(_) | Err(_) => Err(End::Broken),
            },
            () = killed => Err(End::Killed),
            () = tokio::time::sleep(WRITE_STALL) => Err(End::Limit("output")),
        }
    }

    /// Counts bytes that the peer does not take now; over all connections they are bounded too.
    fn count_unsent(&self, unsent: usize) {
        self.client.set_unsent(unsent);
        let total = UNSENT.fetch_add(unsent, Ordering::Relaxed) + unsent;
        if total > MAX_TOTAL_OUTPUT && self.shared.context.clients.kill_largest(MAX_TOTAL_OUTPUT) {
            self.shared.context.metrics.connections_rejected.add("output", 1);
        }
    }

    /// Drops what has been answered and gives the buffers back when nothing is left.
    fn compact(&mut self, read_at: Boot) {
        if self.answered > 0 {
            self.input.drain(..self.answered.min(self.input.len()));
            self.answered = 0;
            self.partial_since = None;
        }
        if self.input.is_empty() {
            buffers::give(std::mem::take(&mut self.input));
        } else {
            self.partial_since.get_or_insert(read_at);
        }
        if self.output.is_empty() {
            buffers::give(std::mem::take(&mut self.output));
        }
    }

    /// Ends the connection so that the peer can still read what was written.
    async fn close(&mut self, end: End) {
        if let End::Limit(reason) = end {
            self.shared.context.metrics.connections_rejected.add(reason, 1);
        }
        if matches!(end, End::Broken | End::Killed | End::Limit("output")) || self.write().await.is_err() {
            return;
        }
        if end == End::Drained && self.shared.context.clock.boot().since(self.read_at) > QUIET {
            let _ = self.stream.shutdown().await;
            return;
        }
        let linger = async {
            self.stream.shutdown().await?;
            self.input.clear();
            loop {
                self.input.reserve(buffers::READ_SIZE);
                let Self { stream, input, .. } = self;
                if poll_fn(|context| tokio_util::io::poll_read_buf(Pin::new(&mut *stream), context, input)).await? == 0
                {
                    return Ok::<_, io::Error>(());
                }
                self.input.clear();
            }
        };
        let _ = tokio::time::timeout(LINGER, linger).await;
        if self.shared.context.health.phase() == Phase::Draining {
            tracing::debug!(peer = self.client.peer(), "connection closed at a command boundary");
        }
    }
}
