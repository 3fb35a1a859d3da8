//! What a row of the command table says, and how a row is found by the name a client has sent.
//!
//! `COMMAND`, `COMMAND DOCS`, arity, rights and the README's table all come from these rows. A subcommand is a row of its
//! own, named `container|subcommand`.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::Error;
use super::session::{Call, Session};
use super::table::{IDGET, INCR, TABLE, refusal};
use crate::resp::{Request, Value};

/// Properties of a command, as bits. The names in the replies of `COMMAND` are in [`Spec::flag_names`].
pub(super) type Flags = u16;

/// Draws ids or changes a tag.
pub(super) const WRITE: Flags = 1;
/// Reads and changes nothing.
pub(super) const READONLY: Flags = 1 << 1;
/// For operators.
pub(super) const ADMIN: Flags = 1 << 2;
/// Belongs to publish and subscribe.
pub(super) const PUBSUB: Flags = 1 << 3;
/// Goes on while the node can't serve any tag yet.
pub(super) const LOADING: Flags = 1 << 4;
/// Takes constant, short time.
pub(super) const FAST: Flags = 1 << 5;
/// Allowed before a login.
pub(super) const NO_AUTH: Flags = 1 << 6;
/// Refused inside a transaction.
pub(super) const NO_MULTI: Flags = 1 << 7;
/// Carried out at once inside a transaction, not queued.
pub(super) const IN_MULTI: Flags = 1 << 8;
/// Allowed while a RESP2 connection is subscribed.
pub(super) const SUBSCRIBED: Flags = 1 << 9;

/// Which arguments are tags: the first, the last (negative: from the end) and the distance between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Where the first one stands; the command's name is 0.
    pub first: i32,
    /// Where the last one stands; -1 is the last argument.
    pub last: i32,
    /// The distance from one to the next.
    pub step: i32,
}

/// One argument, as `COMMAND DOCS` tells it.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// What it is called in hints.
    pub name: &'static str,
    /// Redis' word for its type.
    pub kind: &'static str,
    /// A word that stands in front of it.
    pub token: Option<&'static str>,
    /// Whether it may be left out.
    pub optional: bool,
    /// Whether it may be repeated.
    pub multiple: bool,
}

const fn argument(name: &'static str, kind: &'static str) -> Argument {
    Argument { name, kind, token: None, optional: false, multiple: false }
}

impl Argument {
    pub(super) const TAG: Self = argument("tag", "key");

    pub(super) const fn text(name: &'static str) -> Self {
        argument(name, "string")
    }

    pub(super) const fn number(name: &'static str) -> Self {
        argument(name, "integer")
    }

    /// A word that is there or not.
    pub(super) const fn flag(token: &'static str) -> Self {
        Self { token: Some(token), optional: true, ..argument("flag", "pure-token") }
    }

    /// Behind `token`, and both may be left out.
    pub(super) const fn after(self, token: &'static str) -> Self {
        Self { token: Some(token), optional: true, ..self }
    }

    pub(super) const fn optional(self) -> Self {
        Self { optional: true, ..self }
    }

    pub(super) const fn repeated(self) -> Self {
        Self { multiple: true, ..self }
    }

    /// The argument as the README shows it, such as `[STEP step]`.
    fn usage(&self) -> String {
        let mut usage = match (self.token, self.kind) {
            (Some(token), "pure-token") => token.to_owned(),
            (Some(token), _) => format!("{token} {}", self.name),
            (None, _) => self.name.to_owned(),
        };
        if self.multiple {
            usage = format!("{usage} [{usage} …]");
        }
        if self.optional { format!("[{usage}]") } else { usage }
    }
}

/// A command that is answered at once with one value.
pub(super) type Plain = fn(&mut Session, &Call<'_>) -> Result<Value, Error>;

/// A command that is answered with several messages.
pub(super) type Messages = fn(&mut Session, &Call<'_>) -> Result<Vec<Value>, Error>;

/// Who carries a command out.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// One id of a tag; joined with its equals before and behind it.
    IdGet,
    /// Many ids of a tag.
    IdMget,
    /// Many ids of a tag, as runs.
    IdRange,
    /// One id of a tag, with Redis' arity; joined like [`Self::IdGet`].
    Incr,
    /// Consecutive ids of a tag.
    IncrBy,
    /// What is known of a tag.
    IdInfo,
    /// The parts of an id.
    IdDecode,
    /// A change of a tag, or the list of tags.
    IdTag(super::idtag::Change),
    /// The worker ids.
    IdWorkers,
    /// Carries out what is queued.
    Exec,
    /// Answered at once.
    Plain(Plain),
    /// Answered at once, with several messages.
    Messages(Messages),
    /// Only its subcommands can be carried out.
    Container,
}

/// One row of the table.
#[derive(Clone, Copy)]
pub struct Spec {
    /// The name in lower case, `container|subcommand` for a subcommand.
    pub name: &'static str,
    /// How many arguments there are, the name among them; negative: at least so many.
    pub arity: i32,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// The version of Redis, or of idgen, that has it first.
    pub since: &'static str,
    /// The group in `COMMAND DOCS`.
    pub group: &'static str,
    /// How its time grows.
    pub complexity: &'static str,
    /// Which arguments are tags.
    pub keys: Option<Keys>,
    /// Hints for clients, in Redis' words.
    pub tips: &'static [&'static str],
    /// The arguments.
    pub arguments: &'static [Argument],
    pub(super) flags: Flags,
    pub(super) category: &'static str,
    pub(super) kind: Kind,
    index: usize,
}

