//! `ACL …`: users and rights as the configuration gives them. Nothing here changes a user.

use super::Error;
use super::idinfo::map;
use super::introspect::categories;
use super::number::integer;
use super::rights::Rights;
use super::session::{Call, Session};
use super::spec::{find, rows};
use crate::acl::{User, hex};
use crate::resp::Value;

/// How many bits `ACL GENPASS` gives when the client does not say.
const DEFAULT_BITS: i64 = 256;

/// The most bits it gives.
const MAX_BITS: i64 = 4096;

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn whoami(session: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::bulk(session.user.as_ref().map_or("", |user| user.name())))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn users(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(call.context.users.iter().map(|user| Value::bulk(user.name())).collect()))
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn list(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    Ok(Value::Array(call.context.users.iter().map(|user| Value::bulk(line(user))).collect()))
}

/// A user as `ACL LIST` shows it. Digests are left out: whoever may list users need not be able to try tokens on them.
fn line(user: &User) -> String {
    let mut line = format!("user {} {}", user.name(), if user.enabled() { "on" } else { "off" });
    if user.digests().next().is_none() {
        line.push_str(" nopass");
    }
    for part in [user.rules().tags_text(), "&*".into(), user.rules().commands_text()] {
        if !part.is_empty() {
            line.push(' ');
            line.push_str(&part);
        }
    }
    line
}

#[expect(clippy::unnecessary_wraps, reason = "the shape of a row's function")]
pub(super) fn getuser(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let Some(user) = call.context.users.find(call.arg(2)) else { return Ok(Value::Null) };
    let mut flags = vec![Value::bulk(if user.enabled() { "on" } else { "off" })];
    if user.digests().next().is_none() {
        flags.push(Value::bulk("nopass"));
    }
    Ok(map(vec![
        ("flags", Value::Set(flags)),
        ("passwords", Value::Array(Vec::new())),
        ("commands", Value::bulk(user.rules().commands_text())),
        ("keys", Value::bulk(user.rules().tags_text())),
        ("channels", Value::bulk("&*")),
        ("selectors", Value::Array(Vec::new())),
    ]))
}

pub(super) fn cat(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    if call.len() == 2 {
        return Ok(Value::Array(categories().into_iter().map(Value::bulk).collect()));
    }
    let sent = call.arg(2).to_ascii_lowercase();
    let category = categories().into_iter().find(|category| category.as_bytes() == sent);
    let unknown = || Error::redis_about("Unknown category '{}'", call.arg(2));
    let category = category.filter(|_| call.len() == 3).ok_or_else(unknown)?;
    let members = rows().iter().filter(|row| row.categories().any(|one| one == category));
    Ok(Value::Array(members.map(|row| Value::bulk(row.name)).collect()))
}

pub(super) fn dryrun(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let unknown_user = || Error::redis_about("User '{}' not found", call.arg(2));
    let user = call.context.users.find(call.arg(2)).ok_or_else(unknown_user)?;
    let command = find(call.arg(3)).ok_or_else(|| Error::redis_about("Command '{}' not found", call.arg(3)))?;
    let command = command.subcommand_or_itself(call.request.arg(4));
    let args = call.len() - 3;
    if !command.takes(args) {
        return Err(Error::arity(command.name));
    }
    // The arguments of the command begin with its name at 3.
    let tags: Vec<&[u8]> = command.tags_among(&call.rest(3).collect::<Vec<_>>());
    let denied = if !Rights::of(user).allow(command) {
        Some(Error::no_perm_command(user.name(), command.name))
    } else if !tags.iter().all(|tag| user.rules().allow_tag(tag)) {
        Some(Error::no_perm_tag())
    } else {
        None
    };
    Ok(denied.map_or(super::ping::OK, |error| Value::bulk(error.text())))
}

pub(super) fn genpass(_: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    let bits = if call.len() == 2 { Some(DEFAULT_BITS) } else { integer(call.arg(2)) };
    let bits = bits.filter(|bits| (1..=MAX_BITS).contains(bits) && call.len() <= 3);
    let wrong = "ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096";
    let bits = bits.ok_or_else(|| Error::redis(wrong))?;
    let digits = usize::try_from(bits).unwrap_or(0).div_ceil(4);
    let mut bytes = vec![0; digits.div_ceil(2)];
    getrandom::fill(&mut bytes).map_err(|_| Error::redis("the operating system has no randomness to give"))?;
    let mut text = hex(&bytes);
    text.truncate(digits);
    Ok(Value::bulk(text))
}
