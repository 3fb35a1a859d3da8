//! `IDMGET tag n [STR] [TRACEPARENT value]`: n ids as one array, or an error; never a part.

use super::idget::Form;
use super::session::{Call, Session};
use super::{Error, draw, number};
use crate::resp::{IdForm, array_header, ids};
use crate::router::Demand;

pub(super) async fn execute(session: &mut Session, call: &Call<'_>, out: &mut Vec<u8>) {
    match draw::many(session, call, wanted(call, Demand::Batch)).await {
        Ok((demand, shape)) => {
            array_header(out, usize::try_from(demand.count()).unwrap_or(usize::MAX));
            for range in &session.ranges {
                ids(out, shape, range.start(), range.end());
            }
        }
        Err(error) => error.write(out),
    }
}

/// What `… tag n [STR] [TRACEPARENT value]` asks for.
pub(super) fn wanted(call: &Call<'_>, demand: fn(u64) -> Demand) -> Result<(Demand, IdForm), Error> {
    let form = Form::read(call, 3)?;
    let count = number::count(call.arg(2), call.context.settings.max_count)?;
    Ok((demand(count), form.shape))
}