/// A row; `category` is the one that its flags don't imply.
pub(super) const fn spec(
    name: &'static str,
    arity: i32,
    flags: Flags,
    category: &'static str,
    since: &'static str,
    summary: &'static str,
    kind: Kind,
) -> Spec {
    Spec {
        name,
        arity,
        summary,
        since,
        group: "",
        complexity: "O(1)",
        keys: None,
        tips: &[],
        arguments: &[],
        flags,
        category,
        kind,
        index: 0,
    }
}

impl Spec {
    /// The tag is the argument at `at`.
    pub(super) const fn tag(self, at: i32) -> Self {
        Self { keys: Some(Keys { first: at, last: at, step: 1 }), ..self }
    }

    /// All arguments are tags.
    pub(super) const fn all_tags(self) -> Self {
        Self { keys: Some(Keys { first: 1, last: -1, step: 1 }), ..self }
    }

    pub(super) const fn args(self, arguments: &'static [Argument]) -> Self {
        Self { arguments, ..self }
    }

    pub(super) const fn tips(self, tips: &'static [&'static str]) -> Self {
        Self { tips, ..self }
    }

    pub(super) const fn complexity(self, complexity: &'static str) -> Self {
        Self { complexity, ..self }
    }

    pub(super) const fn placed(self, group: &'static str, index: usize) -> Self {
        Self { group, index, ..self }
    }

    /// The row's place in the table.
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    pub(super) const fn has(&self, flags: Flags) -> bool {
        self.flags & flags != 0
    }

    /// Whether it gives ids to clients; these rows stand first in the table.
    pub(super) const fn draws_ids(&self) -> bool {
        matches!(self.kind, Kind::IdGet | Kind::IdMget | Kind::IdRange | Kind::Incr | Kind::IncrBy)
    }

    /// Whether a request of `len` arguments, the name among them, fits.
    pub(super) const fn takes(&self, len: usize) -> bool {
        let least = self.arity.unsigned_abs() as usize;
        if self.arity < 0 { len >= least } else { len == least }
    }

    /// The container and the subcommand; a command alone has no subcommand.
    pub(super) fn parts(&self) -> (&'static str, Option<&'static str>) {
        self.name.split_once('|').map_or((self.name, None), |(container, sub)| (container, Some(sub)))
    }

    pub(super) fn subcommands(&self) -> impl Iterator<Item = &'static Self> {
        let container = self.name;
        rows().iter().filter(move |row| matches!(row.parts(), (name, Some(_)) if name == container)).copied()
    }

    /// The names of the flags, as Redis writes them.
    pub(super) fn flag_names(&self) -> impl Iterator<Item = &'static str> {
        const NAMES: [(Flags, &str); 9] = [
            (WRITE, "write"),
            (READONLY, "readonly"),
            (ADMIN, "admin"),
            (PUBSUB, "pubsub"),
            (LOADING, "loading"),
            (LOADING, "stale"),
            (FAST, "fast"),
            (NO_AUTH, "no_auth"),
            (NO_MULTI, "no_multi"),
        ];
        let flags = self.flags;
        NAMES.into_iter().filter(move |(flag, _)| flags & flag != 0).map(|(_, name)| name)
    }

    /// The categories, without the `@` they are written with: as Redis does it, most follow from the flags.
    pub(super) fn categories(&self) -> impl Iterator<Item = &'static str> + Clone {
        const IMPLIED: [(Flags, &str); 6] = [
            (WRITE, "write"),
            (READONLY, "read"),
            (ADMIN, "admin"),
            (ADMIN, "dangerous"),
            (PUBSUB, "pubsub"),
            (FAST, "fast"),
        ];
        let flags = self.flags;
        let slow = (flags & FAST == 0).then_some("slow");
        let own = Some(self.category).filter(|category| !category.is_empty());
        let implied = IMPLIED.into_iter().filter(move |(flag, _)| flags & flag != 0).map(|(_, name)| name);
        implied.chain(slow).chain(own)
    }

    /// The command as a user types it, such as `IDMGET tag n [STR]`.
    pub(super) fn usage(&self) -> String {
        let mut usage = self.name.replace('|', " ").to_ascii_uppercase();
        for argument in self.arguments {
            usage.push(' ');
            usage.push_str(&argument.usage());
        }
        usage
    }

    /// The places of the tags in a request of `len` arguments.
    fn tag_places(&self, len: usize) -> impl Iterator<Item = usize> + use<> {
        // Without keys the places are those from 1 to 0: none.
        let keys = self.keys.unwrap_or(Keys { first: 1, last: 0, step: 1 });
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        let last = if keys.last < 0 { len + keys.last } else { keys.last.min(len - 1) };
        let step = usize::try_from(keys.step).unwrap_or(1).max(1);
        (keys.first..=last).step_by(step).filter_map(|place| usize::try_from(place).ok())
    }

    /// The tags among the arguments of `request`.
    pub(super) fn tags<'a>(&self, request: &Request<'a>) -> impl Iterator<Item = &'a [u8]> {
        self.tag_places(request.len()).filter_map(|place| request.arg(place))
    }

    /// The tags among these arguments, of which the first is the command's name.
    pub(super) fn tags_among<'a>(&self, args: &[&'a [u8]]) -> Vec<&'a [u8]> {
        self.tag_places(args.len()).filter_map(|place| args.get(place).copied()).collect()
    }

    /// The subcommand `name` where there is one of that name.
    pub(super) fn subcommand_or_itself(&'static self, name: Option<&[u8]>) -> &'static Self {
        name.and_then(|name| find_subcommand(self, name)).unwrap_or(self)
    }
}

