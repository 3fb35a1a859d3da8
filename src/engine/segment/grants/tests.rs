//! The witness beside a store that loses commits.

use tokio::sync::Semaphore;

use super::super::testing::{Node, definition, range, tag, take, twice, until};
use super::super::{Beside, Config, Rules};
use super::*;
use crate::clock::Clock as _;
use crate::engine::{Demand, Engine};
use crate::ids::{IdRange, push_range};
use crate::store::memory::{self, Memory};
use crate::store::witness::testing::{Fault, FolderWitness, MemoryWitness};
use crate::store::{Order, SegmentStore as _, WitnessMode};

fn store() -> Memory {
    Memory::of_many_nodes(memory::Rules::default())
}

fn node(store: &Memory, witness: &(impl Witness + Clone), mode: WitnessMode) -> Node {
    let witness = Some((Arc::new(witness.clone()) as Arc<dyn Witness>, mode));
    Node::on(store, &Config::default(), Beside { witness, rules: Rules::default() })
}

async fn engine(node: &Node, order: Order) -> Engine {
    node.engine("order", &definition(order, 10)).await
}

/// Stops the tag and gives its tail back, as a node does.
async fn stop(node: &Node, engine: &Engine) -> bool {
    let Engine::Segment(segment) = engine else { panic!("{engine:?}") };
    segment.stop();
    segment.idle().await;
    let Some(tail) = segment.tail() else { return false };
    node.supply.lower_mark(&tail).await && node.store.return_tails(&[tail]).await == Ok(vec![true])
}

#[tokio::test]
async fn the_mark_follows_what_is_published_and_goes_down_with_a_tail() {
    let (store, witness) = (store(), MemoryWitness::default());
    let first = node(&store, &witness, WitnessMode::Required);
    let segment = engine(&first, Order::Node).await;
    assert_eq!(first.take(&segment, Demand::Singles(3)).await, Ok(vec![range(1, 3)]));
    assert_eq!(witness.mark(&tag("order")), Some(10), "seeded by the first grant");
    assert!(stop(&first, &segment).await);
    assert_eq!(witness.mark(&tag("order")), Some(3));
    let second = node(&store, &witness, WitnessMode::Required);
    let segment = engine(&second, Order::Node).await;
    assert_eq!(second.take(&segment, Demand::Singles(3)).await, Ok(vec![range(4, 6)]));
    witness.set(&tag("order"), 500);
    assert!(!stop(&second, &segment).await, "somebody else has moved the mark");
    assert_eq!(store.find(&tag("order")).await.expect("find").expect("a row").max_id, 13);
}

#[tokio::test]
async fn a_store_that_lost_any_number_of_commits_is_repaired_by_a_node_that_knew_nothing() {
    for lost_to in 0..=40 {
        let folder = tempfile::tempdir().expect("a folder");
        let (store, witness) = (store(), FolderWitness::new(folder.path()));
        let (mut issued, mut lost) = (Vec::<IdRange>::new(), false);
        for round in 0..3 {
            // A process that was killed: the next one knows of no range, and the witness outlives it.
            let node = node(&store, &witness, WitnessMode::Required);
            let engine = engine(&node, if lost_to % 2 == 0 { Order::Node } else { Order::Strict }).await;
            for _ in 0..3 {
                issued.extend(node.take(&engine, Demand::Batch(7)).await.expect("ids"));
            }
            match &engine {
                Engine::Segment(segment) => segment.idle().await,
                Engine::Strict(strict) => strict.idle().await,
                Engine::Snowflake(_) => {}
            }
            assert_eq!(node.regressions() > 0, lost, "round {round}, lost to {lost_to}");
            assert_eq!(node.discarded("regression") > 0, lost);
            let row = store.find(&tag("order")).await.expect("find").expect("a row");
            store.rewind(&tag("order"), lost_to.min(row.max_id));
            lost = lost_to < row.max_id;
        }
        assert_eq!(twice(&issued), None, "lost to {lost_to}");
        assert!(issued.windows(2).all(|pair| pair[0].end() <= pair[1].start()), "{issued:?}");
    }
}

#[tokio::test]
async fn a_range_that_another_node_has_overtaken_is_counted_and_no_alarm() {
    let (store, witness) = (store(), MemoryWitness::default());
    let (slow, fast) = (node(&store, &witness, WitnessMode::Required), node(&store, &witness, WitnessMode::Required));
    let (slows, fasts) = (engine(&slow, Order::Strict).await, engine(&fast, Order::Strict).await);
    let gate = Arc::new(Semaphore::new(0));
    witness.plan(Fault::Held(gate.clone()));
    let now = slow.clock.boot();
    let waiting = tokio::spawn(async move { take(&slows, now, Demand::Batch(5)).await });
    until(|| witness.calls() == 1).await;
    assert_eq!(fast.take(&fasts, Demand::Batch(2)).await, Ok(vec![range(6, 7)]));
    gate.add_permits(1);
    assert_eq!(waiting.await.expect("a task"), Ok(vec![range(8, 12)]), "above what ended meanwhile");
    assert_eq!((slow.discarded("race"), slow.regressions(), fast.metrics.discarded.get()), (5, 0, vec![]));
}

