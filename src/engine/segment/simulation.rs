//! Two nodes on one store through any sequence of faults, checked for what must never happen: an id twice, or, on a strict
//! tag, a smaller id later.
//!
//! The engines are the real ones with their tasks; only the store, the witness and time are models. A run with a bug
//! planted shows that the checks find it.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, RngAlgorithm, TestError, TestRng, TestRunner};

use super::testing::{Node, definition, tag, twice};
use super::{Beside, Config, Rules, buffer, outcome};
use crate::engine::{Demand, Engine};
use crate::ids::{IdRange, total};
use crate::store::memory::{self, Fault, Memory};
use crate::store::witness::testing::{Fault as WitnessFault, MemoryWitness};
use crate::store::{Kind, Order, SegmentStore, Tail, WitnessMode};

#[derive(Clone, Copy, Debug)]
enum Event {
    Take(usize, Order, Demand),
    /// The next statement of anybody fails so.
    Store(StoreFault),
    /// The next call of the witness fails so.
    Witness(StoreFault),
    /// The row is set to any value: the store has lost commits, or lies.
    Rewind(Order, u64),
    /// The node is killed, or stopped so that its tail goes back, and started again.
    Restart(usize, bool),
    /// A copy of the last tail return is applied.
    TailCopy,
    Floor(Order, u64),
}

#[derive(Clone, Copy, Debug)]
enum StoreFault {
    Busy,
    AppliedUnknown,
    LostUnknown,
}

thread_local! {
    static ISSUED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// What may happen in a run.
#[derive(Clone, Copy, Debug, Default)]
struct World {
    rules: Rules,
    ignore_nonce: bool,
    witness: bool,
    rewinds: bool,
    nodes: Nodes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Nodes {
    /// Two, which are started again and again.
    #[default]
    Two,
    /// One, which is never started again.
    One,
}

fn events(world: World) -> impl Strategy<Value = Vec<Event>> {
    let nodes = if world.nodes == Nodes::One { 1 } else { 2_usize };
    let order = || prop_oneof![Just(Order::Node), Just(Order::Strict)];
    let demand = (1..12_u64)
        .prop_flat_map(|n| prop_oneof![Just(Demand::Singles(n)), Just(Demand::Batch(n)), Just(Demand::Consecutive(n))]);
    let fault = || prop_oneof![Just(StoreFault::Busy), Just(StoreFault::AppliedUnknown), Just(StoreFault::LostUnknown)];
    let event = prop_oneof![
        30 => (0..nodes, order(), demand).prop_map(|(node, order, demand)| Event::Take(node, order, demand)),
        4 => fault().prop_map(Event::Store),
        4 => fault().prop_map(Event::Witness),
        4 => (order(), 0..300_u64).prop_map(|(order, max_id)| Event::Rewind(order, max_id)),
        4 => (0..nodes, any::<bool>()).prop_map(|(node, clean)| Event::Restart(node, clean)),
        2 => Just(Event::TailCopy),
        1 => (order(), 0..30_u64).prop_map(|(order, n)| Event::Floor(order, n)),
    ];
    let happens = move |event: &Event| match event {
        Event::Witness(_) => world.witness,
        Event::Rewind(..) => world.rewinds,
        Event::Restart(..) => world.nodes == Nodes::Two,
        _ => true,
    };
    proptest::collection::vec(event, 1..80).prop_map(move |events| events.into_iter().filter(happens).collect())
}

fn name(order: Order) -> &'static str {
    order.name()
}

/// A process and its two tags.
struct Process {
    node: Node,
    engines: [Engine; 2],
}

impl Process {
    async fn start(store: &Memory, beside: Beside) -> Self {
        // Without retries, which would take time; a request that is refused is made again by the next event.
        let config = Config { max_retry: 0, ..Config::default() };
        let node = Node::on(store, &config, beside);
        let by_node = node.engine(name(Order::Node), &definition(Order::Node, 10)).await;
        let strict = node.engine(name(Order::Strict), &definition(Order::Strict, 10)).await;
        Self { node, engines: [by_node, strict] }
    }

    fn engine(&self, order: Order) -> &Engine {
        &self.engines[usize::from(order == Order::Strict)]
    }

    /// Ends it; the tail goes back when it is stopped in a clean way.
    async fn end(self, clean: bool) -> Option<Tail> {
        let [Engine::Segment(segment), Engine::Strict(strict)] = &self.engines else { return None };
        if !clean {
            return None;
        }
        segment.stop();
        strict.stop();
        segment.idle().await;
        strict.idle().await;
        let tail = segment.tail()?;
        if self.node.supply.lower_mark(&tail).await {
            let _ = self.node.store.return_tails(std::slice::from_ref(&tail)).await;
            return Some(tail);
        }
        None
    }
}

struct Run {
    world: World,
    store: Memory,
    witness: MemoryWitness,
    processes: Vec<Process>,
    issued: [Vec<IdRange>; 2],
    tail: Option<Tail>,
}

impl Run {
    async fn new(world: World) -> Self {
        let store = Memory::of_many_nodes(memory::Rules { ignore_nonce: world.ignore_nonce });
        let mut run = Self {
            world,
            store,
            witness: MemoryWitness::default(),
            processes: Vec::new(),
            issued: [Vec::new(), Vec::new()],
            tail: None,
        };
        for _ in 0..2 {
            let process = run.start().await;
            run.processes.push(process);
        }
        run
    }

    async fn start(&self) -> Process {
        let witness = self.world.witness.then(|| (Arc::new(self.witness.clone()) as _, WitnessMode::Required));
        Process::start(&self.store, Beside { witness, rules: self.world.rules }).await
    }

    async fn event(&mut self, event: Event) -> Result<(), String> {
        for process in &self.processes {
            // Pauses after failures are over by the next event, and a breaker that is open probes.
            process.node.clock.advance(Duration::from_secs(2));
            process.node.supply.probe().await;
        }
        match event {
            Event::Take(node, order, demand) => return self.take(node, order, demand).await,
            Event::Store(StoreFault::Busy) => self.store.plan(Fault::Fail(Kind::Transient)),
            Event::Store(StoreFault::AppliedUnknown) => self.store.plan(Fault::AppliedUnknown),
            Event::Store(StoreFault::LostUnknown) => self.store.plan(Fault::Fail(Kind::Unknown)),
            Event::Witness(StoreFault::Busy) => self.witness.plan(WitnessFault::Fail(Kind::Transient)),
            Event::Witness(StoreFault::AppliedUnknown) => self.witness.plan(WitnessFault::AppliedUnknown),
            Event::Witness(StoreFault::LostUnknown) => self.witness.plan(WitnessFault::Fail(Kind::Unknown)),
            Event::Rewind(order, max_id) => self.store.rewind(&tag(name(order)), max_id),
            Event::Restart(node, clean) => {
                let fresh = self.start().await;
                let old = std::mem::replace(&mut self.processes[node], fresh);
                self.tail = old.end(clean).await.or(self.tail.take());
            }
            Event::TailCopy => {
                if let Some(tail) = &self.tail {
                    let _ = self.store.return_tails(std::slice::from_ref(tail)).await;
                }
            }
            Event::Floor(order, n) => {
                let row = self.store.find(&tag(name(order))).await.ok().flatten();
                let floor = row.map_or(0, |row| row.max_id) + n;
                let _ = self.store.raise_floor(&tag(name(order)), floor).await;
                for process in &self.processes {
                    match process.engine(order) {
                        Engine::Segment(segment) => segment.floor(floor),
                        Engine::Strict(strict) => strict.floor(floor),
                        Engine::Snowflake(_) => {}
                    }
                }
            }
        }
        Ok(())
    }

    async fn take(&mut self, node: usize, order: Order, demand: Demand) -> Result<(), String> {
        let process = &self.processes[node];
        let Ok(ids) = process.node.take(process.engine(order), demand).await else { return Ok(()) };
        let issued = &mut self.issued[usize::from(order == Order::Strict)];
        if order == Order::Strict
            && let (Some(before), Some(first)) = (issued.last(), ids.first())
            && first.start() < before.end()
        {
            return Err(format!("{first:?} after {before:?}"));
        }
        ISSUED.with(|count| count.set(count.get() + total(&ids)));
        issued.extend(ids);
        twice(issued).map_or(Ok(()), |(one, other)| Err(format!("{one:?} and {other:?}")))
    }
}

fn check(world: World, events: &[Event]) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let mut run = Run::new(world).await;
        for event in events {
            run.event(*event).await?;
        }
        Ok(())
    })
}

