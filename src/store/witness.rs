//! The witness: a second place that remembers how far the ids of a tag were given away, outside of the SQL database.
//!
//! Guaranteed: ranges that were published with a witness are disjoint and increasing even if the database returns anything
//! at all. How: a range `(lo, hi]` is published only by the compare-and-set that moves the tag's mark from a value of at
//! most `lo` to `hi`; those are totally ordered, and the mark is lowered only to the last id that was issued, by a node
//! that gives unused ids back. What to do with a range that lies below the mark is the engine's business; here is what a
//! place has to offer for it. Rejected: writing the mark without the compare (two nodes could both publish), trusting the
//! mark of a write whose outcome is unknown (the equal value can be somebody else's).

use serde::{Deserialize, Serialize};

use super::Answer;
use crate::ids::TagName;

/// Whether ranges are published without the witness when it can't be asked. One for all nodes of a cluster: a node without
/// it would undo what the others have from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The witness is never asked.
    Off,
    /// While it can't be asked, ranges are published without it, and counted.
    #[default]
    Preferred,
    /// While it can't be asked, no range is published.
    Required,
}

/// A place that remembers one number a tag: the last id of the highest range that was published.
pub trait Witness: Send + Sync + 'static {
    /// The name in metrics and texts, such as `etcd`.
    fn name(&self) -> &'static str;

    /// The mark of `tag`; `None` when it has none.
    ///
    /// # Errors
    /// Why it could not be read.
    fn read<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Option<u64>>;

    /// Sets the mark of `tag` to `to`, durably, if it is `seen` at that moment (`None`: if it has none); says whether it
    /// did. Sent once, never retried by itself.
    ///
    /// # Errors
    /// [`Kind::Unknown`](super::Kind::Unknown) when it may or may not have happened; any other kind: it did not.
    fn compare_and_set<'a>(&'a self, tag: &'a TagName, seen: Option<u64>, to: u64) -> Answer<'a, bool>;
}

#[cfg(test)]
pub mod testing;
