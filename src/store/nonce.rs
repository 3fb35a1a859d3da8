//! The random number that every statement which writes `max_id` writes beside it: by it a tail return knows that the row
//! still ends with its own node's last grant.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Kind, StoreError};
use crate::ids::random_u128;

/// Whether all are the same, which only a test asks for.
static SAME: AtomicBool = AtomicBool::new(false);

/// Plants B21 in this process, for tests that show that it would be found: all nonces are the same from now on, so that a
/// tail return is as good as without one. Does nothing in builds without debug assertions.
pub fn plant_same() {
    SAME.store(cfg!(debug_assertions), Ordering::Relaxed);
}

/// A fresh nonce.
pub(super) fn fresh() -> Result<u128, StoreError> {
    if cfg!(debug_assertions) && SAME.load(Ordering::Relaxed) {
        return Ok(0);
    }
    random_u128().map_err(|error| StoreError::new(Kind::Permanent, format!("no randomness for a grant: {error}")))
}
