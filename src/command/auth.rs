//! `AUTH [user] token`. What was sent is never shown, logged or kept.

use super::ping::OK;
use super::session::{Call, MAX_FAILED_LOGINS, Session};
use super::{Context, Error};
use crate::acl::DEFAULT_USER;
use crate::resp::Value;

pub(super) fn auth(session: &mut Session, call: &Call<'_>) -> Result<Value, Error> {
    match call.len() {
        // Where nobody has a token, a token alone is a mistake that is worth its own text, as in Redis.
        2 if call.context.users.initial().is_some() => return Err(Error::no_password_set()),
        2 => log_in(session, call.context, DEFAULT_USER.as_bytes(), call.arg(1))?,
        3 => log_in(session, call.context, call.arg(1), call.arg(2))?,
        _ => return Err(Error::syntax()),
    }
    Ok(OK)
}

/// Makes the connection that of the user whose token it is. A failure changes nothing, but only a few are allowed.
pub(super) fn log_in(session: &mut Session, context: &Context, name: &[u8], token: &[u8]) -> Result<(), Error> {
    if let Some(user) = context.users.log_in(name, token) {
        session.failed_logins = 0;
        session.become_user(Some(user));
        return Ok(());
    }
    session.failed_logins += 1;
    session.closing |= session.failed_logins >= MAX_FAILED_LOGINS;
    Err(Error::wrong_pass())
}
