//! Departures from the right behaviour that a test of the whole program asks for and has to catch (`IDGEN_TEST_BUG`): in
//! builds with debug assertions only.

use crate::engine::segment::{self, buffer, outcome};
use crate::server;
use crate::store::{mysql, nonce};

fn is_planted(bug: &str) -> bool {
    cfg!(debug_assertions) && crate::config::seeded_bug().as_deref() == Some(bug)
}

/// The rules of the connections.
pub(super) fn of_server() -> server::Rules {
    server::Rules { unbounded_output: is_planted("B18") }
}

/// The rules of the segment tags; those of the stores are planted with them.
pub(super) fn of_segments() -> segment::Rules {
    if is_planted("B21") {
        nonce::plant_same();
    }
    segment::Rules {
        buffer: buffer::Rules { accept_lower: is_planted("B17"), late_replaces: is_planted("B12") },
        outcome: outcome::Rules { publish_early: is_planted("B4"), reuse_unknown: is_planted("B5") },
    }
}

/// The rules of grants on MySQL.
pub(super) fn of_mysql() -> mysql::Rules {
    mysql::Rules { update_then_select: is_planted("B6") }
}
