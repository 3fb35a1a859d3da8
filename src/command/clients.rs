//! The connections there are: for `CLIENT LIST`, `CLIENT KILL`, `INFO` and the limits on all of them together.
//!
//! A connection writes down what it is doing once a read batch, in relaxed stores; what changes rarely (names, user) is
//! behind a lock of its own. Who lists the connections pays for it, not who serves ids.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::spec::row_name;
use crate::clock::Boot;

/// Where a connection comes from and where it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The other side: `ip:port`, or `/path:0` for a unix socket.
    pub addr: String,
    /// This side, written alike.
    pub local: String,
    /// Whether it is a unix socket.
    pub unix: bool,
}

/// What a connection has said about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) name: String,
    pub(super) library: String,
    pub(super) library_version: String,
    /// Empty before a login.
    pub(super) user: String,
}

/// One connection, as others see it.
#[derive(Debug)]
pub struct Client {
    /// The number of the connection, never used twice in one run of the process.
    pub id: u64,
    /// Cancelled to end the connection.
    pub kill: CancellationToken,
    peer: Peer,
    opened: Boot,
    seen: AtomicU64,
    unsent: AtomicUsize,
    profile: Mutex<Profile>,
    pub(super) row: AtomicU16,
    pub(super) protocol: AtomicU8,
    pub(super) db: AtomicU8,
    /// Requests queued in a transaction; -1 outside of one.
    pub(super) queued: AtomicI32,
    pub(super) queued_bytes: AtomicUsize,
    pub(super) channels: AtomicU32,
    pub(super) patterns: AtomicU32,
    pub(super) watched: AtomicU32,
}

impl Client {
    /// Where the connection comes from.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer.addr
    }

    /// Notes how many bytes of replies the peer has not taken yet.
    pub fn set_unsent(&self, bytes: usize) {
        self.unsent.store(bytes, Relaxed);
    }

    pub(super) fn touch(&self, now: Boot) {
        self.seen.store(now.0, Relaxed);
    }

    pub(super) fn profile(&self) -> MutexGuard<'_, Profile> {
        // Nothing can panic under the lock, so a poisoned one still holds a whole profile.
        self.profile.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn local(&self) -> &str {
        &self.peer.local
    }

    pub(super) fn subscribed(&self) -> bool {
        self.channels.load(Relaxed) + self.patterns.load(Relaxed) > 0
    }

    fn flags(&self) -> String {
        let mut flags = String::new();
        if self.subscribed() {
            flags.push('P');
        }
        if self.queued.load(Relaxed) >= 0 {
            flags.push('x');
        }
        if self.kill.is_cancelled() {
            flags.push('A');
        }
        if self.peer.unix {
            flags.push('U');
        }
        if flags.is_empty() {
            flags.push('N');
        }
        flags
    }

    /// The connection as one line of `CLIENT LIST`, without the line end. What this server has no notion of is 0.
    pub(super) fn line(&self, now: Boot) -> String {
        let profile = self.profile().clone();
        let unsent = self.unsent.load(Relaxed);
        let queued_bytes = self.queued_bytes.load(Relaxed);
        let mut line = String::with_capacity(400);
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db={} sub={} psub={} ssub=0 multi={} watch={} \
             qbuf=0 qbuf-free=0 argv-mem=0 multi-mem={queued_bytes} rbs=0 rbp=0 obl=0 oll=0 omem={unsent} tot-mem={} \
             events=r cmd={} user={} redir=-1 resp={} lib-name={} lib-ver={}",
            self.id,
            self.peer.addr,
            self.peer.local,
            profile.name,
            now.since(self.opened).as_secs(),
            now.since(Boot(self.seen.load(Relaxed))).as_secs(),
            self.flags(),
            self.db.load(Relaxed),
            self.channels.load(Relaxed),
            self.patterns.load(Relaxed),
            self.queued.load(Relaxed),
            self.watched.load(Relaxed),
            unsent + queued_bytes,
            row_name(self.row.load(Relaxed)),
            if profile.user.is_empty() { "(none)" } else { &profile.user },
            self.protocol.load(Relaxed),
            profile.library,
            profile.library_version,
        );
        line
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Clients {
    last_id: AtomicU64,
    refused: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<Client>>>,
}

