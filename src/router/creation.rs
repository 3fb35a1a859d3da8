//! What a new tag becomes, and how a tag that stands differs from what somebody wants.
//!
//! What is not named takes its value from the first rule that matches and from the defaults. What a tag can't have is
//! refused rather than ignored.

use std::fmt::Display;

use super::{Error, Refusal, Router, UNIQUE, Wanted};
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

    /// Why this node keeps no strict order, where it does not: a store that may lose what it has confirmed could give an
    /// id again, or a smaller one later.
    fn why_not_strict(&self) -> Option<String> {
        let store = self.store_name();
        (self.guarantee() != UNIQUE).then(|| {
            format!(
                "ORDER strict needs a database that keeps what it has confirmed, and the settings of {store} may lose it: \
                 put right what idgen's log names, then restart idgen"
            )
        })
    }

    /// What the requests for a strict tag that stands are told where its promise can't be kept.
    pub(super) fn strict_refusal(&self) -> Option<Refusal> {
        self.why_not_strict().map(Refusal::Backend)
    }

    /// Says once, at the start, which tags are closed because their order can't be kept.
    pub(super) fn tell_of_closed_strict(&self, tags: &[TagName]) {
        if let (Some(why), Some(first)) = (self.why_not_strict(), tags.first()) {
            let count = tags.len();
            tracing::error!(
                biz_tag = %first, error_kind = "system",
                "{count} tags with ORDER strict, this one first, are closed until their order can be kept: {why}"
            );
        }
    }

    /// The definition of a new tag: what is named, over the first rule that matches, over the defaults.
    pub(super) fn definition(&self, tag: &TagName, wanted: &Wanted) -> Result<Definition, Error> {
        let engine = wanted.engine.unwrap_or_else(|| self.engine_by_rules(tag));
        let order = wanted.order.unwrap_or(Order::Node);
        let fields = &wanted.fields;
        if engine == EngineKind::Snowflake {
            refuse_segment_options(tag, fields, wanted.order, wanted.start)?;
        }
        if order == Order::Strict
            && let Some(why) = self.why_not_strict()
        {
            return Err(Error::WrongType(format!("{why}, or create the tag without ORDER strict")));
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
            qps: fields.qps.unwrap_or(0),
            burst: fields.burst.unwrap_or(0),
            critical: fields.critical.unwrap_or(false),
            description: fields.description.clone().unwrap_or_default(),
        })
    }
}

/// The first named field in which a tag that stands differs from what is wanted, or that it can't have.
pub(super) fn difference(row: &Row, wanted: &Wanted) -> Option<Error> {
    fn differs<T: PartialEq>(wanted: Option<&T>, stands: &T) -> bool {
        wanted.is_some_and(|wanted| wanted != stands)
    }
    let (tag, stands, fields) = (&row.tag, &row.definition, &wanted.fields);
    let say = |text: String| Some(Error::Conflict(format!("tag '{tag}' exists with {text}")));
    let fixed = |field: &str, stands: &str| {
        say(format!("{field} {stands}, which is fixed when a tag is created: use another tag for another {field}"))
    };
    let change = |field: &str, stands: &dyn Display, wanted: &dyn Display| {
        say(format!("{field} {stands}: IDTAG ALTER {tag} {field} {wanted} changes it"))
    };
    if differs(wanted.engine.as_ref(), &stands.engine) {
        return fixed("ENGINE", stands.engine.name());
    }
    if stands.engine == EngineKind::Snowflake {
        let refused = refuse_segment_options(tag, fields, wanted.order, wanted.start);
        if let Err(error) = refused {
            return Some(error);
        }
    }
    if differs(wanted.order.as_ref(), &stands.order) {
        return fixed("ORDER", stands.order.name());
    }
    if let Some(last) = wanted.start.and_then(|start| start.checked_sub(1)).filter(|&last| last > row.floor) {
        let (first, start) = (row.floor + 1, last + 1);
        return say(format!(
            "ids from {first} on, below START {start}: IDTAG FLOOR {tag} {last} makes later ids larger"
        ));
    }
    let numbers = [
        ("STEP", fields.step, stands.step),
        ("MINSTEP", fields.min_step, stands.min_step),
        ("MAXSTEP", fields.max_step, stands.max_step),
        ("MAX", fields.id_limit, stands.id_limit),
        ("QPS", fields.qps, stands.qps),
        // A burst of 0 that stands is one second's worth, which may be named as well.
        ("BURST", fields.burst, if fields.burst == Some(0) { stands.burst } else { stands.rate().burst() }),
    ];
    for (field, wanted, stands) in numbers {
        if let Some(wanted) = wanted.filter(|wanted| *wanted != stands) {
            return change(field, &stands, &wanted);
        }
    }
    let yes_or_no = |critical: bool| if critical { "yes" } else { "no" };
    if let Some(wanted) = fields.critical.filter(|wanted| *wanted != stands.critical) {
        return change("CRITICAL", &yes_or_no(stands.critical), &yes_or_no(wanted));
    }
    // Without the texts: they may be long, and hold anything.
    if differs(fields.description.as_ref(), &stands.description) {
        let which = if stands.description.is_empty() { "no DESC" } else { "another DESC, which IDINFO shows" };
        return say(format!("{which}: IDTAG ALTER {tag} DESC changes it"));
    }
    None
}

/// A Snowflake tag has no counter: what belongs to one is refused rather than ignored.
pub(super) fn refuse_segment_options(
    tag: &TagName,
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
        Some((option, _)) => Err(Error::WrongType(format!(
            "a Snowflake tag such as '{tag}' has no counter: {option} is for segment tags, leave it out"
        ))),
        None => Ok(()),
    }
}