/// All rows, in the order of the table.
pub(super) fn rows() -> &'static [&'static Spec] {
    static ROWS: LazyLock<Vec<&'static Spec>> = LazyLock::new(|| TABLE.iter().collect());
    &ROWS
}

/// The name of the row at `index`, as `CLIENT LIST` shows it; Redis writes `NULL` for none.
pub(super) fn row_name(index: u16) -> &'static str {
    TABLE.get(usize::from(index)).map_or("NULL", |row| row.name)
}

/// Names longer than this are not looked up; a test holds that every row's name is shorter.
pub(super) const MAX_NAME_LEN: usize = 40;

/// The row named `name`, in any case, with `container|subcommand` for a subcommand.
pub(super) fn find(name: &[u8]) -> Option<&'static Spec> {
    static BY_NAME: LazyLock<HashMap<&'static [u8], &'static Spec, foldhash::fast::RandomState>> =
        LazyLock::new(|| TABLE.iter().map(|row| (row.name.as_bytes(), row)).collect());
    if name.eq_ignore_ascii_case(b"idget") {
        return TABLE.get(IDGET);
    }
    if name.eq_ignore_ascii_case(b"incr") {
        return TABLE.get(INCR);
    }
    let mut lower = [0; MAX_NAME_LEN];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    BY_NAME.get(&*lower).copied()
}

/// The subcommand `name` of `container`.
pub(super) fn find_subcommand(container: &Spec, name: &[u8]) -> Option<&'static Spec> {
    let mut full = [b'|'; MAX_NAME_LEN];
    let end = container.name.len();
    full.get_mut(..end)?.copy_from_slice(container.name.as_bytes());
    full.get_mut(end + 1..end + 1 + name.len())?.copy_from_slice(name);
    find(full.get(..end + 1 + name.len())?)
}

/// The row that `request` asks for: the command, or the subcommand where there are some.
///
/// # Errors
/// It is unknown, or one that an id server refuses.
pub(super) fn lookup(request: &Request<'_>) -> Result<&'static Spec, Error> {
    let Some(spec) = find(request.name()).filter(|row| row.parts().1.is_none()) else {
        return Err(match refusal(request.name()) {
            Some((command, instead)) => Error::refused_command(command, instead),
            None => Error::unknown_command(request),
        });
    };
    let has_subcommands = matches!(spec.kind, Kind::Container) || spec.name == "command";
    match request.arg(1).filter(|_| has_subcommands) {
        None => Ok(spec),
        Some(name) => find_subcommand(spec, name).ok_or_else(|| Error::unknown_subcommand(spec.name, name)),
    }
}
