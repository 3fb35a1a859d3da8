//! Every text that tells a client why it did not get what it asked for. Made here and nowhere else.
//!
//! An error is a prefix, a space and one line of text that says what to do. "No id was produced" never starts with `ERR`
//! (phpredis turns those into `false`), except where Redis' own text does. What a client has sent is shown escaped and
//! cut to 128 bytes. The word that makes clients reconnect to another node stands in no text but its own: recipes for
//! several clients look for it anywhere in a message.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use super::Spec;
use super::limits::Scope;
use crate::ids::MAX_ID;
use crate::resp::Request;
use crate::router;
use crate::router::Refusal;

/// How many bytes of what a client has sent an error shows.
pub const MAX_SHOWN: usize = 128;

/// The first word of an error, by which clients tell what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Prefix {
    /// Redis' own texts for requests that can't be right.
    Err,
    /// A transaction that was given up.
    ExecAbort,
    /// A login is needed.
    NoAuth,
    /// A login failed.
    WrongPass,
    /// The user may not do this.
    NoPerm,
    /// An unknown version of the protocol.
    NoProto,
    /// The node can't serve any tag yet, or is leaving.
    Loading,
    /// The node has no worker id: go to another one.
    ReadOnly,
    /// Waited as long as one may.
    TryAgain,
    /// The store failed.
    IdBackend,
    /// The node's clock stands still or went back.
    IdClock,
    /// A number of ids that is not served.
    IdCount,
    /// More ids than a rate limit allows now.
    IdLimit,
    /// The tag does not exist.
    IdNoTag,
    /// The command does not fit the tag, or an id server.
    IdType,
    /// No ids are left.
    IdExhausted,
    /// The tag stands with another definition.
    IdConflict,
    /// The tag is retired.
    IdRetired,
    /// Not a tag.
    IdTag,
}

impl Prefix {
    /// The word on the wire.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.words().0
    }

    /// The word in lower case: the `status` label of `idgen_requests_total`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        self.words().1
    }

    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Err => ("ERR", "err"),
            Self::ExecAbort => ("EXECABORT", "execabort"),
            Self::NoAuth => ("NOAUTH", "noauth"),
            Self::WrongPass => ("WRONGPASS", "wrongpass"),
            Self::NoPerm => ("NOPERM", "noperm"),
            Self::NoProto => ("NOPROTO", "noproto"),
            Self::Loading => ("LOADING", "loading"),
            Self::ReadOnly => ("READONLY", "readonly"),
            Self::TryAgain => ("TRYAGAIN", "tryagain"),
            Self::IdBackend => ("IDBACKEND", "idbackend"),
            Self::IdClock => ("IDCLOCK", "idclock"),
            Self::IdCount => ("IDCOUNT", "idcount"),
            Self::IdLimit => ("IDLIMIT", "idlimit"),
            Self::IdNoTag => ("IDNOTAG", "idnotag"),
            Self::IdType => ("IDTYPE", "idtype"),
            Self::IdExhausted => ("IDEXHAUSTED", "idexhausted"),
            Self::IdConflict => ("IDCONFLICT", "idconflict"),
            Self::IdRetired => ("IDRETIRED", "idretired"),
            Self::IdTag => ("IDTAG", "idtag"),
        }
    }
}

/// Why a request was refused: what is written behind the `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    prefix: Prefix,
    text: Cow<'static, str>,
}

impl Error {
    fn new(prefix: Prefix, text: impl Into<Cow<'static, str>>) -> Self {
        Self { prefix, text: text.into() }
    }

    /// The first word.
    #[must_use]
    pub const fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// The text behind the prefix.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The whole line without the leading `-` and the line end.
    #[must_use]
    pub fn line(&self) -> String {
        let line = format!("{} {}", self.prefix.word(), self.text);
        match self.prefix {
            Prefix::ReadOnly => line,
            _ => line.replace("READONLY", "READ-ONLY"),
        }
    }