impl Clients {
    /// Enters a new connection; `None`, and it is counted as refused, when there are `most` already.
    pub fn enter(&self, peer: Peer, now: Boot, most: u32) -> Option<Arc<Client>> {
        let mut open = self.open();
        if open.len() >= usize::try_from(most).unwrap_or(usize::MAX) {
            self.refused.fetch_add(1, Relaxed);
            return None;
        }
        let client = Arc::new(Client {
            id: self.last_id.fetch_add(1, Relaxed) + 1,
            kill: CancellationToken::new(),
            peer,
            opened: now,
            seen: AtomicU64::new(now.0),
            unsent: AtomicUsize::new(0),
            profile: Mutex::default(),
            row: AtomicU16::new(u16::MAX),
            protocol: AtomicU8::new(2),
            db: AtomicU8::new(0),
            queued: AtomicI32::new(-1),
            queued_bytes: AtomicUsize::new(0),
            channels: AtomicU32::new(0),
            patterns: AtomicU32::new(0),
            watched: AtomicU32::new(0),
        });
        open.insert(client.id, Arc::clone(&client));
        Some(client)
    }

    /// Forgets a connection that has ended.
    pub fn leave(&self, client: &Client) {
        self.open().remove(&client.id);
    }

    /// How many connections there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open().len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many connections there have been, refused ones not counted.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.last_id.load(Relaxed)
    }

    /// How many connections were refused because there were too many.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Ends the connection with the most bytes that its peer has not taken, if those of all connections that are not
    /// ending already are more than `most`; whether it did.
    pub fn kill_largest(&self, most: usize) -> bool {
        let open = self.open();
        let staying = || open.values().filter(|client| !client.kill.is_cancelled());
        let unsent = |client: &&Arc<Client>| client.unsent.load(Relaxed);
        if staying().map(|client| unsent(&client)).sum::<usize>() <= most {
            return false;
        }
        let largest = staying().max_by_key(unsent);
        largest.inspect(|client| client.kill.cancel()).is_some()
    }

    /// All connections, by id.
    pub(super) fn all(&self) -> Vec<Arc<Client>> {
        self.open().values().cloned().collect()
    }

    pub(super) fn forget_counts(&self) {
        self.refused.store(0, Relaxed);
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer { addr: "127.0.0.1:50000".into(), local: "127.0.0.1:6390".into(), unix: false }
    }

    #[test]
    fn no_more_connections_enter_than_may() {
        let clients = Clients::default();
        let first = clients.enter(peer(), Boot(0), 1).expect("the first one");
        assert!(clients.enter(peer(), Boot(0), 1).is_none());
        clients.leave(&first);
        let second = clients.enter(peer(), Boot(0), 1).expect("there is room again");
        assert_eq!((first.id, second.id, clients.len(), clients.opened(), clients.refused()), (1, 2, 1, 2, 1));
    }

    #[test]
    fn the_connection_with_the_most_unsent_bytes_is_killed() {
        let clients = Clients::default();
        let all: Vec<_> = (0..3).filter_map(|_| clients.enter(peer(), Boot(0), 9)).collect();
        for (client, unsent) in all.iter().zip([5, 9, 7]) {
            client.set_unsent(unsent);
        }
        assert!(!clients.kill_largest(21), "they may have so much");
        assert!(clients.kill_largest(20));
        assert!(!clients.kill_largest(20), "what is ending already no longer counts");
        assert_eq!(all.iter().map(|client| client.kill.is_cancelled()).collect::<Vec<_>>(), [false, true, false]);
    }

    #[test]
    fn a_line_has_the_fields_in_the_order_of_redis() {
        let clients = Clients::default();
        let client = clients.enter(peer(), Boot(1_000_000_000), 9).expect("room");
        client.profile().name = "app".into();
        client.profile().user = "default".into();
        client.touch(Boot(3_000_000_000));
        assert_eq!(
            client.line(Boot(8_500_000_000)),
            "id=1 addr=127.0.0.1:50000 laddr=127.0.0.1:6390 fd=-1 name=app age=7 idle=5 flags=N db=0 sub=0 psub=0 ssub=0 \
             multi=-1 watch=0 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 tot-mem=0 events=r \
             cmd=NULL user=default redir=-1 resp=2 lib-name= lib-ver="
        );
    }
}
