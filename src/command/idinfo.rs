//! `IDINFO tag`: everything this node knows of a tag. Never creates one.

use super::Error;
use super::number::value;
use super::session::Call;
use crate::ids::TagName;
use crate::resp::Value;
use crate::router::{EngineInfo, Info};

pub(super) async fn idinfo(call: &Call<'_>) -> Result<Value, Error> {
    let tag = TagName::new(call.arg(1)).ok_or_else(Error::bad_tag)?;
    let known = call.context.router.known(&tag).await;
    let entry = known.map_err(|error| Error::router(tag.as_str(), &error))?;
    Ok(describe(&call.context.router.info(&entry)))
}

fn describe(info: &Info) -> Value {
    let definition = &info.row.definition;
    let text = |text: &str| Value::bulk(text);
    let mut fields = vec![
        ("tag", text(info.row.tag.as_str())),
        ("engine", text(definition.engine.name())),
        ("order", text(definition.order.name())),
        ("guarantee", text(info.guarantee)),
    ];
    match &info.engine {
        EngineInfo::Segment { step, step_reason, remaining, next_ready } => fields.extend([
            ("step", value(*step)),
            ("step_reason", text(step_reason)),
            ("min_step", value(definition.min_step)),
            ("max_step", value(definition.max_step)),
            ("max", value(definition.id_limit)),
            ("remaining", value(*remaining)),
            ("next_ready", Value::Boolean(*next_ready)),
            ("max_id", value(info.row.max_id)),
            ("floor", value(info.row.floor)),
        ]),
        EngineInfo::Snowflake { worker, datacenter, window_remaining_ms } => fields.extend([
            ("worker", worker.map_or(Value::Null, |worker| value(worker.into()))),
            ("datacenter", value((*datacenter).into())),
            ("window_remaining_ms", value(*window_remaining_ms)),
        ]),
    }
    fields.extend([
        ("qps", value(definition.qps)),
        // As it is in force: what was left out is one second's worth.
        ("burst", value(definition.rate().burst())),
        ("critical", Value::Boolean(definition.critical)),
        ("description", text(&definition.description)),
        ("revision", value(info.row.revision)),
        ("retired", Value::Boolean(info.row.retired)),
        ("issued", value(info.issued)),
    ]);
    map(fields)
}

/// A map with these names, in this order.
pub(super) fn map(fields: Vec<(&'static str, Value)>) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (Value::bulk(name), value)).collect())
}
