//! Hand-out one by one, and the order over all nodes against a model of the store.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use super::*;
use crate::engine::segment::buffer::{Buffer, Taken};
use crate::ids::MAX_ID;
use crate::store::Grant;

const NOW: Boot = Boot(1_000_000_000);

fn range(first: u64, last: u64) -> IdRange {
    IdRange::new(first, last + 1).expect("a range")
}

fn gather() -> Gather<u32> {
    Gather::new(0, Rules::default())
}

fn backend() -> Refusal {
    Refusal::Backend("no".into())
}

fn ids(first: u64, last: u64) -> Given {
    Given::Ids(range(first, last))
}

#[test]
fn one_statement_serves_all_who_came_before_it_in_the_order_of_arrival() {
    let mut gather = gather();
    assert_eq!(gather.arrive(Demand::Singles(3), 1, NOW), Ok(true), "the first one starts the commits");
    assert_eq!(gather.arrive(Demand::Batch(5), 2, NOW), Ok(false));
    assert_eq!(gather.begin(|_| false), Some(8));
    assert_eq!(gather.arrive(Demand::Consecutive(7), 3, NOW), Ok(false), "too late for this one");
    let settled = gather.settle(range(11, 18), MAX_ID).expect("in order");
    assert_eq!(settled, Settled { given: vec![(1, ids(11, 13)), (2, ids(14, 18))], unused: None });
    assert_eq!((gather.begin(|_| false), gather.last_batch()), (Some(7), 7));
    let settled = gather.settle(range(21, 27), MAX_ID).expect("in order");
    assert_eq!(settled.given, [(3, ids(21, 27))]);
    assert!(gather.is_committing());
    assert_eq!((gather.begin(|_| false), gather.is_committing(), gather.highest()), (None, false, 27));
    assert_eq!(gather.arrive(Demand::Singles(1), 4, NOW), Ok(true), "they start again");
}

#[test]
fn who_is_gone_is_not_asked_for_and_a_failed_statement_asks_for_the_others_again() {
    let mut gather = gather();
    for n in 1..=3 {
        gather.arrive(Demand::Batch(10), n, NOW).expect("it waits");
    }
    assert_eq!(gather.begin(|&n| n == 2), Some(20));
    gather.arrive(Demand::Singles(1), 4, NOW).expect("it waits");
    assert_eq!(gather.begin(|&n| n == 1), Some(11), "the statement failed: a new one for all who are here");
    let settled = gather.settle(range(1, 11), MAX_ID).expect("in order");
    assert_eq!(settled.given, [(3, ids(1, 10)), (4, ids(11, 11))]);
}

#[test]
fn near_max_who_fits_is_served_the_others_are_told_and_the_end_is_unused() {
    let mut gather = gather();
    for (n, demand) in [Demand::Batch(3), Demand::Batch(6), Demand::Consecutive(1), Demand::Batch(9)].iter().enumerate()
    {
        gather.arrive(*demand, u32::try_from(n).expect("small"), NOW).expect("it waits");
    }
    assert_eq!(gather.begin(|_| false), Some(19));
    let settled = gather.settle(range(92, 100), 100).expect("in order");
    assert_eq!(settled.unused, None);
    assert_eq!(settled.given[1], (1, ids(95, 100)));
    assert!(matches!(settled.given[2].1, Given::Refused(Refusal::AtMax { max: 100, left: 0 })));
    let mut gather = self::gather();
    gather.arrive(Demand::Batch(50), 1, NOW).expect("it waits");
    gather.arrive(Demand::Singles(2), 2, NOW).expect("it waits");
    gather.begin(|_| false);
    let settled = gather.settle(range(92, 100), 100).expect("in order");
    assert_eq!(settled.given, [(1, Given::Refused(Refusal::AtMax { max: 100, left: 9 })), (2, ids(92, 93))]);
    assert_eq!((settled.unused, gather.highest()), (Some(range(94, 100)), 93), "they may come again");
    gather.arrive(Demand::Singles(20), 3, NOW).expect("it waits");
    gather.begin(|_| false);
    assert_eq!(gather.settle(range(94, 100), 100).expect("in order").given, [(3, ids(94, 100))], "the first ones");
}

