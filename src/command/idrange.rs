//! `IDRANGE tag n [STR] [TRACEPARENT value]`: exactly n ids as runs, first and last of each, inclusive.

use super::session::{Call, Session};
use super::{draw, idmget};
use crate::resp::{array_header, id};
use crate::router::Demand;

pub(super) async fn execute(session: &mut Session, call: &Call<'_>, out: &mut Vec<u8>) {
    match draw::many(session, call, idmget::wanted(call, Demand::Batch)).await {
        Ok((_, shape)) => {
            array_header(out, session.ranges.len() * 2);
            for range in &session.ranges {
                id(out, shape, range.start());
                id(out, shape, range.last());
            }
        }
        Err(error) => error.write(out),
    }
}
