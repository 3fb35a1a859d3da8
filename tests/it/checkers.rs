//! What must hold for the ids that clients have drawn, checked over all of them.
//!
//! Order over several connections is judged by real time: where one request had its reply before another one was sent,
//! its ids are the smaller ones. That is linearizability for "take a larger number", and it is decided by sorting: walk
//! through the requests as they were sent, with the largest id of all that had been answered by then. No search, O(n
//! log n).

use std::collections::BTreeMap;

use crate::load::{Drawn, Run};

/// No id came twice, over all clients, connections and restarts. Returns how many ids there were.
pub fn unique(drawn: &[Drawn]) -> u64 {
    let mut runs: Vec<Run> =
        drawn.iter().flat_map(|one| &one.sessions).flat_map(|session| &session.runs).copied().collect();
    distinct(&mut runs).unwrap_or_else(|text| panic!("{text}"))
}

/// No id is in two of `runs`, which are sorted by this. Returns how many ids there are, or which came twice.
pub fn distinct(runs: &mut [Run]) -> Result<u64, String> {
    runs.sort_unstable();
    if let Some([one, other]) = runs.array_windows().find(|[one, other]| one.1 >= other.0) {
        return Err(format!("ids came twice: {one:?} and {other:?} overlap"));
    }
    if let Some(run) = runs.first().filter(|run| run.0 < 1) {
        return Err(format!("an id below 1: {run:?}"));
    }
    Ok(runs.iter().map(|(first, last)| u64::try_from(last - first + 1).expect("ends before it starts")).sum())
}

/// One request for ids of one tag that was answered with ids. A request without an answer has no place in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// When it was sent, in nanoseconds of the history.
    pub invoked: u64,
    /// When its reply had been read.
    pub returned: u64,
    /// Its smallest id.
    pub first: i64,
    /// Its largest id.
    pub last: i64,
    /// Which node was asked, over all its restarts.
    pub node: usize,
}

/// The ids of one tag increase in real time over all nodes. Returns how many pairs of neighbours were judged by it, or
/// what is wrong.
pub fn strict(ops: &[Op]) -> Result<u64, String> {
    let mut sent: Vec<&Op> = ops.iter().collect();
    sent.sort_unstable_by_key(|op| op.invoked);
    let mut answered: Vec<&Op> = ops.iter().collect();
    answered.sort_unstable_by_key(|op| op.returned);
    let (mut answered, mut largest, mut judged) = (answered.into_iter().peekable(), None::<&Op>, 0);
    for op in sent {
        while let Some(before) = answered.next_if(|before| before.returned < op.invoked) {
            largest = largest.filter(|largest| largest.last > before.last).or(Some(before));
        }
        let Some(before) = largest else { continue };
        judged += 1;
        if before.last >= op.first {
            return Err(format!("not increasing in real time: {before:?} was answered before {op:?} was sent"));
        }
    }
    Ok(judged)
}

/// The ids of one tag increase in real time on each node, also over its restarts. Returns as [`strict`].
pub fn order_of_each_node(ops: &[Op]) -> Result<u64, String> {
    let mut nodes = BTreeMap::<usize, Vec<Op>>::new();
    for op in ops {
        nodes.entry(op.node).or_default().push(*op);
    }
    nodes.values().map(|ops| strict(ops)).sum()
}

/// Ids increase within each connection.
pub fn increasing_within_connections(drawn: &[Drawn]) {
    for session in drawn.iter().flat_map(|one| &one.sessions) {
        increasing(&session.runs, "within a connection");
    }
}

/// Ids increase within each client, also from one connection to the next and so over restarts of the server.
pub fn increasing_over_restarts(drawn: &[Drawn]) {
    for one in drawn {
        let runs: Vec<Run> = one.sessions.iter().flat_map(|session| &session.runs).copied().collect();
        increasing(&runs, "over the restarts");
    }
}

fn increasing(runs: &[Run], where_: &str) {
    for (at, pair) in runs.windows(2).enumerate() {
        assert!(pair[0].1 < pair[1].0, "not increasing {where_}: {:?} then {:?} (request {at})", pair[0], pair[1]);
    }
}

/// Nothing but ids and errors with one of `prefixes`, each one line of `PREFIX text`.
pub fn only_errors(drawn: &[Drawn], prefixes: &[&str]) {
    for one in drawn {
        assert!(one.broken.is_empty(), "broken replies: {:?}", one.broken);
        for (text, count) in &one.errors {
            let prefix = text.split_once(' ').map(|(prefix, _)| prefix);
            let known = prefix.is_some_and(|prefix| prefixes.contains(&prefix));
            assert!(known, "{count} times {text:?}; only {prefixes:?} may come here");
        }
    }
}

/// A checker that finds nothing proves nothing: each is shown what it must find.
mod found {
    use super::{
        Op, distinct, increasing_over_restarts, increasing_within_connections, only_errors, order_of_each_node, strict,
        unique,
    };
    use crate::load::{Drawn, Run, Session};

