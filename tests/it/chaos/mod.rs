//! A TCP proxy that does to a connection what networks do, changed while it runs.
//!
//! One thread for each direction of each connection. A piece of data is read, judged by the rules of that moment and
//! passed on, so a rule holds for connections that were there before it. What a stall keeps back is delivered when it
//! ends, even if the client has given up meanwhile: that is the delayed copy of a statement. A cut before an answer
//! waits until the server has answered, so that the statement surely has been executed. Rejected: toxiproxy, which
//! can't cut there, and netem, which this kernel lacks.

mod connection;
mod speech;

mod tests;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use connection::Connection;
pub use speech::Protocol;

use crate::node::free_port;

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// From the client to the server.
    Server,
    /// From the server to the client.
    Client,
}

/// What happens to data in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flow {
    #[default]
    Pass,
    /// Nothing is read any more; what was read waits.
    Stall,
    /// Everything is read and thrown away.
    Swallow,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    flow: Flow,
    delay: Duration,
    /// The connection that passes this many bytes more is reset.
    cut_after: Option<u64>,
}

/// Whether `statement` contains `text`, and not only as the beginning of a longer word: COMMIT is not in READ COMMITTED.
fn says(statement: &str, text: &str) -> bool {
    let goes_on = |at: usize| statement[at + text.len()..].starts_with(|next: char| next.is_ascii_alphanumeric());
    statement.match_indices(text).any(|(at, _)| !goes_on(at))
}

/// Requests whose statement contains a text.
#[derive(Clone, Debug)]
struct Match {
    text: String,
    /// Each how many-th of them.
    every: u64,
    /// How many more times.
    times: u64,
    seen: u64,
}

impl Match {
    fn hits(&mut self, statement: &str) -> bool {
        if self.times == 0 || !says(statement, &self.text) {
            return false;
        }
        self.seen += 1;
        let hit = self.seen.is_multiple_of(self.every);
        self.times -= u64::from(hit);
        hit
    }
}

/// What has gone through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Bytes that were passed on to the server and to the client.
    pub bytes: [u64; 2],
    /// Requests that were executed and whose answer was cut off.
    pub cut: u64,
    /// Requests that have been kept back by [`Proxy::hold`].
    pub held: u64,
}

struct Rules {
    upstream: SocketAddr,
    refuse: bool,
    listening: bool,
    end: bool,
    lanes: [Lane; 2],
    cut: Option<Match>,
    hold: Option<Match>,
    /// Raised by [`Proxy::release`]: what was held before goes on.
    releases: u64,
    counts: Counts,
    statements: BTreeMap<String, u64>,
    connections: Vec<Weak<Connection>>,
}

struct Shared {
    protocol: Protocol,
    rules: Mutex<Rules>,
    changed: Condvar,
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.rules());
        self.changed.notify_all();
    }
}

