//! `IDDECODE id [tag]`: the parts of a Snowflake id by this node's layout.

use super::Error;
use super::idinfo::map;
use super::number::{integer, value};
use super::session::Call;
use crate::clock::rfc3339;
use crate::ids::TagName;
use crate::resp::Value;
use crate::router::EngineKind;

pub(super) async fn iddecode(call: &Call<'_>) -> Result<Value, Error> {
    if call.len() > 3 {
        return Err(Error::unexpected(call.spec, call.arg(3)));
    }
    let id =
        integer(call.arg(1)).and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0).ok_or_else(Error::bad_id)?;
    if call.len() == 3 {
        let tag = TagName::new(call.arg(2)).ok_or_else(Error::bad_tag)?;
        let known = call.context.router.known(&tag).await;
        let entry = known.map_err(|error| Error::router(tag.as_str(), &error))?;
        if entry.kind() == EngineKind::Segment {
            return Err(Error::segment_decode(call.arg(2)));
        }
    }
    let router = &call.context.router;
    let parts = router.decode(id).ok_or_else(|| Error::no_id_of_layout(id, &router.snowflake().layout().text()))?;
    Ok(map(vec![
        ("timestamp_ms", value(parts.timestamp_ms)),
        ("time", Value::bulk(rfc3339(parts.timestamp_ms))),
        ("datacenter", value(parts.datacenter.into())),
        ("worker", value(parts.worker.into())),
        ("sequence", value(parts.sequence.into())),
    ]))
}