#[test]
fn a_floor_that_comes_during_the_statement_keeps_who_lost_ids_to_it_for_the_next_one() {
    let mut gather = gather();
    for n in 1..=2 {
        gather.arrive(Demand::Batch(5), n, NOW).expect("it waits");
    }
    gather.begin(|_| false);
    gather.raise_floor(4);
    let settled = gather.settle(range(1, 10), MAX_ID).expect("in order");
    assert_eq!(settled.given, [(1, ids(5, 9))]);
    assert_eq!((settled.unused, gather.drain_lost()), (Some(range(10, 10)), vec![("floor", 4)]));
    assert_eq!(gather.begin(|_| false), Some(5));
}

#[test]
fn a_closed_tag_and_one_in_trouble_refuse_and_give_back_who_waits() {
    let mut gather = gather();
    gather.arrive(Demand::Singles(1), 1, NOW).expect("it waits");
    gather.begin(|_| false);
    gather.arrive(Demand::Singles(1), 2, NOW).expect("it waits");
    let until = NOW.plus(std::time::Duration::from_millis(1));
    assert_eq!(gather.fail(backend(), until), [1, 2]);
    assert_eq!(gather.arrive(Demand::Singles(1), 3, NOW), Err(backend()));
    assert_eq!(gather.arrive(Demand::Singles(1), 3, until), Ok(true));
    gather.begin(|_| false);
    assert_eq!(gather.close(Refusal::Retired), [3]);
    assert_eq!(gather.settle(range(1, 1), MAX_ID).expect("in order").given, []);
    assert_eq!((gather.drain_lost(), gather.begin(|_| false)), (vec![("stop", 1)], None));
    assert_eq!(gather.arrive(Demand::Singles(1), 4, until), Err(Refusal::Retired));
}

#[test]
fn a_range_below_what_was_received_is_dropped_and_all_stay() {
    let mut gather = gather();
    gather.fence(100);
    gather.arrive(Demand::Singles(2), 1, NOW).expect("it waits");
    gather.begin(|_| false);
    assert_eq!(gather.settle(range(100, 101), MAX_ID), Err(101));
    assert_eq!(gather.drain_lost(), [("regression", 2)]);
    assert_eq!(gather.begin(|_| false), Some(2));
    assert_eq!(gather.settle(range(101, 102), MAX_ID).expect("in order").given, [(1, ids(101, 102))]);
}

/// What happens on one of two nodes.
#[derive(Clone, Copy, Debug)]
enum Event {
    Arrive(Demand),
    /// The statement is sent, or sent again.
    Begin,
    /// It is applied by the store.
    Commit,
    /// Its answer comes.
    Answer,
    /// It has failed, though it may be applied.
    Cut,
    /// The first who waits leaves.
    Leave,
    Floor(u64),
}

/// What happens, and on which node.
type Step = (usize, Event);

fn events() -> impl Strategy<Value = Vec<Step>> {
    let demand = (1..6_u64)
        .prop_flat_map(|n| prop_oneof![Just(Demand::Singles(n)), Just(Demand::Batch(n)), Just(Demand::Consecutive(n))]);
    let event = prop_oneof![
        8 => demand.prop_map(Event::Arrive), 5 => Just(Event::Begin), 6 => Just(Event::Commit), 6 => Just(Event::Answer),
        1 => Just(Event::Cut), 1 => Just(Event::Leave), 1 => (0..9_u64).prop_map(Event::Floor),
    ];
    proptest::collection::vec((0..2_usize, event), 1..120)
}

/// A request that has ended: when it began and ended, and its ids.
#[derive(Clone, Copy, Debug)]
struct Ended {
    invoked: usize,
    responded: usize,
    ids: IdRange,
}

