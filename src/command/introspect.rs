//! `COMMAND …`, and `HELP` of every container: the table, told in Redis' shapes.

use super::idinfo::map;
use super::session::{Call, Session};
use super::spec::{Keys, READONLY, Spec, WRITE, find, rows};
use super::{Argument, Error};
use crate::glob::{MAX_PATTERN_LEN, glob};
use crate::resp::Value;

/// Every category that a row has.
pub(super) fn categories() -> Vec<&'static str> {
    let mut all: Vec<&str> = rows().iter().flat_map(|row| row.categories()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The commands without the subcommands.
fn commands() -> impl Iterator<Item = &'static Spec> {
    rows().iter().copied().filter(|row| row.parts().1.is_none())
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn command(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(commands().map(describe).collect()))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn count(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Integer(i64::try_from(commands().count()).unwrap_or(i64::MAX)))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn info(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(match call.len() {
        2 => commands().map(describe).collect(),
        _ => call.rest(2).map(|name| find(name).map_or(Value::Null, describe)).collect(),
    }))
}

/// The ten elements of an entry of `COMMAND`.
fn describe(spec: &'static Spec) -> Value {
    let keys = spec.keys.unwrap_or(Keys { first: 0, last: 0, step: 0 });
    let status = |text: &'static str| Value::Simple(text.into());
    Value::Array(vec![
        Value::bulk(spec.name),
        Value::Integer(spec.arity.into()),
        Value::Set(spec.flag_names().map(status).collect()),
        Value::Integer(keys.first.into()),
        Value::Integer(keys.last.into()),
        Value::Integer(keys.step.into()),
        Value::Set(spec.categories().map(|category| Value::Simple(format!("@{category}").into())).collect()),
        Value::Set(spec.tips.iter().map(Value::bulk).collect()),
        Value::Set(spec.keys.map(|keys| key_spec(spec, keys)).into_iter().collect()),
        Value::Set(spec.subcommands().map(describe).collect()),
    ])
}

fn key_spec(spec: &Spec, keys: Keys) -> Value {
    let writes = spec.has(WRITE) && !spec.has(READONLY);
    let flags: &[&'static str] = if writes { &["RW", "access", "update"] } else { &["RO", "access"] };
    let last = if keys.last < 0 { keys.last } else { keys.last - keys.first };
    map(vec![
        ("flags", Value::Set(flags.iter().map(|&flag| Value::Simple(flag.into())).collect())),
        (
            "begin_search",
            map(vec![
                ("type", Value::bulk("index")),
                ("spec", map(vec![("index", Value::Integer(keys.first.into()))])),
            ]),
        ),
        (
            "find_keys",
            map(vec![
                ("type", Value::bulk("range")),
                (
                    "spec",
                    map(vec![
                        ("lastkey", Value::Integer(last.into())),
                        ("keystep", Value::Integer(keys.step.into())),
                        ("limit", Value::Integer(0)),
                    ]),
                ),
            ]),
        ),
    ])
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn docs(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let told: Vec<&'static Spec> = match call.len() {
        2 => commands().collect(),
        _ => call.rest(2).filter_map(find).collect(),
    };
    Ok(Value::Map(told.into_iter().map(|spec| (Value::bulk(spec.name), document(spec))).collect()))
}

fn document(spec: &'static Spec) -> Value {
    let mut fields = vec![
        ("summary", Value::bulk(spec.summary)),
        ("since", Value::bulk(spec.since)),
        ("group", Value::bulk(spec.group)),
        ("complexity", Value::bulk(spec.complexity)),
    ];
    if !spec.arguments.is_empty() {
        fields.push(("arguments", Value::Array(spec.arguments.iter().map(document_argument).collect())));
    }
    let subcommands: Vec<_> = spec.subcommands().map(|sub| (Value::bulk(sub.name), document(sub))).collect();
    if !subcommands.is_empty() {
        fields.push(("subcommands", Value::Map(subcommands)));
    }
    map(fields)
}

fn document_argument(argument: &Argument) -> Value {
    let mut fields = vec![("name", Value::bulk(argument.name)), ("type", Value::bulk(argument.kind))];
    if argument.kind == "key" {
        fields.push(("key_spec_index", Value::Integer(0)));
    }
    if let Some(token) = argument.token {
        fields.push(("token", Value::bulk(token)));
    }
    let flags = [(argument.optional, "optional"), (argument.multiple, "multiple")];
    let flags: Vec<_> = flags.iter().filter(|(set, _)| *set).map(|&(_, name)| Value::Simple(name.into())).collect();
    if !flags.is_empty() {
        fields.push(("flags", Value::Array(flags)));
    }
    map(fields)
}

pub(super) fn list(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let wanted = call.arg(4).to_ascii_lowercase();
    let filter = call.arg(3).to_ascii_uppercase();
    let listed: Vec<&Spec> = match (call.len(), filter.as_slice()) {
        (2, _) => commands().collect(),
        (5, _) if !call.arg(2).eq_ignore_ascii_case(b"FILTERBY") => return Err(Error::syntax()),
        (5, b"MODULE") => Vec::new(),
        (5, b"ACLCAT") => {
            rows().iter().copied().filter(|row| row.categories().any(|one| one.as_bytes() == wanted)).collect()
        }
        (5, b"PATTERN") if wanted.len() <= MAX_PATTERN_LEN => {
            rows().iter().copied().filter(|row| glob(&wanted, row.name.as_bytes())).collect()
        }
        _ => return Err(Error::syntax()),
    };
    Ok(Value::Array(listed.iter().map(|row| Value::bulk(row.name)).collect()))
}

pub(super) fn getkeys(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let spec = find(call.arg(2)).ok_or_else(|| Error::redis("Invalid command specified"))?;
    let spec = spec.subcommand_or_itself(call.request.arg(3));
    let request: Vec<&[u8]> = call.rest(2).collect();
    if spec.keys.is_none() {
        return Err(Error::redis("The command has no key arguments"));
    }
    if !spec.takes(request.len()) {
        return Err(Error::redis("Invalid number of arguments specified for command"));
    }
    let tags = spec.tags_among(&request);
    if tags.is_empty() {
        return Err(Error::redis("Invalid arguments specified for command"));
    }
    Ok(Value::Array(tags.iter().map(Value::bulk).collect()))
}

/// The subcommands of the container that was asked, as lines to read.
#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn help(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let (container, _) = call.spec.parts();
    let title = format!("{} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", container.to_ascii_uppercase());
    let mut lines = vec![Value::Simple(title.into())];
    for sub in find(container.as_bytes()).into_iter().flat_map(Spec::subcommands) {
        let usage = sub.usage();
        let usage = usage.split_once(' ').map_or(usage.as_str(), |(_, usage)| usage);
        lines.push(Value::Simple(usage.replace('…', "...").into()));
        lines.push(Value::Simple(format!("    {}", sub.summary).into()));
    }
    Ok(Value::Array(lines))
}
