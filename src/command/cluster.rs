//! `CLUSTER …`, `READONLY`, `READWRITE`, `ASKING`: every node answers for all tags, so there are no slots to tell of.
//! Clients look for exactly this sentence to find out that they talk to no Redis Cluster.

use super::Error;
use super::session::{Call, Session};
use crate::resp::Value;

pub(super) fn off(_: &mut Session, _: &Call<'_>) -> Result<Value, Error> {
    Err(Error::cluster_off())
}
