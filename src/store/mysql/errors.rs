//! What an error of the server or of the way to it means for the caller.
//!
//! The question is always whether something may have happened. An error before a statement was sent, and one inside a
//! transaction that was never committed, is harmless. A write that commits by itself, or the commit, is known to have
//! failed only where the server says so with a code that means it; everything else is unknown.

use sqlx::mysql::MySqlDatabaseError;

use crate::store::{Kind, StoreError};

/// When an error came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before any statement was sent.
    Connecting,
    /// At a read, or inside a transaction that can't be committed any more.
    Undone,
    /// At a statement that commits, or at the commit.
    Committing,
}

/// Codes of statements that the server has refused or rolled back, with what they mean.
const REFUSED: &[(&[u16], Kind, &str)] = &[
    // Deadlock; somebody else held the row too long; the row changed meanwhile.
    (&[1213], Kind::Transient, "deadlock"),
    (&[1205, 1020], Kind::Transient, "locked"),
    // Too many connections, of all or of this user.
    (&[1040, 1203, 1226], Kind::Transient, "connections"),
    // A replica, or a primary that is none any more. The next connection may lead to the new one.
    (&[1290, 1792, 1836], Kind::Transient, "readonly"),
    (&[1129], Kind::Permanent, "blocked"),
    (&[1045, 1044, 1698, 1524, 4151, 3118], Kind::Permanent, "access"),
    (&[1142, 1143, 1227, 1370], Kind::Permanent, "permission"),
    (&[1146, 1049, 1054, 1064, 1665], Kind::Permanent, "schema"),
    (&[1062, 3819, 4025, 1264, 1690, 1048, 1406], Kind::Conflict, "constraint"),
    (&[1114, 1021], Kind::Permanent, "full"),
];

/// Reasons after which a connection is as good as before.
const SOUND: [&str; 4] = ["deadlock", "locked", "constraint", "permission"];

/// Whether the connection on which `error` came must not be used again.
pub(super) fn closes(error: &StoreError) -> bool {
    !SOUND.contains(&error.reason)
}

/// What `error` means that came in `phase`.
pub(super) fn meaning(error: &sqlx::Error, phase: Phase, place: &str) -> StoreError {
    let (kind, reason) = match error {
        sqlx::Error::Database(database) => refused(number(&**database), phase),
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => (Kind::Transient, "connection"),
        sqlx::Error::Tls(_) => (Kind::Permanent, "tls"),
        sqlx::Error::Configuration(_) => (Kind::Permanent, "configuration"),
        _ if phase == Phase::Committing => (Kind::Unknown, "connection"),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => (Kind::Transient, "connection"),
        _ => (Kind::Permanent, "sql"),
    };
    StoreError::new(kind, format!("{place}: {}", words(error))).because(reason)
}

fn refused(number: u16, phase: Phase) -> (Kind, &'static str) {
    let known = REFUSED.iter().find(|(numbers, ..)| numbers.contains(&number));
    match known {
        Some(&(_, kind, reason)) => (kind, reason),
        // Interrupted, killed, shutting down, out of time, and what nobody here has heard of.
        None if phase == Phase::Committing => (Kind::Unknown, "interrupted"),
        None if [1053, 1317, 1927, 1969, 3024, 3169, 1158, 1159, 1160, 1161, 1152, 1047, 4031].contains(&number) => {
            (Kind::Transient, "interrupted")
        }
        None => (Kind::Permanent, "sql"),
    }
}

/// The server's number of the error; 0 where it has none.
pub(super) fn number(error: &dyn sqlx::error::DatabaseError) -> u16 {
    error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
}

/// An error in words for people, in one line.
pub(super) fn words(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::PoolTimedOut => "no connection in time; look whether the server runs and can be reached".into(),
        // In our own words: clients would take the server's for those of a Redis replica.
        sqlx::Error::Database(database) if [1290, 1792, 1836].contains(&number(&**database)) => {
            "the server takes no writes: a replica, or about to be one".into()
        }
        sqlx::Error::Database(database) => {
            format!("{} ({})", database.message().replace(['\r', '\n'], " "), number(&**database))
        }
        _ => error.to_string().replace(['\r', '\n'], " "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_broke_off_is_unknown_and_one_that_was_refused_is_not() {
        for (number, kind) in [
            (1213, Kind::Transient),
            (1205, Kind::Transient),
            (1290, Kind::Transient),
            (1146, Kind::Permanent),
            (1053, Kind::Unknown),
            (1317, Kind::Unknown),
            (1969, Kind::Unknown),
            (1180, Kind::Unknown),
            (60_000, Kind::Unknown),
        ] {
            assert_eq!(refused(number, Phase::Committing).0, kind, "{number}");
        }
        assert_eq!(refused(1053, Phase::Undone).0, Kind::Transient);
        let broken = || sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        assert_eq!(meaning(&broken(), Phase::Committing, "x").kind, Kind::Unknown);
        assert_eq!(meaning(&broken(), Phase::Undone, "x").kind, Kind::Transient);
        assert_eq!(meaning(&sqlx::Error::PoolTimedOut, Phase::Connecting, "x").kind, Kind::Transient);
    }

    #[test]
    fn a_connection_is_kept_only_after_errors_that_say_nothing_about_it() {
        for (number, closed) in [(1213, false), (1205, false), (4025, false), (1290, true), (1836, true), (1045, true)]
        {
            let (kind, reason) = refused(number, Phase::Undone);
            assert_eq!(closes(&StoreError::new(kind, "x").because(reason)), closed, "{number}");
        }
    }
}