    /// Appends the error as a reply.
    pub fn write(&self, out: &mut Vec<u8>) {
        crate::resp::error(out, &self.line());
    }

    // Requests that can't be right, in Redis' words.

    pub(super) fn unknown_command(request: &Request<'_>) -> Self {
        let mut text = format!("unknown command '{}', with args beginning with: ", shown(request.name()));
        let mut listed = 0;
        for arg in request.args().skip(1) {
            if listed >= MAX_SHOWN {
                break;
            }
            let arg = shown_up_to(arg, MAX_SHOWN - listed);
            listed += arg.len() + 3;
            let _ = write!(text, "'{arg}' ");
        }
        Self::new(Prefix::Err, text)
    }

    pub(super) fn unknown_subcommand(container: &str, subcommand: &[u8]) -> Self {
        let container = container.to_ascii_uppercase();
        Self::new(Prefix::Err, format!("unknown subcommand '{}'. Try {container} HELP.", shown(subcommand)))
    }

    pub(super) fn arity(command: &str) -> Self {
        Self::new(Prefix::Err, format!("wrong number of arguments for '{command}' command"))
    }

    pub(super) fn not_an_integer() -> Self {
        Self::new(Prefix::Err, "value is not an integer or out of range")
    }

    pub(super) fn syntax() -> Self {
        Self::new(Prefix::Err, "syntax error")
    }

    /// Redis' words and what they are about, for the commands that Redis has not: `near` is what the client sent.
    fn syntax_near(near: &[u8], why: &str) -> Self {
        Self::new(Prefix::Err, format!("syntax error near '{}': {why}", shown(near)))
    }

    /// Something that `spec` does not take there.
    pub(super) fn unexpected(spec: &Spec, near: &[u8]) -> Self {
        Self::syntax_near(near, &format!("use {}", spec.usage()))
    }

    pub(super) fn stands_twice(near: &[u8]) -> Self {
        Self::syntax_near(near, "an option may stand there once")
    }

    pub(super) fn fixed_option(near: &[u8]) -> Self {
        Self::syntax_near(near, "ENGINE, ORDER and START are fixed when a tag is created")
    }

    pub(super) fn bad_traceparent(near: &[u8]) -> Self {
        Self::syntax_near(
            near,
            "TRACEPARENT takes 2, 32, 16 and 2 hexadecimal digits in lower case with - between them, no part of a trace \
             or span all zero",
        )
    }

    /// An option of our own commands with a value that it can't have.
    pub(super) fn bad_option(option: &str, wanted: &str) -> Self {
        Self::new(Prefix::Err, format!("{option} must be {wanted}"))
    }

    /// A text of Redis that only one command has.
    pub(super) fn redis(text: &'static str) -> Self {
        Self::new(Prefix::Err, text)
    }

    /// A text of Redis that only one command has, around something the client sent; `{}` marks its place.
    pub(super) fn redis_about(text: &str, sent: &[u8]) -> Self {
        Self::new(Prefix::Err, text.replace("{}", &shown(sent)))
    }

    pub(super) fn not_in_subscribed_mode(command: &str) -> Self {
        Self::new(
            Prefix::Err,
            format!(
                "Can't execute '{command}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in \
                 this context"
            ),
        )
    }

    pub(super) fn cluster_off() -> Self {
        Self::new(Prefix::Err, "This instance has cluster support disabled")
    }

    pub(super) fn not_in_transaction() -> Self {
        Self::new(Prefix::Err, "Command not allowed inside a transaction")
    }

    pub(super) fn exec_abort() -> Self {
        Self::new(Prefix::ExecAbort, "Transaction discarded because of previous errors.")
    }

    /// `EXEC` itself was refused.
    pub(super) fn exec_refused(why: &Self) -> Self {
        let line = if why.prefix == Prefix::Err { why.text.clone().into_owned() } else { why.line() };
        Self::new(Prefix::ExecAbort, format!("Transaction discarded because of: {line}"))
    }

