//! What the witness's mark says about a range that the store has granted.
//!
//! The mark is the last id of the highest range that was published. A range is published by moving the mark from a value
//! below the range to the range's last id, by compare-and-set. One that does not lie above the mark is never used; the row
//! then helps to tell whether another node was faster or the store has lost commits.

use crate::ids::IdRange;

/// Why a granted range does not lie above the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Another node was granted a later range and published it first: the row is as far as the mark.
    Race,
    /// The row is behind the mark: what had been granted up to there is lost.
    Regression,
}

/// The mark that publishes `range` over `mark`, `None` being that of a tag that has none yet: the first grant gives it one.
///
/// # Errors
/// The mark that the range does not lie above.
pub fn next_mark(range: IdRange, mark: Option<u64>) -> Result<u64, u64> {
    match mark {
        Some(mark) if range.start() <= mark => Err(mark),
        _ => Ok(range.last()),
    }
}

/// Why `range` was below `mark`, when the row, read after the grant, says `max_id` and `floor`.
///
/// The row alone does not tell: the grant itself has raised it, perhaps over what was lost. But nobody else's range can end
/// inside this one unless the store gave the same ids twice; only a floor can lie there.
#[must_use]
pub const fn blame(range: IdRange, mark: u64, max_id: u64, floor: u64) -> Blame {
    if max_id < mark || (mark <= range.last() && floor < mark) { Blame::Regression } else { Blame::Race }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_wholly_above_the_mark_moves_it() {
        let range = IdRange::new(11, 21).expect("a range");
        for (mark, expected) in [(None, Ok(20)), (Some(0), Ok(20)), (Some(10), Ok(20)), (Some(11), Err(11))] {
            assert_eq!(next_mark(range, mark), expected);
        }
        assert_eq!(next_mark(range, Some(500)), Err(500));
    }

    #[test]
    fn a_mark_above_the_row_or_inside_the_range_tells_of_lost_commits() {
        let range = IdRange::new(11, 21).expect("a range");
        for (mark, max_id, floor, expected) in [
            (25, 30, 0, Blame::Race),
            (30, 30, 0, Blame::Race),
            (31, 30, 0, Blame::Regression),
            (20, 20, 0, Blame::Regression),
            (15, 20, 0, Blame::Regression),
            (15, 20, 15, Blame::Race),
        ] {
            assert_eq!(blame(range, mark, max_id, floor), expected, "{mark} {max_id} {floor}");
        }
    }
}