/// Whether the history is one of taking ever larger numbers: all ids are distinct, and who began after another had ended
/// has the larger ones.
fn linearizable(history: &[Ended]) -> Result<(), String> {
    let mut by_ids: Vec<IdRange> = history.iter().map(|ended| ended.ids).collect();
    by_ids.sort_unstable();
    if let Some(pair) = by_ids.windows(2).find(|pair| pair[0].end() > pair[1].start()) {
        return Err(format!("twice: {pair:?}"));
    }
    let (mut by_begin, mut by_end) = (history.to_vec(), history.to_vec());
    by_begin.sort_by_key(|ended| ended.invoked);
    by_end.sort_by_key(|ended| ended.responded);
    let (mut done, mut highest) = (by_end.iter().peekable(), 0);
    for ended in by_begin {
        while let Some(earlier) = done.next_if(|earlier| earlier.responded < ended.invoked) {
            highest = highest.max(earlier.ids.last());
        }
        if ended.ids.start() <= highest {
            return Err(format!("{ended:?} began after {highest} was there"));
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Node {
    gather: Gather<usize>,
    statement: Option<u64>,
    granted: Option<IdRange>,
    gone: Vec<usize>,
}

/// Two nodes on one store; the recipient of a request is the time of its arrival.
fn history(events: &[Step]) -> Vec<Ended> {
    let node = || Node { gather: gather_of(), statement: None, granted: None, gone: Vec::new() };
    let (mut nodes, mut max_id, mut history) = ([node(), node()], 0_u64, Vec::new());
    for (time, &(which, event)) in events.iter().enumerate() {
        let node = &mut nodes[which];
        match event {
            Event::Arrive(demand) => drop(node.gather.arrive(demand, time, NOW)),
            Event::Begin if node.statement.is_none() && node.gather.is_committing() => {
                let gone = std::mem::take(&mut node.gone);
                node.statement = node.gather.begin(|waiter| gone.contains(waiter));
            }
            Event::Commit if node.granted.is_none() => {
                if let Some(count) = node.statement {
                    node.granted = Some(range(max_id + 1, max_id + count));
                    max_id += count;
                }
            }
            Event::Answer => {
                let Some(granted) = node.granted.take() else { continue };
                node.statement = None;
                for (invoked, given) in node.gather.settle(granted, MAX_ID).expect("the store only grows").given {
                    if let Given::Ids(ids) = given {
                        history.push(Ended { invoked, responded: time, ids });
                    }
                }
            }
            Event::Cut => (node.statement, node.granted) = (None, None),
            Event::Leave => node.gone.extend(node.gather.gathered.first().map(|waiter| waiter.recipient)),
            Event::Floor(n) => {
                max_id += n;
                node.gather.raise_floor(max_id);
            }
            Event::Begin | Event::Commit => {}
        }
    }
    history
}

fn gather_of() -> Gather<usize> {
    Gather::new(0, Rules::default())
}

/// The same requests on nodes that fetch ahead, as `ORDER node` does.
fn history_of_buffers(events: &[Step]) -> Vec<Ended> {
    let mut buffers = [Buffer::new(0, 800, Rules::default()), Buffer::new(0, 800, Rules::default())];
    let (mut max_id, mut history) = (0_u64, Vec::new());
    for (time, &(which, event)) in events.iter().enumerate() {
        let Event::Arrive(demand) = event else { continue };
        let (buffer, mut out) = (&mut buffers[which], Vec::new());
        while buffer.take(Demand::Batch(demand.count()), NOW, &mut out) != Taken::All {
            let range = range(max_id + 1, max_id + 20);
            max_id += 20;
            buffer.install(Grant { range, nonce: 1 }, NOW).expect("the store only grows");
        }
        history.extend(out.iter().map(|&ids| Ended { invoked: 2 * time, responded: 2 * time + 1, ids }));
    }
    history
}

fn run(of: fn(&[Step]) -> Vec<Ended>) -> Result<(), TestError<Vec<Step>>> {
    let config = Config { cases: 3000, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
        .run(&events(), |events| linearizable(&of(&events)).map_err(TestCaseError::fail))
}

#[test]
fn over_two_nodes_who_begins_after_another_has_ended_gets_the_larger_ids() {
    assert_eq!(run(history).map_err(|error| error.to_string()), Ok(()));
}

#[test]
fn the_checker_finds_nodes_that_fetch_ahead() {
    assert!(matches!(run(history_of_buffers), Err(TestError::Fail(..))));
}
