//! Clients of several nodes that write down when they asked, when they were answered, and with which ids.
//!
//! A client changes its node now and then, so that what one node has answered comes before what another one is asked. A
//! request that was sent and never answered is *unknown*: nothing is expected of it. One clock, of this process, times
//! all clients, which is what makes their histories one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::checkers::{self, Op};
use crate::load::{Dice, Run};
use crate::wire::{Conn, Value, closed, request};

/// What was answered, by tag (its place in the list that the clients were given).
#[derive(Debug, Default)]
pub struct History {
    /// The answered requests of each tag.
    pub ops: Vec<Vec<Op>>,
    /// The runs of ids of each tag.
    pub runs: Vec<Vec<Run>>,
    /// How often each error came.
    pub errors: BTreeMap<String, u64>,
    /// Requests without an answer.
    pub unknown: u64,
    /// Replies that were none, and ids that went down within a connection.
    pub broken: Vec<String>,
}

impl History {
    fn of(tags: usize) -> Self {
        Self { ops: vec![Vec::new(); tags], runs: vec![Vec::new(); tags], ..Self::default() }
    }

    fn add(&mut self, other: Self) {
        self.ops.iter_mut().zip(other.ops).for_each(|(all, more)| all.extend(more));
        self.runs.iter_mut().zip(other.runs).for_each(|(all, more)| all.extend(more));
        other.errors.into_iter().for_each(|(text, count)| *self.errors.entry(text).or_default() += count);
        self.unknown += other.unknown;
        self.broken.extend(other.broken);
    }

    /// How many requests were answered with ids.
    pub fn answered(&self) -> usize {
        self.ops.iter().map(Vec::len).sum()
    }

    /// No id of a tag twice, ids going up in each connection and in real time on each node, nothing but ids and errors
    /// with one of `prefixes`, every tag and every one of `nodes` nodes at work. Returns how many ids there were.
    pub fn verdict(&mut self, nodes: usize, prefixes: &[&str]) -> u64 {
        assert!(self.broken.is_empty(), "{} of these: {:?}", self.broken.len(), self.broken.first());
        for (text, count) in &self.errors {
            let known = text.split_once(' ').is_some_and(|(prefix, _)| prefixes.contains(&prefix));
            assert!(known, "{count} times {text:?}; only {prefixes:?} may come here");
        }
        let ids = self
            .runs
            .iter_mut()
            .enumerate()
            .map(|(tag, runs)| checkers::distinct(runs).unwrap_or_else(|text| panic!("tag {tag}: {text}")));
        let ids = ids.sum();
        for (tag, ops) in self.ops.iter().enumerate() {
            assert!(!ops.is_empty(), "tag {tag} has no ids");
            checkers::order_of_each_node(ops).unwrap_or_else(|text| panic!("tag {tag}: {text}"));
        }
        for node in 0..nodes {
            assert!(self.ops.iter().flatten().any(|op| op.node == node), "node {node} has served nobody");
        }
        println!("{} requests, {ids} ids, {} unknown, errors: {:?}", self.answered(), self.unknown, self.errors);
        ids
    }

    /// What [`checkers::strict`] says of each tag in `tags`.
    pub fn strict(&self, tags: impl Iterator<Item = usize>) -> Result<u64, String> {
        tags.map(|tag| checkers::strict(&self.ops[tag]).map_err(|text| format!("tag {tag}: {text}"))).sum()
    }
}

/// What the clients share.
struct Task {
    nodes: Vec<SocketAddr>,
    tags: Vec<String>,
    depth: u64,
    clock: Instant,
    stop: AtomicBool,
    answered: AtomicU64,
}

/// Clients at work.
pub struct Clients {
    task: Arc<Task>,
    threads: Vec<JoinHandle<History>>,
}

/// A client asks this often at most before it goes to another node.
const STAY: u64 = 50;

impl Clients {
    /// Starts `count` clients, each with one connection at a time to one of `nodes` and pipelines of up to `depth`
    /// requests for any of `tags`.
    pub fn start(nodes: &[SocketAddr], tags: &[String], count: usize, depth: u64, dice: &mut Dice) -> Self {
        let task = Arc::new(Task {
            nodes: nodes.to_vec(),
            tags: tags.to_vec(),
            depth,
            clock: Instant::now(),
            stop: AtomicBool::default(),
            answered: AtomicU64::default(),
        });
        let client = |_| {
            let (task, dice) = (Arc::clone(&task), dice.split());
            std::thread::spawn(move || {
                Client { history: History::of(task.tags.len()), task, dice, last: BTreeMap::new() }.run()
            })
        };
        let threads = (0..count).map(client).collect();
        Self { task, threads }
    }

