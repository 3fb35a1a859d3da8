//! What an error of the driver or the server means for the caller and for the connection. Pure.
//!
//! A server that reports an `ERROR` has rolled back, whatever the code, so nothing happened. A session that ends (`FATAL`,
//! a lost connection, an answer that makes no sense) while a statement commits leaves it open whether it has: unknown.
//! Before a statement was sent, and where it changes nothing or its transaction still waits for `COMMIT`, the same means
//! that nothing happened.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::store::{Kind, StoreError};

/// What a statement could have done when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing: it only reads, or its transaction is not committed yet.
    Nothing,
    /// Its end is its commit.
    Commit,
}

/// What follows from an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// For the caller.
    pub(super) error: StoreError,
    /// Whether the connection has to be closed.
    pub(super) close: bool,
    /// Whether the other connections are likely to be of no use either, because their server has gone or may not be written
    /// to: those that lie idle are closed, and the next one is made to wherever the server's name leads by then.
    pub(super) astray: bool,
}

/// What the error of a statement means that was sent on a connection to `place`.
pub(super) fn of_statement(error: &sqlx::Error, effect: Effect, place: &str) -> Failure {
    let Some(database) = error.as_database_error() else { return lost(effect, place, &words(error)) };
    let code = database.code().unwrap_or_default();
    let ended = severity(error).is_none_or(|severity| matches!(severity, PgSeverity::Fatal | PgSeverity::Panic));
    // The classes of lost connections and of an operator's hand end the session, under whatever severity they come.
    if ended || code.starts_with("08") || (code.starts_with("57P")) {
        return lost(effect, place, &words(error));
    }
    let (kind, reason) = of_code(&code);
    let astray = reason == "readonly";
    Failure { error: told(kind, reason, place, &words(error)), close: astray, astray }
}

/// What it means that there was no connection to send a statement on: nothing has happened.
pub(super) fn of_acquiring(error: &sqlx::Error, place: &str) -> StoreError {
    let (kind, reason) = match (error, error.as_database_error().and_then(sqlx::error::DatabaseError::code)) {
        (_, Some(code)) if code.starts_with("28") || code == "3D000" => (Kind::Permanent, "login"),
        (_, Some(code)) if code == "42501" => (Kind::Permanent, "permission"),
        (_, Some(code)) if code.starts_with("53") => (Kind::Transient, "busy"),
        (sqlx::Error::Tls(_), _) => (Kind::Permanent, "tls"),
        // A handshake that failed comes as this.
        (sqlx::Error::Io(error), _) if error.kind() == std::io::ErrorKind::InvalidData => (Kind::Permanent, "tls"),
        (sqlx::Error::Configuration(_), _) => (Kind::Permanent, "sql"),
        _ => (Kind::Transient, "connection"),
    };
    told(kind, reason, place, &words(error))
}

/// What it means that the client's time limit passed: the statement may still end.
pub(super) fn of_silence(effect: Effect, place: &str, limit: std::time::Duration) -> Failure {
    let Failure { error, .. } = lost(effect, place, &format!("no answer within {limit:?}"));
    Failure { error: error.because("timeout"), close: true, astray: false }
}

/// An error in words for people, in one line; the driver's and the server's texts hold no password.
pub(super) fn words(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(database) => database.message().replace(['\r', '\n'], " "),
        sqlx::Error::PoolTimedOut => "no connection in time: refused, not reachable, or all in use".into(),
        // Without the driver's words before it.
        sqlx::Error::Io(error) => error.to_string().replace(['\r', '\n'], " "),
        _ => error.to_string().replace(['\r', '\n'], " "),
    }
}

fn told(kind: Kind, reason: &'static str, place: &str, words: &str) -> StoreError {
    StoreError::new(kind, format!("{place}: {words}")).because(reason)
}

fn lost(effect: Effect, place: &str, words: &str) -> Failure {
    let kind = if effect == Effect::Commit { Kind::Unknown } else { Kind::Transient };
    Failure { error: told(kind, "connection", place, words), close: true, astray: true }
}

/// An error of a statement that was rolled back, by its SQLSTATE.
fn of_code(code: &str) -> (Kind, &'static str) {
    match code {
        "40001" | "40P01" => (Kind::Transient, "deadlock"),
        "55P03" => (Kind::Transient, "locked"),
        "57014" => (Kind::Transient, "timeout"),
        "25006" => (Kind::Transient, "readonly"),
        "53100" => (Kind::Permanent, "full"),
        "42501" => (Kind::Permanent, "permission"),
        "42P01" => (Kind::Permanent, "gone"),
        _ if code.starts_with("53") => (Kind::Transient, "busy"),
        _ if code.starts_with("40") => (Kind::Transient, "deadlock"),
        _ if code.starts_with("23") => (Kind::Conflict, "constraint"),
        _ if code.starts_with("58") => (Kind::Permanent, "io"),
        _ if code.starts_with("XX") => (Kind::Permanent, "corrupt"),
        _ => (Kind::Permanent, "sql"),
    }
}

fn severity(error: &sqlx::Error) -> Option<PgSeverity> {
    Some(error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?.severity())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_rolled_back_did_not_happen() {
        for code in ["40001", "40P01", "55P03", "57014", "25006", "53200", "53300"] {
            assert_eq!(of_code(code).0, Kind::Transient, "{code}");
        }
        for code in ["42601", "42501", "42P01", "53100", "58030", "XX001", "22003", "0A000"] {
            assert_eq!(of_code(code).0, Kind::Permanent, "{code}");
        }
        assert_eq!(of_code("23514"), (Kind::Conflict, "constraint"));
    }

    #[test]
    fn a_lost_connection_leaves_only_a_commit_open() {
        let cut = sqlx::Error::Io(std::io::ErrorKind::UnexpectedEof.into());
        let failure = of_statement(&cut, Effect::Commit, "db:5432/ids");
        assert_eq!((failure.error.kind, failure.close), (Kind::Unknown, true));
        assert!(failure.error.text.starts_with("db:5432/ids: "), "{}", failure.error.text);
        let failure = of_statement(&cut, Effect::Nothing, "db");
        assert_eq!((failure.error.kind, failure.close), (Kind::Transient, true));
        let garbled = sqlx::Error::Protocol("an answer out of turn".into());
        assert_eq!(of_statement(&garbled, Effect::Commit, "db").error.kind, Kind::Unknown);
        assert_eq!(of_acquiring(&cut, "db").kind, Kind::Transient);
        let stranger = sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, "UnknownIssuer"));
        assert_eq!(
            (of_acquiring(&stranger, "db").kind, of_acquiring(&stranger, "db").reason),
            (Kind::Permanent, "tls")
        );
        let late = of_silence(Effect::Commit, "db", std::time::Duration::from_secs(3));
        assert_eq!((late.error.kind, late.error.reason, late.close), (Kind::Unknown, "timeout", true));
    }
}
