//! One connection through the proxy: a thread for each direction, and the two sockets that they share.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::speech::{Speech, Unit};
use super::{Flow, Shared, To};

/// How long one write may take before it is asked whether the connection has been ended meanwhile.
const WRITE_TURN: Duration = Duration::from_millis(200);

/// No answer is cut.
const NONE: u64 = u64::MAX;

/// The two sockets, each with one descriptor only, so that dropping it resets the connection at once.
pub struct Connection {
    client: TcpStream,
    server: TcpStream,
    speech: Mutex<Speech>,
    /// The number of the request whose answer is to be cut off.
    cut: AtomicU64,
    ended: AtomicBool,
}

/// Connects `client` to `upstream`; a client whose server isn't there is reset.
pub fn open(shared: &Arc<Shared>, client: TcpStream, upstream: SocketAddr) {
    let Ok(server) = TcpStream::connect(upstream) else {
        let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_write_timeout(Some(WRITE_TURN));
    }
    let speech = Mutex::new(Speech::new(shared.protocol));
    let (cut, ended) = (AtomicU64::new(NONE), AtomicBool::new(false));
    let connection = Arc::new(Connection { client, server, speech, cut, ended });
    shared.rules().connections.push(Arc::downgrade(&connection));
    for to in [To::Server, To::Client] {
        let (shared, connection) = (Arc::clone(shared), Arc::clone(&connection));
        std::thread::spawn(move || connection.pump(&shared, to));
    }
}

impl Connection {
    /// Ends it by a reset in both directions.
    pub fn end(&self) {
        for stream in [&self.client, &self.server] {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
        self.ended.store(true, Ordering::SeqCst);
        // Only the reading side: this wakes the threads and sends nothing, so that the reset is the first that is seen.
        let _ = self.client.shutdown(Shutdown::Read);
        let _ = self.server.shutdown(Shutdown::Read);
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    fn pump(&self, shared: &Shared, to: To) {
        let (mut from, target) = match to {
            To::Server => (&self.client, &self.server),
            To::Client => (&self.server, &self.client),
        };
        let mut buffer = vec![0; 65_536];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) if self.passes(shared, to, &buffer[..count]) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => return self.end(),
            }
        }
        // An end that belongs to the stream is passed on behind the data, but not while nothing may be said.
        if !self.ended() && self.gate(shared, to).is_some_and(|flow| flow == Flow::Pass) {
            let _ = target.shutdown(Shutdown::Write);
        }
        if to == To::Client {
            // The server has gone: there is nobody to write to.
            let _ = self.client.shutdown(Shutdown::Read);
        }
    }

    /// One piece of data; false when the connection is to end.
    fn passes(&self, shared: &Shared, to: To, bytes: &[u8]) -> bool {
        match to {
            To::Server => {
                let units = self.speech.lock().unwrap().client(bytes);
                units.into_iter().all(|unit| self.request(shared, unit))
            }
            To::Client => {
                let answered = {
                    let mut speech = self.speech.lock().unwrap();
                    speech.server(bytes);
                    speech.counts().1
                };
                match self.cut.load(Ordering::SeqCst) {
                    NONE => self.deliver(shared, To::Client, bytes),
                    number if answered < number => true, // a part of the answer: nothing of it gets through
                    _ => {
                        shared.change(|rules| rules.counts.cut += 1);
                        false
                    }
                }
            }
        }
    }

    fn request(&self, shared: &Shared, unit: Unit) -> bool {
        if let Some(statement) = unit.statement {
            let mut rules = shared.rules();
            if rules.hold.as_mut().is_some_and(|hold| hold.hits(&statement)) {
                rules.counts.held += 1;
                let releases = rules.releases;
                while rules.releases == releases && !self.ended() && !rules.end {
                    rules = shared.changed.wait(rules).unwrap();
                }
            }
            if rules.cut.as_mut().is_some_and(|cut| cut.hits(&statement)) {
                self.cut.store(self.speech.lock().unwrap().counts().0, Ordering::SeqCst);
            }
            *rules.statements.entry(statement).or_default() += 1;
        }
        self.deliver(shared, To::Server, &unit.bytes)
    }

    /// Waits out a stall; nothing if the connection or the proxy has ended.
    fn gate(&self, shared: &Shared, to: To) -> Option<Flow> {
        let mut rules = shared.rules();
        while rules.lanes[to as usize].flow == Flow::Stall && !rules.end && !self.ended() {
            rules = shared.changed.wait(rules).unwrap();
        }
        (!rules.end && !self.ended()).then(|| rules.lanes[to as usize].flow)
    }

    fn deliver(&self, shared: &Shared, to: To, bytes: &[u8]) -> bool {
        let delay = shared.rules().lanes[to as usize].delay;
        if !delay.is_zero() && !self.sleep(shared, to, delay) {
            return false;
        }
        let Some(flow) = self.gate(shared, to) else { return false };
        if flow == Flow::Swallow {
            return true;
        }
        let (most, cut) = {
            let mut rules = shared.rules();
            let length = bytes.len() as u64;
            let lane = &mut rules.lanes[to as usize];
            let most = lane.cut_after.map_or(length, |left| left.min(length));
            let cut = most < length;
            lane.cut_after = lane.cut_after.map(|left| left - most).filter(|_| !cut);
            rules.counts.bytes[to as usize] += most;
            (usize::try_from(most).unwrap(), cut)
        };
        let target = if to == To::Server { &self.server } else { &self.client };
        self.write(target, &bytes[..most]) && !cut
    }

    /// A delay that the end of the connection, or of the delay, cuts short.
    fn sleep(&self, shared: &Shared, to: To, delay: Duration) -> bool {
        let end = Instant::now() + delay;
        let mut rules = shared.rules();
        while !self.ended() && !rules.end && !rules.lanes[to as usize].delay.is_zero() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            rules = shared.changed.wait_timeout(rules, left).unwrap().0;
        }
        !self.ended() && !rules.end
    }

    fn write(&self, mut target: &TcpStream, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match target.write(bytes) {
                Ok(0) => return false,
                Ok(count) => bytes = &bytes[count..],
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    if self.ended() {
                        return false;
                    }
                }
                Err(_) => return false,
            }
        }
        true
    }
}