    /// How many requests have been answered with ids so far.
    pub fn answered(&self) -> u64 {
        self.task.answered.load(Ordering::Relaxed)
    }

    /// Stops the clients and returns what all of them have seen.
    pub fn finish(self) -> History {
        self.task.stop.store(true, Ordering::Relaxed);
        let mut all = History::of(self.task.tags.len());
        self.threads.into_iter().for_each(|thread| all.add(thread.join().unwrap()));
        all
    }
}

struct Client {
    task: Arc<Task>,
    dice: Dice,
    history: History,
    /// The largest id of each tag within this connection.
    last: BTreeMap<usize, i64>,
}

/// How a reply tells its ids.
#[derive(Clone, Copy)]
enum Shape {
    One,
    Last(i64),
    Each,
    Ranges,
}

impl Client {
    fn run(mut self) -> History {
        while !self.task.stop.load(Ordering::Relaxed) {
            let node = usize::try_from(self.dice.below(self.task.nodes.len() as u64)).unwrap();
            let Ok(mut conn) = Conn::try_connect(self.task.nodes[node]) else {
                std::thread::sleep(Duration::from_millis(2)); // until some node is back
                continue;
            };
            self.last.clear();
            for _ in 0..=self.dice.below(STAY) {
                if self.task.stop.load(Ordering::Relaxed) || !self.pipeline(node, &mut conn) {
                    break;
                }
            }
        }
        self.history
    }

    /// One pipeline; false once the connection is gone.
    fn pipeline(&mut self, node: usize, conn: &mut Conn) -> bool {
        let mut bytes = Vec::new();
        let asked: Vec<(usize, Shape)> = (0..=self.dice.below(self.task.depth)).map(|_| self.ask(&mut bytes)).collect();
        let invoked = self.now();
        let mut left = asked.len();
        if conn.try_send(&bytes).is_ok() {
            for (tag, shape) in asked {
                match conn.try_read() {
                    Ok(Value::Error(text)) => *self.history.errors.entry(text).or_default() += 1,
                    Ok(reply) => self.note(node, tag, invoked, &runs(&reply, shape)),
                    Err(error) if closed(&error) => break,
                    Err(error) => {
                        self.history.broken.push(error.to_string());
                        break;
                    }
                }
                left -= 1;
            }
        }
        self.history.unknown += left as u64;
        left == 0
    }

    fn ask(&mut self, bytes: &mut Vec<u8>) -> (usize, Shape) {
        let tag = usize::try_from(self.dice.below(self.task.tags.len() as u64)).unwrap();
        let name = self.task.tags[tag].as_str();
        let (words, shape): (&[&str], _) = match self.dice.below(20) {
            0 => (&["IDMGET", name, "7"], Shape::Each),
            1 => (&["IDRANGE", name, "30"], Shape::Ranges),
            2 => (&["INCRBY", name, "5"], Shape::Last(5)),
            3 => (&["INCR", name], Shape::One),
            _ => (&["IDGET", name], Shape::One),
        };
        bytes.extend(request(words));
        (tag, shape)
    }

    fn note(&mut self, node: usize, tag: usize, invoked: u64, runs: &[Run]) {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            self.history.broken.push("a reply without ids".into());
            return;
        };
        let op = Op { invoked, returned: self.now(), first: first.0, last: last.1, node };
        let before = self.last.insert(tag, op.last);
        if before.is_some_and(|before| before >= op.first) || runs.windows(2).any(|pair| pair[0].1 >= pair[1].0) {
            self.history.broken.push(format!("not increasing within a connection: {before:?}, then {runs:?}"));
        }
        self.history.ops[tag].push(op);
        self.history.runs[tag].extend(runs);
        self.task.answered.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        u64::try_from(self.task.clock.elapsed().as_nanos()).unwrap()
    }
}

fn runs(reply: &Value, shape: Shape) -> Vec<Run> {
    match shape {
        Shape::One => vec![(reply.int(), reply.int())],
        Shape::Last(n) => vec![(reply.int() - n + 1, reply.int())],
        Shape::Each => reply.ints().iter().map(|id| (*id, *id)).collect(),
        Shape::Ranges => reply.ints().chunks(2).map(|pair| (pair[0], pair[1])).collect(),
    }
}
