//! `INCRBY tag n`: n consecutive ids, of which the last is the reply, as a counter's value would be. (`INCR tag` is
//! [`super::idget`] under another name.)

use super::session::{Call, Session};
use super::{Error, draw, number};
use crate::resp::{IdForm, id};
use crate::router::Demand;

pub(super) async fn incrby(session: &mut Session, call: &Call<'_>, out: &mut Vec<u8>) {
    match draw::many(session, call, wanted(call)).await {
        Ok((_, shape)) => {
            if let Some(range) = session.ranges.last() {
                id(out, shape, range.last());
            }
        }
        Err(error) => error.write(out),
    }
}

fn wanted(call: &Call<'_>) -> Result<(Demand, IdForm), Error> {
    // Redis' text for what is no number, ours for a number that is not served.
    number::redis_integer(call.arg(2))?;
    let count = number::count(call.arg(2), call.context.settings.max_count)?;
    Ok((Demand::Consecutive(count), IdForm::Integer))
}