#[tokio::test]
async fn an_unknown_answer_of_the_witness_skips_the_range_also_when_the_mark_is_at_its_end() {
    for fault in [Fault::AppliedUnknown, Fault::Fail(Kind::Unknown)] {
        for mode in [WitnessMode::Preferred, WitnessMode::Required] {
            let (store, witness) = (store(), MemoryWitness::default());
            let node = node(&store, &witness, mode);
            let engine = engine(&node, Order::Strict).await;
            witness.plan(Fault::None);
            witness.plan(fault.clone());
            assert_eq!(node.take(&engine, Demand::Batch(5)).await, Ok(vec![range(6, 10)]));
            assert_eq!((node.discarded("unknown"), node.metrics.witness_skipped.get()), (5, 0));
        }
    }
}

#[tokio::test]
async fn without_the_witness_required_stops_and_preferred_goes_on_and_counts() {
    let (store, witness) = (store(), MemoryWitness::default());
    let required = node(&store, &witness, WitnessMode::Required);
    let segment = engine(&required, Order::Node).await;
    required.take(&segment, Demand::Singles(1)).await.expect("an id");
    witness.set_down(true);
    assert_eq!(required.take(&segment, Demand::Singles(9)).await, Ok(vec![range(2, 10)]), "what was published stays");
    let Err(Refusal::Backend(text)) = required.take(&segment, Demand::Singles(1)).await else { panic!("served") };
    assert!(text.contains("segment.witness requires it"), "{text}");
    let asked = store.grants().len();
    required.clock.advance(LAST_PAUSE);
    assert!(required.take(&segment, Demand::Singles(1)).await.is_err());
    assert_eq!(store.grants().len(), asked, "nothing is fetched that could not be published");
    let preferred = node(&store, &witness, WitnessMode::Preferred);
    let strict = preferred.engine("other", &definition(Order::Strict, 10)).await;
    assert_eq!(preferred.take(&strict, Demand::Batch(5)).await, Ok(vec![range(1, 5)]));
    assert_eq!((preferred.metrics.witness_skipped.get(), witness.mark(&tag("other"))), (1, None));
    witness.set_down(false);
    assert_eq!(preferred.take(&strict, Demand::Batch(5)).await, Ok(vec![range(6, 10)]));
    assert_eq!(witness.mark(&tag("other")), Some(10));
    required.clock.advance(LAST_PAUSE);
    assert!(required.take(&segment, Demand::Singles(1)).await.is_ok(), "and without a restart");
    let calls = witness.calls();
    let off = node(&store, &witness, WitnessMode::Off);
    let strict = off.engine("third", &definition(Order::Strict, 10)).await;
    off.take(&strict, Demand::Batch(5)).await.expect("ids");
    assert_eq!(witness.calls(), calls);
}

#[tokio::test]
async fn a_floor_raises_the_mark_and_never_lowers_it() {
    let (store, witness) = (store(), MemoryWitness::default());
    let node = node(&store, &witness, WitnessMode::Required);
    let order = tag("order");
    assert_eq!(node.supply.raise_mark(&order, 50).await, Ok(()));
    assert_eq!(node.supply.raise_mark(&order, 20).await, Ok(()));
    assert_eq!(witness.mark(&order), Some(50));
    for fault in [Fault::None, Fault::AppliedUnknown, Fault::None, Fault::None, Fault::Fail(Kind::Unknown)] {
        witness.plan(fault);
    }
    assert_eq!(node.supply.raise_mark(&order, 60).await, Ok(()), "the next look shows it");
    assert_eq!(node.supply.raise_mark(&order, 70).await, Ok(()));
    assert_eq!(witness.mark(&order), Some(70));
    witness.set_down(true);
    assert!(node.supply.raise_mark(&order, 80).await.is_err());
    let preferred = self::node(&store, &witness, WitnessMode::Preferred);
    assert_eq!(preferred.supply.raise_mark(&order, 80).await, Ok(()));
}

#[tokio::test]
async fn two_nodes_at_once_on_one_store_and_witness_publish_no_id_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, witness) = (store(), FolderWitness::new(folder.path()));
    let nodes = [0, 1].map(|_| node(&store, &witness, WitnessMode::Required));
    let mut tasks = Vec::new();
    for n in 0..6_usize {
        let node = &nodes[n % 2];
        let (engine, now) = (engine(node, Order::Node).await, node.clock.boot());
        tasks.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            for n in 0..40 {
                for range in take(&engine, now, Demand::Batch(n % 9 + 1)).await.expect("ids") {
                    push_range(&mut mine, range);
                }
            }
            mine
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a task"));
    }
    assert_eq!(twice(&all), None);
    assert_eq!(nodes.iter().map(Node::regressions).sum::<u64>(), 0);
}

#[test]
fn retries_are_for_what_may_pass_and_races_cost_none() {
    let mut attempts = Attempts::default();
    let transient = StoreError::new(Kind::Transient, "busy");
    let race = StoreError::new(Kind::Transient, "slow").because(RACE);
    for _ in 0..MOST_RACES {
        assert_eq!(attempts.pause_after(&race, 3), Some(Duration::ZERO));
    }
    for most in [20, 40, 80_u64] {
        let pause = attempts.pause_after(&transient, 3).expect("a retry").as_millis();
        assert!((u128::from(most) / 2..=u128::from(most)).contains(&pause), "{pause} ms of {most}");
    }
    assert_eq!((attempts.pause_after(&transient, 3), attempts.pause_after(&race, 3)), (None, None));
    for kind in [Kind::Permanent, Kind::Missing, Kind::Retired, Kind::Exhausted, Kind::Conflict, Kind::TooMany] {
        assert_eq!(Attempts::default().pause_after(&StoreError::new(kind, "no"), 3), None);
    }
    assert!(Attempts::default().pause_after(&StoreError::new(Kind::Unknown, "cut"), 3).is_some());
}
