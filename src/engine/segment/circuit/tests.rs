//! The breaker over a store in memory that fails as planned.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::super::testing::{Node, definition, range, tag, take, until};
use super::super::{Beside, Config, Supply};
use super::*;
use crate::clock::{Clock as _, SystemClock};
use crate::engine::{Demand, Engine, Refusal};
use crate::store::memory::{Fault, Memory};
use crate::store::{Definition, Order, SegmentStore as _};

fn circuit(node: &Node) -> i64 {
    node.metrics.store("memory").circuit.get()
}

/// A node without retries whose store has failed until the breaker opened.
async fn opened() -> Node {
    let node = Node::on(&Memory::default(), &Config { max_retry: 0, ..Config::default() }, Beside::default());
    for n in 0..THRESHOLD {
        assert_eq!(circuit(&node), 0);
        let engine = node.engine(&format!("tag{n}"), &definition(Order::Node, 10)).await;
        node.store.plan(Fault::Fail([Kind::Transient, Kind::Unknown, Kind::Permanent][n as usize % 3]));
        assert!(matches!(node.take(&engine, Demand::Singles(1)).await, Err(Refusal::Backend(_))));
    }
    assert_eq!((circuit(&node), node.store.grants().len()), (2, 5));
    node
}

fn told_of_the_breaker<T: std::fmt::Debug>(answer: Result<T, Refusal>) {
    let Err(Refusal::Backend(text)) = answer else { panic!("{answer:?}") };
    assert!(text.contains("memory keeps failing") && text.contains("planned: unknown"), "{text}");
}

#[tokio::test]
async fn tags_without_ids_are_told_at_once_while_tags_with_ids_go_on() {
    let node = Node::on(&Memory::default(), &Config { max_retry: 0, ..Config::default() }, Beside::default());
    let full = node.engine("full", &definition(Order::Node, 10)).await;
    node.take(&full, Demand::Singles(1)).await.expect("an id");
    for n in 0..THRESHOLD {
        let engine = node.engine(&format!("tag{n}"), &definition(Order::Strict, 10)).await;
        node.store.plan(Fault::Fail(Kind::Unknown));
        assert!(node.take(&engine, Demand::Singles(1)).await.is_err());
    }
    let asked = node.store.grants().len();
    for order in [Order::Node, Order::Strict] {
        for n in 0..100 {
            let cold = node.engine(&format!("cold.{}.{n}", order.name()), &definition(order, 10)).await;
            told_of_the_breaker(node.take(&cold, Demand::Singles(1)).await);
        }
    }
    assert_eq!(node.take(&full, Demand::Singles(9)).await, Ok(vec![range(2, 10)]));
    told_of_the_breaker(node.take(&full, Demand::Singles(1)).await);
    assert_eq!(node.store.grants().len(), asked, "nobody has asked the store");
}

#[tokio::test]
async fn a_critical_tag_probes_an_open_breaker_once_a_second_and_closes_it() {
    let node = opened().await;
    let critical = |name: &'static str| {
        let definition = Definition { critical: true, ..definition(Order::Node, 10) };
        let node = &node;
        async move { node.engine(name, &definition).await }
    };
    let (one, other) = (critical("one").await, critical("other").await);
    told_of_the_breaker(node.take(&one, Demand::Singles(1)).await);
    node.clock.advance(PROBE_EVERY);
    let gate = Arc::new(Semaphore::new(0));
    node.store.plan(Fault::Held(gate.clone()));
    let (engine, now) = (one.clone(), node.clock.boot());
    let probe = tokio::spawn(async move { take(&engine, now, Demand::Singles(1)).await });
    until(|| node.store.grants().len() == 6).await;
    assert_eq!(circuit(&node), 1, "half-open");
    told_of_the_breaker(node.take(&other, Demand::Singles(1)).await);
    gate.add_permits(1);
    assert_eq!(probe.await.expect("a task"), Ok(vec![range(1, 1)]));
    assert_eq!(circuit(&node), 0);
    node.clock.advance(PROBE_EVERY);
    assert_eq!(node.take(&other, Demand::Singles(1)).await, Ok(vec![range(1, 1)]));
}

#[tokio::test]
async fn the_node_probes_by_itself_and_goes_on_without_any_request() {
    let (store, clock) = (Memory::default(), Arc::new(SystemClock));
    let node = Node::on(&store, &Config::default(), Beside::default());
    let (shared, config) = (Arc::new(store.clone()), Config { max_retry: 0, ..Config::default() });
    let runtime = tokio::runtime::Handle::current();
    let supply = Supply::new(&config, shared, clock.clone(), node.health.clone(), &node.metrics, runtime);
    for n in 0..THRESHOLD {
        let name = tag(&format!("tag{n}"));
        let (row, _) = store.create(&name, &definition(Order::Node, 10), 1, 100).await.expect("create");
        let engine = Engine::Segment(super::super::Segment::new(&row, supply.clone(), Arc::default()));
        store.plan(Fault::Fail(Kind::Transient));
        assert!(take(&engine, clock.boot(), Demand::Singles(1)).await.is_err());
    }
    assert_eq!((circuit(&node), node.health.is_down(Part::Store)), (2, true));
    store.plan(Fault::Fail(Kind::Transient));
    let opened = clock.boot();
    let closed = async {
        while circuit(&node) != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), closed).await.expect("it closes");
    assert!(clock.boot().since(opened) >= PROBE_EVERY, "the first probe has failed");
    until(|| !node.health.is_down(Part::Store)).await;
    until(|| !supply.guarded().watched).await;
}

#[tokio::test]
async fn a_lock_that_another_holds_on_a_row_opens_nothing() {
    let node = opened().await;
    node.clock.advance(PROBE_EVERY);
    node.supply.probe().await;
    assert_eq!(circuit(&node), 0);
    let locked = StoreError::new(Kind::Transient, "the row is locked").because("locked");
    for _ in 0..100 {
        node.supply.admit(Asker::Ordinary).expect("closed").report(Some(&locked));
        drop(node.supply.admit(Asker::Ordinary).expect("closed"));
        node.supply.admit(Asker::Ordinary).expect("closed").report(Some(&StoreError::new(Kind::Missing, "no row")));
    }
    assert_eq!(circuit(&node), 0);
}

#[tokio::test]
async fn a_tag_in_its_pauses_keeps_no_other_from_its_turn() {
    let node = Node::on(&Memory::default(), &Config { max_refills: 1, ..Config::default() }, Beside::default());
    let (bad, good) = (
        node.engine("bad", &definition(Order::Node, 10)).await,
        node.engine("good", &definition(Order::Strict, 10)).await,
    );
    node.store.plan(Fault::Fail(Kind::Transient));
    let (engine, now) = (bad.clone(), node.clock.boot());
    let waiting = tokio::spawn(async move { take(&engine, now, Demand::Singles(1)).await });
    until(|| node.store.grants().len() == 1).await;
    assert_eq!(node.take(&good, Demand::Batch(3)).await, Ok(vec![range(1, 3)]));
    assert_eq!(bad.cause(), Some(Refusal::Backend("planned: transient".into())), "told to who can't wait longer");
    assert_eq!(waiting.await.expect("a task"), Ok(vec![range(1, 1)]));
    assert_eq!((node.store.grants(), bad.cause()), (vec![10, 3, 10], None));
}