    // Logins and rights.

    pub(super) fn no_auth() -> Self {
        Self::new(Prefix::NoAuth, "Authentication required.")
    }

    pub(super) fn no_auth_hello() -> Self {
        Self::new(
            Prefix::NoAuth,
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
             option can be used to authenticate the client and select the RESP protocol version at the same time",
        )
    }

    pub(super) fn wrong_pass() -> Self {
        Self::new(Prefix::WrongPass, "invalid username-password pair or user is disabled.")
    }

    pub(super) fn no_password_set() -> Self {
        Self::redis(
            "AUTH <password> called without any password configured for the default user. Are you sure your \
             configuration is correct?",
        )
    }

    pub(super) fn no_perm_command(user: &str, command: &str) -> Self {
        Self::new(Prefix::NoPerm, format!("User {user} has no permissions to run the '{command}' command"))
    }

    pub(super) fn no_perm_tag() -> Self {
        Self::new(Prefix::NoPerm, "No permissions to access a key")
    }

    pub(super) fn no_proto() -> Self {
        Self::new(Prefix::NoProto, "unsupported protocol version")
    }

    // The state of the node.

    pub(super) fn loading(missing: &[String]) -> Self {
        let reason = if missing.is_empty() { "it is starting".to_owned() } else { missing.join("; ") };
        Self::new(Prefix::Loading, format!("idgen is not ready, try again in a second: {reason}"))
    }

    pub(super) fn draining() -> Self {
        Self::new(Prefix::Loading, "idgen is stopping: connect to another node")
    }

    // Ids.

    pub(super) fn bad_tag() -> Self {
        Self::new(
            Prefix::IdTag,
            "a tag is 1 to 128 bytes of printable ASCII without space, quotes and backslash: use another name",
        )
    }

    pub(super) fn bad_count(most: u64) -> Self {
        Self::new(Prefix::IdCount, format!("the number of ids must be an integer from 1 to {most}"))
    }

    pub(super) fn too_many_ids(most: u64) -> Self {
        Self::new(Prefix::IdCount, format!("the number of ids must be at most {most}: ask several times"))
    }

    /// A limit of `qps` ids per second has nothing left for `wait`.
    pub(super) fn limited(scope: Scope<'_>, qps: u64, wait: Duration) -> Self {
        let who = match scope {
            Scope::User(name) => format!("user '{name}' may draw"),
            Scope::Node => "this node may give".to_owned(),
            Scope::Tag(tag) => format!("tag '{tag}' may give"),
        };
        let here = if scope == Scope::Node { "" } else { " on this node" };
        let ids = if qps == 1 { "id" } else { "ids" };
        let wait = wait.as_nanos().div_ceil(1_000_000).max(1);
        Self::new(Prefix::IdLimit, format!("{who} {qps} {ids} per second{here}: retry after {wait} ms"))
    }

    /// A request for more ids than a limit ever has at once.
    pub(super) fn above_burst(scope: Scope<'_>, most: u64) -> Self {
        let text = match scope {
            Scope::User(name) => {
                format!("user '{name}' may draw at most {most} ids at once on this node: ask for fewer")
            }
            Scope::Node => {
                format!("this node may give at most {most} ids at once: ask for fewer, or raise rate_limit.burst")
            }
            Scope::Tag(tag) => format!(
                "tag '{tag}' may give at most {most} ids at once on this node: ask for fewer, or raise it with \
                 IDTAG ALTER {tag} BURST n"
            ),
        };
        Self::new(Prefix::IdCount, text)
    }

    pub(super) fn bad_id() -> Self {
        Self::new(Prefix::IdCount, "an id is an integer from 1 to 9223372036854775807")
    }

    pub(super) fn no_id_of_layout(id: u64, layout: &str) -> Self {
        Self::new(
            Prefix::IdType,
            format!(
                "{id} is no Snowflake id of this layout ({layout}): ask nodes that have the layout it was made with"
            ),
        )
    }

