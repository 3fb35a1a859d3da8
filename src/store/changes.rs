//! Changes of a tag's definition, which every SQL store makes alike: one transaction reads the row, [`rules`] decide, the
//! dialect writes.
//!
//! The row of revisions is taken first and held to the end, so changes are one after another over all nodes and commit in
//! the order of their revisions: a node that polls for what is newer than the newest it has seen misses none. Grants don't
//! touch that row and go on meanwhile.

use std::future::Future;

use super::{Alteration, Definition, Row, StoreError, rules};
use crate::ids::TagName;

/// One transaction of a SQL store. Dropped before [`Self::commit`], it did nothing.
pub(super) trait Transaction: Send + Sized {
    /// Reserves `count` revisions and gives the one before them; no other change is made until the transaction ends.
    fn revise(&mut self, count: u64) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// The row of `tag` as it stands now, which nobody else writes until the transaction ends.
    fn read(&mut self, tag: &TagName) -> impl Future<Output = Result<Option<Row>, StoreError>> + Send;

    /// How many rows there are.
    fn count(&mut self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Adds a row.
    fn insert(&mut self, row: &Row) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Writes everything of a row that can change, with a fresh nonce; gives how many rows that were.
    fn write(&mut self, row: &Row) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Makes it durable. Whether it happened is unknown when this fails with such an error.
    fn commit(self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Creates the row of `tag` unless one stands; gives the one that stands then, and whether this made it.
pub(super) async fn create(
    mut tx: impl Transaction,
    tag: &TagName,
    definition: &Definition,
    start: u64,
    most: u64,
) -> Result<(Row, bool), StoreError> {
    let revision = tx.revise(1).await? + 1;
    if let Some(row) = tx.read(tag).await? {
        return Ok((row, false));
    }
    let before = rules::before_start(definition, start)?;
    if tx.count().await? >= most {
        return Err(rules::too_many(most));
    }
    let (tag, definition) = (tag.clone(), definition.clone());
    let row = Row { tag, definition, max_id: before, floor: before, retired: false, revision };
    tx.insert(&row).await?;
    tx.commit().await?;
    Ok((row, true))
}

/// Changes the named fields.
pub(super) async fn alter(tx: impl Transaction, tag: &TagName, change: &Alteration) -> Result<Row, StoreError> {
    revised(tx, tag, |row| rules::altered(rules::live(row)?, change)).await
}

/// Raises `max_id` and floor to at least `floor`.
pub(super) async fn raise_floor(tx: impl Transaction, tag: &TagName, floor: u64) -> Result<Row, StoreError> {
    revised(tx, tag, |row| rules::raised(rules::live(row)?, floor)).await
}

/// Retires the tag; again changes nothing.
pub(super) async fn retire(tx: impl Transaction, tag: &TagName) -> Result<Row, StoreError> {
    revised(tx, tag, |row| Ok(Row { retired: true, ..row })).await
}

/// Writes what `change` makes of the row under a new revision. A row that is retired already stays as it is.
async fn revised(
    mut tx: impl Transaction,
    tag: &TagName,
    change: impl FnOnce(Row) -> Result<Row, StoreError>,
) -> Result<Row, StoreError> {
    let revision = tx.revise(1).await? + 1;
    let before = tx.read(tag).await?.ok_or_else(|| rules::missing(tag))?;
    let was_retired = before.retired;
    let row = Row { revision, ..change(before.clone())? };
    if was_retired {
        return Ok(before);
    }
    if tx.write(&row).await? != 1 {
        return Err(rules::missing(tag));
    }
    tx.commit().await?;
    Ok(row)
}
