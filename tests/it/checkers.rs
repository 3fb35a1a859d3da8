//! What must hold for the ids that clients have drawn, checked over all of them.

use crate::load::{Drawn, Run};

/// No id came twice, over all clients, connections and restarts. Returns how many ids there were.
pub fn unique(drawn: &[Drawn]) -> u64 {
    let mut runs: Vec<Run> =
        drawn.iter().flat_map(|one| &one.sessions).flat_map(|session| &session.runs).copied().collect();
    runs.sort_unstable();
    for pair in runs.windows(2) {
        assert!(pair[0].1 < pair[1].0, "ids came twice: {:?} and {:?} overlap", pair[0], pair[1]);
    }
    assert!(runs.first().is_none_or(|run| run.0 >= 1), "an id below 1: {:?}", runs.first());
    runs.iter().map(|(first, last)| u64::try_from(last - first + 1).expect("a run that ends before it starts")).sum()
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
    use super::{increasing_over_restarts, increasing_within_connections, only_errors, unique};
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
}
