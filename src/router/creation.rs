//! What a new tag becomes, and how a tag that stands differs from what somebody wants.
//!
//! What is not named takes its value from the first rule that matches and from the defaults. What a tag can't have, or what
//! this version would not keep, is refused rather than ignored.

use super::{Error, Router, Wanted};
use crate::ids::{MAX_ID, TagName};
use crate::store::{Alteration, Definition, EngineKind, Order, Row};

impl Router {
    /// The row of `tag`, made by `wanted` and the defaults unless it stands, and whether it was made. The row of a tag that
    /// this node knows is only looked for: where it is gone, a new one would give the tag's ids again.
    pub(super) async fn create_row(&self, tag: &TagName, wanted: &Wanted) -> Result<(Row, bool), Error> {
        if self.find(tag.as_str().as_bytes()).is_some() {
            let found = self.parts.store.find(tag).await.map_err(|error| self.store_error(tag, &error))?;
            return found.map(|row| (row, false)).ok_or_else(|| self.vanished(tag));
        }
        let definition = self.definition(tag, wanted)?;
        let start = wanted.start.unwrap_or(1);
        if start == 0 || start > definition.id_limit {
            return Err(Error::Conflict(format!(
                "START is {start}: it must be 1 to the tag's MAX {}",
                definition.id_limit
            )));
        }
        let made = self.parts.store.create(tag, &definition, start, self.config.max).await;
        made.map_err(|error| self.store_error(tag, &error))
    }

    /// The definition of a new tag: what is named, over the first rule that matches, over the defaults.
    pub(super) fn definition(&self, tag: &TagName, wanted: &Wanted) -> Result<Definition, Error> {
        let engine = wanted.engine.unwrap_or_else(|| self.engine_by_rules(tag));
        let order = wanted.order.unwrap_or(Order::Node);
        let fields = &wanted.fields;
        if engine == EngineKind::Snowflake {
            refuse_segment_options(fields, wanted.order, wanted.start)?;
        }
        refuse_limits(fields)?;
        if order == Order::Strict && self.parts.store.shared() {
            return Err(Error::WrongType("ORDER strict is not to be had on a store that other nodes use".into()));
        }
        let min_step =
            fields.min_step.unwrap_or_else(|| self.parts.segment.min_step.min(fields.step.unwrap_or(u64::MAX)));
        let max_step = fields.max_step.unwrap_or_else(|| self.parts.segment.max_step.max(fields.step.unwrap_or(0)));
        let step =
            fields.step.unwrap_or_else(|| self.parts.segment.default_step.clamp(min_step, max_step.max(min_step)));
        if !(min_step <= step && step <= max_step) {
            return Err(Error::Conflict(format!(
                "the steps must hold MINSTEP {min_step} <= STEP {step} <= MAXSTEP {max_step}"
            )));
        }
        Ok(Definition {
            engine,
            order,
            step,
            min_step,
            max_step,
            id_limit: fields.id_limit.unwrap_or(MAX_ID),
            qps: 0,
            burst: 0,
            critical: fields.critical.unwrap_or(false),
            description: fields.description.clone().unwrap_or_default(),
        })
    }
}

/// The first named field in which a tag that stands differs from what is wanted.
pub(super) fn difference(row: &Row, wanted: &Wanted) -> Option<String> {
    fn differs<T: PartialEq>(wanted: Option<&T>, stands: &T) -> bool {
        wanted.is_some_and(|wanted| wanted != stands)
    }
    let (stands, fields) = (&row.definition, &wanted.fields);
    let say = |field: &str, stands: &dyn std::fmt::Display| {
        Some(format!("tag '{}' exists with {field} {stands}; IDTAG ALTER changes what can be changed", row.tag))
    };
    if differs(wanted.engine.as_ref(), &stands.engine) {
        return say("ENGINE", &stands.engine.name());
    }
    if differs(wanted.order.as_ref(), &stands.order) {
        return say("ORDER", &stands.order.name());
    }
    if wanted.start.is_some_and(|start| row.floor < start - 1) {
        return say("a first id below that START, FLOOR", &row.floor);
    }
    let numbers = [
        ("STEP", fields.step, stands.step),
        ("MINSTEP", fields.min_step, stands.min_step),
        ("MAXSTEP", fields.max_step, stands.max_step),
        ("MAX", fields.id_limit, stands.id_limit),
        ("QPS", fields.qps, stands.qps),
        ("BURST", fields.burst, stands.burst),
    ];
    for (field, wanted, stands) in numbers {
        if differs(wanted.as_ref(), &stands) {
            return say(field, &stands);
        }
    }
    if differs(fields.critical.as_ref(), &stands.critical) {
        return say("CRITICAL", &if stands.critical { "yes" } else { "no" });
    }
    if differs(fields.description.as_ref(), &stands.description) {
        return say("another DESC:", &stands.description);
    }
    None
}

/// A Snowflake tag has no counter: what belongs to one is refused rather than ignored.
pub(super) fn refuse_segment_options(
    fields: &Alteration,
    order: Option<Order>,
    start: Option<u64>,
) -> Result<(), Error> {
    let named = [
        ("STEP", fields.step.is_some()),
        ("MINSTEP", fields.min_step.is_some()),
        ("MAXSTEP", fields.max_step.is_some()),
        ("MAX", fields.id_limit.is_some()),
        ("START", start.is_some()),
        ("ORDER strict", order == Some(Order::Strict)),
    ];
    match named.iter().find(|(_, named)| *named) {
        Some((option, _)) => {
            Err(Error::WrongType(format!("{option} is for segment tags: a Snowflake tag has no counter")))
        }
        None => Ok(()),
    }
}

/// A rate that would not be enforced is refused rather than stored.
pub(super) fn refuse_limits(fields: &Alteration) -> Result<(), Error> {
    if fields.qps.unwrap_or(0) > 0 || fields.burst.unwrap_or(0) > 0 {
        return Err(Error::WrongType("QPS and BURST are not enforced by this version: leave them out or at 0".into()));
    }
    Ok(())
}