/// A running proxy in front of one server.
pub struct Proxy {
    shared: Arc<Shared>,
    addr: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts passing everything to `upstream`. With another protocol than [`Protocol::Bytes`] requests are told apart.
    pub fn start(protocol: Protocol, upstream: SocketAddr) -> Self {
        // A port that was free a moment ago may be somebody else's now: another run of the tests looks for one as well.
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, free_port())).ok();
        let listener = (0..10).find_map(|_| bind()).expect("ten ports were taken, one after the other");
        let addr = listener.local_addr().unwrap();
        let rules = Rules {
            upstream,
            refuse: false,
            listening: true,
            end: false,
            lanes: [Lane::default(); 2],
            cut: None,
            hold: None,
            releases: 0,
            counts: Counts::default(),
            statements: BTreeMap::new(),
            connections: Vec::new(),
        };
        let shared = Arc::new(Shared { protocol, rules: Mutex::new(rules), changed: Condvar::new() });
        let acceptor = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&shared, addr, listener)
        });
        Self { shared, addr, acceptor: Some(acceptor) }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends new connections to another server; those that are open stay where they are.
    pub fn repoint(&self, upstream: SocketAddr) {
        self.shared.change(|rules| rules.upstream = upstream);
    }

    /// Keeps every piece of data in one direction back for `delay`, one after the other.
    pub fn delay(&self, to: To, delay: Duration) {
        self.shared.change(|rules| rules.lanes[to as usize].delay = delay);
    }

    /// Accepts, and says nothing any more, in either direction.
    pub fn stall(&self) {
        self.flow(&[To::Server, To::Client], Flow::Stall);
    }

    /// Keeps back what goes in one direction; [`Self::pass`] delivers it.
    pub fn stall_to(&self, to: To) {
        self.flow(&[to], Flow::Stall);
    }

    /// Half-open connections: everything that goes in this direction is lost, and nobody is told.
    pub fn swallow(&self, to: To) {
        self.flow(&[to], Flow::Swallow);
    }

    /// Ends stalls, losses, delays, refusals, and cuts that have not happened; what was stalled is delivered. Requests
    /// that are held stay so.
    pub fn pass(&self) {
        self.shared.change(|rules| {
            rules.lanes = [Lane::default(); 2];
            rules.refuse = false;
            rules.cut = None;
        });
        self.until_listening(true);
    }

    fn until_listening(&self, listening: bool) {
        let mut rules = self.shared.rules();
        while rules.listening != listening && !rules.end {
            rules = self.shared.changed.wait(rules).unwrap();
        }
    }

    fn flow(&self, directions: &[To], flow: Flow) {
        self.shared.change(|rules| directions.iter().for_each(|to| rules.lanes[*to as usize].flow = flow));
    }

    /// Resets the connection that passes byte `bytes` + 1 in this direction, counted from now over all connections.
    pub fn cut_after(&self, to: To, bytes: u64) {
        self.shared.change(|rules| rules.lanes[to as usize].cut_after = Some(bytes));
    }

    /// Executes each `every`-th request whose statement contains `text`, and resets its connection in place of the
    /// answer; `times` in all.
    pub fn cut_before_answer(&self, text: &str, every: u64, times: u64) {
        self.shared.change(|rules| rules.cut = Some(Match { text: text.into(), every, times, seen: 0 }));
    }

    /// Keeps the next `times` requests whose statement contains `text` from the server until [`Self::release`].
    pub fn hold(&self, text: &str, times: u64) {
        self.shared.change(|rules| rules.hold = Some(Match { text: text.into(), every: 1, times, seen: 0 }));
    }

    /// Delivers what is held, to the server that it was sent to, whether or not its client still waits.
    pub fn release(&self) {
        self.shared.change(|rules| {
            rules.hold = None;
            rules.releases += 1;
        });
    }

    /// Nobody listens any more, until [`Self::pass`]; connections that are open stay.
    pub fn refuse(&self) {
        self.shared.change(|rules| rules.refuse = true);
        drop(TcpStream::connect(self.addr)); // wakes the acceptor
        self.until_listening(false);
    }

    /// Resets all open connections.
    pub fn reset(&self) {
        let open: Vec<_> = std::mem::take(&mut self.shared.rules().connections);
        open.iter().filter_map(Weak::upgrade).for_each(|connection| connection.end());
        self.shared.changed.notify_all();
    }

    /// What has gone through so far.
    pub fn counts(&self) -> Counts {
        self.shared.rules().counts.clone()
    }

    /// How many requests have been passed on whose statement contains `text`.
    pub fn requests(&self, text: &str) -> u64 {
        let rules = self.shared.rules();
        rules.statements.iter().filter(|(statement, _)| says(statement, text)).map(|(_, count)| count).sum()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|rules| rules.end = true);
        self.reset();
        drop(TcpStream::connect(self.addr)); // wakes the acceptor
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        if std::thread::panicking() {
            eprintln!("--- the proxy at {}: {:?}", self.addr, self.counts());
        }
    }
}

fn accept(shared: &Arc<Shared>, addr: SocketAddr, listener: TcpListener) {
    let mut listener = Some(listener);
    loop {
        let mut accepted = listener.as_ref().and_then(|listener| listener.accept().ok());
        let mut rules = shared.rules();
        if rules.refuse && !rules.end {
            drop((accepted.take(), listener.take()));
            rules.listening = false;
            shared.changed.notify_all();
            while rules.refuse && !rules.end {
                rules = shared.changed.wait(rules).unwrap();
            }
            listener = TcpListener::bind(addr).ok();
            // Where the port was taken meanwhile, clients stay refused, and their test says so.
            rules.listening = true;
            rules.end |= listener.is_none();
            shared.changed.notify_all();
        }
        if rules.end {
            return;
        }
        let Some((client, _)) = accepted else { continue };
        rules.counts.connections += 1;
        rules.connections.retain(|connection| connection.strong_count() > 0);
        let upstream = rules.upstream;
        drop(rules);
        connection::open(shared, client, upstream);
    }
}
