//! Clients that keep every id: pipelines of mixed id commands over several connections, across restarts of the server.
//!
//! A reply that never came (the server was killed) is *lost*: its ids may have been spent, so nothing is expected of them.
//! An error reply is kept by its text; which ones are acceptable is for the test to say.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::wire::{Conn, Value, closed, request};

/// A run of consecutive ids, first and last.
pub type Run = (i64, i64);

/// What one connection drew, in the order of its requests.
#[derive(Debug, Default)]
pub struct Session {
    /// The ids.
    pub runs: Vec<Run>,
}

/// What one client drew.
#[derive(Debug, Default)]
pub struct Drawn {
    /// One session for each connection that it had, in order.
    pub sessions: Vec<Session>,
    /// How often each error came.
    pub errors: BTreeMap<String, u64>,
    /// Requests that were sent and never answered.
    pub lost: u64,
    /// A reply that was torn or not a reply at all.
    pub broken: Vec<String>,
}

/// Numbers that look random and come again with the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice with the seed `IDGEN_SEED`, or one from the clock; it is printed, and shown when the test fails.
    pub fn new() -> Self {
        let now = || u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
        let seed = std::env::var("IDGEN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(now);
        println!("IDGEN_SEED={seed}");
        Self(seed)
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // SplitMix64: one addition and three mixes, good enough to choose moments and commands.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    /// Dice of their own for a thread.
    pub fn split(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }

    /// A duration from `least` to `most` milliseconds.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }
}

/// How the ids of one request are told in its reply.
#[derive(Clone, Copy)]
enum Shape {
    One,
    Last(i64),
    Each,
    Ranges,
}

/// One of the id commands for `tag`, mostly the plain one.
fn ask(tag: &str, dice: &mut Dice) -> (Vec<u8>, Shape) {
    match dice.below(40) {
        0 => (request(&["IDMGET", tag, "7"]), Shape::Each),
        1 => (request(&["IDRANGE", tag, "100"]), Shape::Ranges),
        2 => (request(&["INCRBY", tag, "5"]), Shape::Last(5)),
        3 => (request(&["INCR", tag]), Shape::One),
        _ => (request(&["IDGET", tag]), Shape::One),
    }
}

fn runs(reply: &Value, shape: Shape, into: &mut Vec<Run>) {
    match shape {
        Shape::One => into.push((reply.int(), reply.int())),
        Shape::Last(n) => into.push((reply.int() - n + 1, reply.int())),
        Shape::Each => into.extend(reply.ints().iter().map(|id| (*id, *id))),
        Shape::Ranges => into.extend(reply.ints().chunks(2).map(|pair| (pair[0], pair[1]))),
    }
}

/// Clients at work.
pub struct Load {
    stop: Arc<AtomicBool>,
    answered: Vec<Arc<AtomicU64>>,
    clients: Vec<JoinHandle<Drawn>>,
}

impl Load {
    /// Starts one client for each of `tags`, which sends pipelines of up to `depth` requests.
    pub fn start(addr: SocketAddr, tags: &[&str], depth: u64, dice: &mut Dice) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let answered: Vec<_> = tags.iter().map(|_| Arc::<AtomicU64>::default()).collect();
        let clients = tags
            .iter()
            .zip(&answered)
            .map(|(tag, answered)| {
                let (tag, mut dice) = ((*tag).to_owned(), dice.split());
                let (stop, answered) = (Arc::clone(&stop), Arc::clone(answered));
                std::thread::spawn(move || client(addr, &tag, depth, &mut dice, &stop, &answered))
            })
            .collect();
        Self { stop, answered, clients }
    }

    /// How many requests have been answered with ids so far.
    pub fn answered(&self) -> u64 {
        self.answered_each().iter().sum()
    }

    /// The same for each client.
    pub fn answered_each(&self) -> Vec<u64> {
        self.answered.iter().map(|answered| answered.load(Ordering::Relaxed)).collect()
    }

    /// Whether each client has been answered `more` times since [`Self::answered_each`] was `before`.
    pub fn each_since(&self, before: &[u64], more: u64) -> bool {
        self.answered_each().iter().zip(before).all(|(now, before)| *now >= before + more)
    }

    /// Stops the clients at the end of their pipelines and returns what each has drawn.
    pub fn finish(self) -> Vec<Drawn> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().map(|client| client.join().unwrap()).collect()
    }
}

fn client(addr: SocketAddr, tag: &str, depth: u64, dice: &mut Dice, stop: &AtomicBool, answered: &AtomicU64) -> Drawn {
    let mut drawn = Drawn::default();
    while !stop.load(Ordering::Relaxed) {
        let Ok(mut conn) = Conn::try_connect(addr) else {
            std::thread::sleep(Duration::from_millis(2)); // until the server is back
            continue;
        };
        let mut session = Session::default();
        while !stop.load(Ordering::Relaxed) && pipeline(&mut conn, tag, depth, dice, &mut session, &mut drawn, answered)
        {
        }
        drawn.sessions.push(session);
    }
    drawn
}

/// A session keeps this many runs at full speed; then it sends one request at a time, so that memory stays bounded and
/// the server is still at work when it is killed.
const FAST_RUNS: usize = 60_000;

/// One pipeline; false once the connection is gone.
fn pipeline(
    conn: &mut Conn,
    tag: &str,
    depth: u64,
    dice: &mut Dice,
    session: &mut Session,
    drawn: &mut Drawn,
    answered: &AtomicU64,
) -> bool {
    let depth = if session.runs.len() < FAST_RUNS { 1 + dice.below(depth) } else { 1 };
    let asked: Vec<(Vec<u8>, Shape)> = (0..depth).map(|_| ask(tag, dice)).collect();
    let bytes: Vec<u8> = asked.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
    let mut left = depth;
    if conn.try_send(&bytes).is_ok() {
        for (_, shape) in &asked {
            match conn.try_read() {
                Ok(Value::Error(text)) => *drawn.errors.entry(text).or_default() += 1,
                Ok(reply) => {
                    runs(&reply, *shape, &mut session.runs);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if closed(&error) => break,
                Err(error) => {
                    drawn.broken.push(error.to_string());
                    break;
                }
            }
            left -= 1;
        }
    }
    drawn.lost += left;
    left == 0
}