    pub(super) fn too_many_queued(commands: usize, bytes: usize) -> Self {
        Self::new(
            Prefix::IdCount,
            format!(
                "a transaction holds at most {commands} commands and {bytes} bytes: use smaller ones or a pipeline"
            ),
        )
    }

    pub(super) fn too_much(command: &str, instead: &str) -> Self {
        Self::new(Prefix::IdCount, format!("the reply of {command} would be too large: {instead}"))
    }

    pub(super) fn too_many_channels(most: usize, bytes: usize) -> Self {
        Self::new(
            Prefix::IdCount,
            format!(
                "a connection can subscribe to at most {most} channels of {bytes} bytes in all, and nothing is ever \
                 published here"
            ),
        )
    }

    pub(super) fn refused_command(command: &str, instead: &str) -> Self {
        let command = command.to_ascii_uppercase();
        Self::new(Prefix::IdType, format!("{command} is not for an id server, where ids only go up: {instead}"))
    }

    pub(super) fn too_many_watched(most: usize) -> Self {
        Self::new(Prefix::IdCount, format!("a connection can watch at most {most} tags: UNWATCH first"))
    }

    pub(super) fn no_tracking() -> Self {
        Self::new(
            Prefix::IdType,
            "a tag changes with every id, so nothing may be cached: CLIENT TRACKING ON only with OPTIN, and no CACHING YES",
        )
    }

    pub(super) fn segment_decode(tag: &[u8]) -> Self {
        Self::new(
            Prefix::IdType,
            format!("tag '{}' is a segment tag: its ids are counted and hold nothing to decode", shown(tag)),
        )
    }

    pub(super) fn still_waiting(tag: &str, waited_ms: u128) -> Self {
        Self::new(Prefix::TryAgain, format!("tag '{tag}' had no id within {waited_ms} ms: ask again"))
    }

    pub(super) fn short_of_ids(tag: &str) -> Self {
        Self::new(Prefix::IdBackend, format!("the engine of tag '{tag}' gave fewer ids than it said: report this"))
    }

    /// An engine's refusal; `tag` is empty where the request was not about one.
    pub(super) fn refused(tag: &str, refusal: &Refusal) -> Self {
        let about = |why: &str| if tag.is_empty() { why.to_owned() } else { format!("tag '{tag}': {why}") };
        match refusal {
            Refusal::TryAgain(why) => Self::new(Prefix::TryAgain, about(why) + ": ask again"),
            Refusal::Backend(why) => Self::new(Prefix::IdBackend, about(why)),
            Refusal::NoWorker(why) => {
                Self::new(Prefix::ReadOnly, format!("idgen node has no worker id, reconnect: {why}"))
            }
            Refusal::Clock(why) => {
                Self::new(Prefix::IdClock, format!("{why}: use another node until the clock is right"))
            }
            Refusal::Exhausted(why) => Self::new(Prefix::IdExhausted, about(why) + ": use a segment tag"),
            Refusal::AtMax { max, left } => Self::at_max(tag, *max, *left),
            Refusal::TooMany(most) => Self::too_many_ids(*most),
            Refusal::Retired => {
                Self::new(Prefix::IdRetired, format!("tag '{tag}' is retired for ever: use another tag"))
            }
        }
    }

    /// A segment tag has only `left` ids left up to its `max`.
    fn at_max(tag: &str, max: u64, left: u64) -> Self {
        let (what, other) = match left {
            0 => (format!("tag '{tag}' has no ids left up to"), "use another tag"),
            1 => (format!("tag '{tag}' has only 1 id left for one request up to"), "ask for fewer"),
            _ => (format!("tag '{tag}' has only {left} ids left for one request up to"), "ask for fewer"),
        };
        let text = match (max < MAX_ID, left) {
            (true, _) => format!("{what} MAX {max}: {other}, or raise it with IDTAG ALTER {tag} MAX n"),
            (false, 0) => format!("{what} {max}, the largest id there is: {other}"),
            (false, _) => format!("{what} {max}, the largest id there is: {other}, or use another tag"),
        };
        Self::new(Prefix::IdExhausted, text)
    }

