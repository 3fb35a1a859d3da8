//! What the answer of a grant statement allows.
//!
//! Guaranteed: a range is used only when the store has confirmed it, and then it is the one the store has named. How: there
//! is nothing before the answer, and an error of any kind gives no range. It stands apart, pure, so that the two bugs that
//! id servers are known for can be planted in it and found.

use crate::ids::{IdRange, MAX_ID};
use crate::store::{Grant, Kind, StoreError};

/// Bugs to plant, for tests that show that they would be found. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// B4: the range that the statement will probably bring is used before the store has answered.
    pub publish_early: bool,
    /// B5: a grant whose outcome is unknown is taken for one that brought what was expected.
    pub reuse_unknown: bool,
}

/// A grant as it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The last id known to be given away before; 0: none.
    pub last: u64,
    /// How many ids were asked for.
    pub count: u64,
}

impl Asked {
    /// What the statement will bring if nobody else asks, of which nobody can know whether it will.
    fn expected(self) -> Option<Grant> {
        let end = self.last.saturating_add(self.count).min(MAX_ID) + 1;
        IdRange::new(self.last.saturating_add(1), end).map(|range| Grant { range, nonce: 0 })
    }
}

/// What may be used while the statement is on its way: nothing.
#[must_use]
pub fn before_the_answer(asked: Asked, rules: Rules) -> Option<Grant> {
    if rules.publish_early { asked.expected() } else { None }
}

/// What may be used after `answer`.
///
/// # Errors
/// Those of the answer: none of its ids may ever be used.
pub fn after(asked: Asked, answer: Result<Grant, StoreError>, rules: Rules) -> Result<Grant, StoreError> {
    match answer {
        Err(error) if rules.reuse_unknown && error.kind == Kind::Unknown => asked.expected().ok_or(error),
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

    use super::*;

    /// How the statement of a node ends.
    #[derive(Clone, Copy, Debug)]
    enum End {
        Granted,
        Failed,
        AppliedUnknown,
        LostUnknown,
    }

    /// Who asks, for how many ids, and how it ends.
    type Statement = (usize, u64, End);

    fn grants() -> impl Strategy<Value = Vec<Statement>> {
        let end = prop_oneof![
            6 => Just(End::Granted), 1 => Just(End::Failed),
            1 => Just(End::AppliedUnknown), 1 => Just(End::LostUnknown),
        ];
        proptest::collection::vec((0..3_usize, 1..20_u64, end), 1..40)
    }

    /// Three nodes on one store: no id may be in two ranges that were used.
    fn check(grants: &[Statement], rules: Rules) -> Result<(), String> {
        let (mut max_id, mut known, mut used) = (0_u64, [0_u64; 3], Vec::<IdRange>::new());
        for &(node, count, end) in grants {
            let asked = Asked { last: known[node], count };
            let early = before_the_answer(asked, rules);
            let range = IdRange::new(max_id + 1, max_id + count + 1).expect("a range");
            if matches!(end, End::Granted | End::AppliedUnknown) {
                max_id += count;
            }
            let answer = match end {
                End::Granted => Ok(Grant { range, nonce: 1 }),
                End::Failed => Err(StoreError::new(Kind::Transient, "busy")),
                End::AppliedUnknown | End::LostUnknown => Err(StoreError::new(Kind::Unknown, "cut")),
            };
            let late = after(asked, answer, rules).ok().filter(|_| early.is_none());
            for Grant { range, .. } in early.into_iter().chain(late) {
                if let Some(twice) = used.iter().find(|u| u.start() < range.end() && range.start() < u.end()) {
                    return Err(format!("{range:?} and {twice:?}"));
                }
                used.push(range);
                known[node] = known[node].max(range.last());
            }
        }
        Ok(())
    }

    fn run(rules: Rules) -> Result<(), TestError<Vec<Statement>>> {
        let config = Config { cases: 2000, failure_persistence: None, max_shrink_iters: 0, ..Config::default() };
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
            .run(&grants(), |grants| check(&grants, rules).map_err(TestCaseError::fail))
    }

    #[test]
    fn only_what_the_store_has_confirmed_is_used_and_that_only_once() {
        assert_eq!(run(Rules::default()).map_err(|error| error.to_string()), Ok(()));
    }

    #[test]
    fn the_model_finds_a_range_that_is_used_before_the_answer() {
        assert!(matches!(run(Rules { publish_early: true, ..Rules::default() }), Err(TestError::Fail(..))), "B4");
    }

    #[test]
    fn the_model_finds_an_unknown_grant_that_is_taken_for_a_good_one() {
        assert!(matches!(run(Rules { reuse_unknown: true, ..Rules::default() }), Err(TestError::Fail(..))), "B5");
    }
}