    fn drawn(sessions: &[&[Run]]) -> Vec<Drawn> {
        let sessions = sessions.iter().map(|runs| Session { runs: runs.to_vec() }).collect();
        vec![Drawn { sessions, ..Drawn::default() }]
    }

    #[test]
    fn good_ids_pass() {
        let good = drawn(&[&[(1, 1), (2, 5)], &[(7, 7)]]);
        assert_eq!(unique(&good), 6);
        increasing_within_connections(&good);
        increasing_over_restarts(&good);
        only_errors(&good, &[]);
    }

    #[test]
    #[should_panic(expected = "ids came twice")]
    fn an_id_that_came_again_after_a_restart() {
        unique(&drawn(&[&[(1, 1), (2, 5)], &[(6, 6), (5, 5)]]));
    }

    #[test]
    #[should_panic(expected = "not increasing within a connection")]
    fn an_order_that_was_broken_within_a_connection() {
        increasing_within_connections(&drawn(&[&[(2, 2), (1, 1)]]));
    }

    #[test]
    #[should_panic(expected = "not increasing over the restarts")]
    fn an_order_that_was_broken_by_a_restart() {
        increasing_over_restarts(&drawn(&[&[(5, 5)], &[(1, 1)]]));
    }

    #[test]
    #[should_panic(expected = "may come here")]
    fn an_error_that_is_not_documented() {
        let errors = [("TRYAGAIN later".to_owned(), 1), ("FOO bar".to_owned(), 1)].into();
        only_errors(&[Drawn { errors, ..Drawn::default() }], &["TRYAGAIN"]);
    }

    #[test]
    #[should_panic(expected = "broken replies")]
    fn a_torn_reply() {
        only_errors(&[Drawn { broken: vec!["torn".into()], ..Drawn::default() }], &["TRYAGAIN"]);
    }

    fn op(node: usize, (invoked, returned): (u64, u64), (first, last): Run) -> Op {
        Op { invoked, returned, first, last, node }
    }

    #[test]
    fn an_id_within_a_range_that_somebody_else_has() {
        assert_eq!(distinct(&mut [(11, 20), (1, 10), (21, 21)]), Ok(21));
        for twice in [[(1, 10), (10, 12)], [(1, 10), (4, 5)], [(3, 3), (3, 3)]] {
            distinct(&mut twice.clone()).expect_err("an overlap was not found");
        }
        distinct(&mut [(0, 1)]).expect_err("0 is no id");
    }

    #[test]
    fn requests_at_the_same_time_may_be_answered_in_any_order() {
        assert_eq!(strict(&[op(0, (1, 5), (9, 9)), op(1, (2, 6), (3, 5)), op(0, (5, 8), (1, 2))]), Ok(0));
        assert_eq!(strict(&[op(0, (1, 2), (1, 4)), op(1, (3, 4), (5, 5)), op(2, (5, 9), (6, 6))]), Ok(2));
    }

    #[test]
    fn a_smaller_id_after_a_larger_one_was_answered() {
        strict(&[op(0, (1, 2), (5, 5)), op(1, (3, 4), (4, 4))]).expect_err("the order was broken");
        strict(&[op(1, (3, 4), (4, 4)), op(0, (1, 2), (5, 5))]).expect_err("whatever the order of the history");
        strict(&[op(0, (1, 2), (1, 10)), op(1, (3, 4), (10, 11))]).expect_err("batches count by their ends");
        // The one answered last is not the one with the largest id.
        let three = [op(0, (1, 2), (8, 8)), op(1, (1, 3), (2, 2)), op(2, (4, 5), (7, 7))];
        strict(&three).expect_err("the largest id so far was forgotten");
    }

    #[test]
    fn each_node_has_an_order_of_its_own() {
        let two = [op(0, (1, 2), (101, 101)), op(1, (3, 4), (1, 1)), op(0, (5, 6), (102, 102)), op(1, (7, 8), (2, 2))];
        assert_eq!(order_of_each_node(&two), Ok(2));
        strict(&two).expect_err("over both nodes there is no order");
        order_of_each_node(&[op(1, (1, 2), (2, 2)), op(1, (3, 4), (1, 1))]).expect_err("the node went back");
    }

    /// A million requests of 24 clients, in order but for one pair.
    #[test]
    fn one_wrong_pair_in_a_million_is_found() {
        let mut ops: Vec<Op> = (0..1_000_000)
            .map(|n: i64| op(0, (n.unsigned_abs() * 10, n.unsigned_abs() * 10 + 200), (n + 1, n + 1)))
            .collect();
        assert_eq!(strict(&ops), Ok(1_000_000 - 21));
        let (early, late) = (500_000, 500_021);
        (ops[early].first, ops[early].last) = (ops[late].first, ops[late].last);
        (ops[late].first, ops[late].last) = (500_001, 500_001);
        strict(&ops).expect_err("the pair was not found");
    }
}