    pub(super) fn router(tag: &str, error: &router::Error) -> Self {
        match error {
            router::Error::Refused(refusal) => Self::refused(tag, refusal),
            router::Error::NoTag(text) => Self::new(Prefix::IdNoTag, text.clone()),
            router::Error::Conflict(text) => Self::new(Prefix::IdConflict, text.clone()),
            router::Error::WrongType(text) => Self::new(Prefix::IdType, text.clone()),
        }
    }
}

/// What a client has sent, fit for a line of text: bytes that are not printable ASCII are escaped (a line break becomes
/// a space, as in Redis), and nothing goes beyond [`MAX_SHOWN`] bytes.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    shown_up_to(bytes, MAX_SHOWN)
}

fn shown_up_to(bytes: &[u8], most: usize) -> String {
    let mut text = String::new();
    for &byte in bytes {
        let before = text.len();
        match byte {
            b'\r' | b'\n' => text.push(' '),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
        if text.len() > most {
            text.truncate(before);
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::{Limits, Scan, Scanner};

    fn unknown(bytes: &[u8]) -> String {
        let mut scanner = Scanner::new();
        match scanner.next(bytes, &Limits::AFTER_LOGIN) {
            Ok(Scan::Request(request)) => Error::unknown_command(&request).line(),
            _ => panic!("no request"),
        }
    }

    #[test]
    fn an_unknown_command_is_told_in_the_words_of_redis() {
        assert_eq!(
            unknown(b"*3\r\n$3\r\nFOO\r\n$1\r\na\r\n$2\r\nb \r\n"),
            "ERR unknown command 'FOO', with args beginning with: 'a' 'b ' "
        );
        assert_eq!(unknown(b"foo\r\n"), "ERR unknown command 'foo', with args beginning with: ");
        let long = unknown(format!("{} {} more\r\n", "x".repeat(200), "y".repeat(200)).as_bytes());
        let expected =
            format!("ERR unknown command '{}', with args beginning with: '{}' ", "x".repeat(128), "y".repeat(128));
        assert_eq!(long, expected);
    }

    #[test]
    fn what_a_client_sent_cannot_break_a_line_or_fill_it() {
        assert_eq!(shown(b"a\r\nb\x00\xff"), "a  b\\x00\\xff");
        assert_eq!(shown(&[0; 100]).len(), 128);
    }

    #[test]
    fn only_one_error_has_the_word_that_makes_clients_go_elsewhere() {
        assert!(!unknown(b"FOO READONLY\r\n").contains("READONLY"));
        let backend = Error::refused("READONLY", &Refusal::Backend("READONLY database".into()));
        assert_eq!(backend.line(), "IDBACKEND tag 'READ-ONLY': READ-ONLY database");
        let worker = Error::refused("order", &Refusal::NoWorker("all are taken".into()));
        assert_eq!(worker.line(), "READONLY idgen node has no worker id, reconnect: all are taken");
    }

    #[test]
    fn private_prefixes_begin_with_no_word_that_clients_act_on() {
        use Prefix::{
            IdBackend, IdClock, IdConflict, IdCount, IdExhausted, IdLimit, IdNoTag, IdRetired, IdTag, IdType,
        };
        let private =
            [IdBackend, IdClock, IdCount, IdLimit, IdNoTag, IdType, IdExhausted, IdConflict, IdRetired, IdTag];
        let acted_on = [
            "ASK",
            "MOVED",
            "REDIRECT",
            "LOADING",
            "READONLY",
            "BUSY",
            "OOM",
            "WAIT",
            "TRYAGAIN",
            "NOAUTH",
            "NOPERM",
            "WRONGPASS",
            "CLUSTERDOWN",
            "MASTERDOWN",
            "NOSCRIPT",
            "NOREPLICAS",
            "EXECABORT",
            "CROSSSLOT",
            "MISCONF",
            "ERR",
        ];
        for prefix in private {
            assert!(!acted_on.iter().any(|word| prefix.word().starts_with(word)), "{prefix:?}");
            assert_eq!(prefix.word().to_ascii_lowercase(), prefix.label());
        }
    }

    #[test]
    fn a_limit_says_whose_it_is_and_how_long_to_wait() {
        let limited = |scope, qps, micros| Error::limited(scope, qps, Duration::from_micros(micros)).line();
        assert_eq!(
            limited(Scope::Tag("x"), 1000, 11_001),
            "IDLIMIT tag 'x' may give 1000 ids per second on this node: retry after 12 ms"
        );
        assert_eq!(limited(Scope::Node, 1, 0), "IDLIMIT this node may give 1 id per second: retry after 1 ms");
        assert_eq!(
            limited(Scope::User("bob"), 50, 20_000),
            "IDLIMIT user 'bob' may draw 50 ids per second on this node: retry after 20 ms"
        );
        assert_eq!(
            Error::above_burst(Scope::Tag("x"), 50).line(),
            "IDCOUNT tag 'x' may give at most 50 ids at once on this node: ask for fewer, or raise it with IDTAG ALTER x BURST n"
        );
        assert_eq!(
            Error::above_burst(Scope::Node, 50).line(),
            "IDCOUNT this node may give at most 50 ids at once: ask for fewer, or raise rate_limit.burst"
        );
        assert_eq!(
            Error::above_burst(Scope::User("bob"), 50).line(),
            "IDCOUNT user 'bob' may draw at most 50 ids at once on this node: ask for fewer"
        );
    }

    #[test]
    fn refusals_say_what_to_do() {
        let cases = [
            (Refusal::TryAgain("a refill runs".into()), "TRYAGAIN tag 'order': a refill runs: ask again"),
            (Refusal::Backend("disk full".into()), "IDBACKEND tag 'order': disk full"),
            (
                Refusal::Clock("the clock went back".into()),
                "IDCLOCK the clock went back: use another node until the clock is right",
            ),
            (Refusal::Exhausted("the end".into()), "IDEXHAUSTED tag 'order': the end: use a segment tag"),
            (
                Refusal::AtMax { max: 5, left: 0 },
                "IDEXHAUSTED tag 'order' has no ids left up to MAX 5: use another tag, or raise it with IDTAG ALTER order MAX n",
            ),
            (
                Refusal::AtMax { max: 5, left: 1 },
                "IDEXHAUSTED tag 'order' has only 1 id left for one request up to MAX 5: ask for fewer, or raise it with \
                 IDTAG ALTER order MAX n",
            ),
            (
                Refusal::AtMax { max: 5, left: 2 },
                "IDEXHAUSTED tag 'order' has only 2 ids left for one request up to MAX 5: ask for fewer, or raise it with \
                 IDTAG ALTER order MAX n",
            ),
            (
                Refusal::AtMax { max: MAX_ID, left: 0 },
                "IDEXHAUSTED tag 'order' has no ids left up to 9223372036854775807, the largest id there is: use another tag",
            ),
            (
                Refusal::AtMax { max: MAX_ID, left: 2 },
                "IDEXHAUSTED tag 'order' has only 2 ids left for one request up to 9223372036854775807, the largest id \
                 there is: ask for fewer, or use another tag",
            ),
            (Refusal::TooMany(4080), "IDCOUNT the number of ids must be at most 4080: ask several times"),
            (Refusal::Retired, "IDRETIRED tag 'order' is retired for ever: use another tag"),
        ];
        for (refusal, expected) in cases {
            assert_eq!(Error::refused("order", &refusal).line(), expected);
        }
    }
}
