//! A row of `id_alloc` as the SQL stores read it: the same columns in every dialect, every number 64 bits wide for drivers.
//!
//! What can't be read is an error, never a guess: a counter that came back as something else must not become ids.

use std::fmt::Display;

use sqlx::Row as _;

use super::{Definition, EngineKind, Kind, Order, Row, StoreError};
use crate::ids::{MAX_ID, TagName};

/// All columns of a row, as [`row`] reads them.
pub(super) const ROW: &str = "biz_tag, max_id, step, description, engine, ordering, min_step, max_step, id_limit, qps, \
                              burst, critical, floor, retired, revision";

/// A row that a driver gave.
pub(super) trait Columns {
    /// A number that is never below zero.
    fn number(&self, column: &str) -> Result<u64, StoreError>;

    /// A text.
    fn text(&self, column: &str) -> Result<String, StoreError>;
}

macro_rules! columns {
    ($row:ty) => {
        impl Columns for $row {
            fn number(&self, column: &str) -> Result<u64, StoreError> {
                let value: i64 = self.try_get(column).map_err(|error| unreadable(&error))?;
                u64::try_from(value).map_err(|error| unreadable(&error))
            }

            fn text(&self, column: &str) -> Result<String, StoreError> {
                self.try_get(column).map_err(|error| unreadable(&error))
            }
        }
    };
}

columns!(sqlx::sqlite::SqliteRow);
columns!(sqlx::mysql::MySqlRow);
columns!(sqlx::postgres::PgRow);

/// The row that stands in `columns`.
pub(super) fn row(columns: &impl Columns) -> Result<Row, StoreError> {
    let tag =
        TagName::new(columns.text("biz_tag")?.as_bytes()).ok_or_else(|| unreadable(&"biz_tag is no valid tag"))?;
    let engine = match columns.text("engine")?.as_str() {
        "segment" => EngineKind::Segment,
        "snowflake" => EngineKind::Snowflake,
        other => return Err(unreadable(&format!("engine {other}"))),
    };
    let order = match columns.text("ordering")?.as_str() {
        "node" => Order::Node,
        "strict" => Order::Strict,
        other => return Err(unreadable(&format!("ordering {other}"))),
    };
    let definition = Definition {
        engine,
        order,
        step: columns.number("step")?,
        min_step: columns.number("min_step")?,
        max_step: columns.number("max_step")?,
        id_limit: columns.number("id_limit")?,
        qps: columns.number("qps")?,
        burst: columns.number("burst")?,
        critical: columns.number("critical")? != 0,
        description: columns.text("description")?,
    };
    Ok(Row {
        tag,
        definition,
        max_id: columns.number("max_id")?,
        floor: columns.number("floor")?,
        retired: columns.number("retired")? != 0,
        revision: columns.number("revision")?,
    })
}

/// The answer where a row is not as it has to be.
pub(super) fn unreadable(error: &dyn Display) -> StoreError {
    StoreError::new(Kind::Permanent, format!("a row of id_alloc can't be read: {error}")).because("corrupt")
}

/// How many rows of the catalogue are read at once: a row as a driver has it takes ten times the memory of ours.
pub(super) const PAGE: usize = 1000;

/// All rows above `revision`, by revision; `page` reads up to [`PAGE`] of those above the one it is given.
pub(super) async fn pages<F>(revision: u64, mut page: impl FnMut(u64) -> F) -> Result<Vec<Row>, StoreError>
where
    F: Future<Output = Result<Vec<Row>, StoreError>>,
{
    let (mut rows, mut after) = (Vec::new(), revision);
    loop {
        let more = page(after).await?;
        let last = more.last().map(|row| row.revision).filter(|_| more.len() == PAGE);
        rows.extend(more);
        let Some(last) = last else { return Ok(rows) };
        after = last;
    }
}

/// A nonce as the column holds it.
pub(super) fn blob(nonce: u128) -> Vec<u8> {
    nonce.to_be_bytes().to_vec()
}

/// As SQL's signed integer; callers pass nothing above [`MAX_ID`], and more would only be cut to it.
pub(super) fn int(value: u64) -> i64 {
    const _: () = assert!(MAX_ID == i64::MAX as u64);
    i64::try_from(value).unwrap_or(i64::MAX)
}