/// How many ids were issued in the runs of this thread.
fn issued() -> u64 {
    ISSUED.with(std::cell::Cell::get)
}

fn run(world: World) -> Result<(), TestError<Vec<Event>>> {
    let config = Runs { cases: 400, failure_persistence: None, max_shrink_iters: 0, ..Runs::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
        .run(&events(world), |events| check(world, &events).map_err(TestCaseError::fail))
}

fn passes(world: World) {
    assert_eq!(run(world).map_err(|error| error.to_string()), Ok(()), "{world:?}");
    assert!(issued() > 10_000, "only {} ids were issued: the check saw next to nothing", issued());
}

fn finds(bug: &str, world: World) {
    assert!(matches!(run(world), Err(TestError::Fail(..))), "{bug} was not found");
}

#[test]
fn two_nodes_never_issue_an_id_twice_whatever_the_store_answers() {
    passes(World::default());
}

#[test]
fn one_node_never_issues_an_id_twice_even_if_the_store_returns_arbitrary_values() {
    passes(World { nodes: Nodes::One, rewinds: true, ..World::default() });
}

#[test]
fn with_a_witness_published_ranges_are_disjoint_and_increasing_even_if_the_store_returns_arbitrary_values() {
    passes(World { witness: true, rewinds: true, ..World::default() });
}

#[test]
fn without_a_witness_a_store_that_returns_arbitrary_values_makes_two_nodes_repeat_ids() {
    finds("the missing witness", World { rewinds: true, ..World::default() });
}

#[test]
fn the_simulation_finds_ranges_that_are_used_before_the_answer() {
    let outcome = outcome::Rules { publish_early: true, ..outcome::Rules::default() };
    finds("B4", World { rules: Rules { outcome, ..Rules::default() }, ..World::default() });
}

#[test]
fn the_simulation_finds_unknown_grants_that_are_taken_for_good_ones() {
    let outcome = outcome::Rules { reuse_unknown: true, ..outcome::Rules::default() };
    finds("B5", World { rules: Rules { outcome, ..Rules::default() }, ..World::default() });
}

#[test]
fn the_simulation_finds_a_late_range_that_replaces_a_newer_one() {
    let buffer = buffer::Rules { late_replaces: true, ..buffer::Rules::default() };
    let rules = Rules { buffer, ..Rules::default() };
    finds("B12", World { rules, nodes: Nodes::One, rewinds: true, ..World::default() });
}

#[test]
fn the_simulation_finds_lower_ranges_that_are_accepted() {
    let buffer = buffer::Rules { accept_lower: true, ..buffer::Rules::default() };
    let rules = Rules { buffer, ..Rules::default() };
    finds("B17", World { rules, nodes: Nodes::One, rewinds: true, ..World::default() });
}

#[test]
fn the_simulation_finds_a_tail_that_goes_back_without_its_nonce() {
    finds("B21", World { ignore_nonce: true, ..World::default() });
}
