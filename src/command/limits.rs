//! How many of the ids that a request asks for the limits let through: the user's, the node's and the tag's.
//!
//! They are asked when it is certain that the request may be made and which tag it means, and before the engine: a stranger
//! takes nothing from a tag. Each gives what it has, and takes back what a later one did not let through or the engine did
//! not have, so that a tag that is over its limit, or out of ids, costs no other tag anything of the node's. A demand for
//! singles gets as many ids as each of its requests would alone, one after the other. Whoever is refused is told the limit
//! that makes him wait longest, and how long.

use std::sync::Arc;
use std::time::Duration;

use super::{Context, Error};
use crate::acl::User;
use crate::clock::Boot;
use crate::limit::{Limit, Rate};
use crate::router::Entry;

/// Whose a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope<'a> {
    User(&'a str),
    Node,
    Tag(&'a str),
}

impl Scope<'_> {
    /// The label in metrics.
    const fn label(self) -> &'static str {
        match self {
            Self::User(_) => "user",
            Self::Node => "node",
            Self::Tag(_) => "tag",
        }
    }
}

/// The limits of one demand, at least one of which is set.
pub(super) struct Limits<'a> {
    user: Option<Arc<User>>,
    node: &'a Limit,
    entry: &'a Entry,
    /// The reading of the read batch: all of the demand happens then.
    now: Boot,
}

impl<'a> Limits<'a> {
    /// The limits that hold for `user` and the tag of `entry`; `None` where nothing is limited.
    #[inline]
    pub(super) fn of(user: Option<&Arc<User>>, entry: &'a Entry, context: &'a Context, now: Boot) -> Option<Self> {
        let limited = entry.limit().is_set() | context.limit.is_set() | user.is_some_and(|user| user.limit().is_set());
        limited.then(|| Self { user: user.cloned(), node: &context.limit, entry, now })
    }

    fn all(&self) -> impl DoubleEndedIterator<Item = (Scope<'_>, &Limit)> {
        let user = self.user.as_deref().map(|user| (Scope::User(user.name()), user.limit()));
        let tag = (Scope::Tag(self.entry.name().as_str()), self.entry.limit());
        user.into_iter().chain([(Scope::Node, self.node), tag]).filter(|(_, limit)| limit.is_set())
    }

    /// Lets as many of `count` requests for one id through as there is room for; how many, and what the others are told.
    pub(super) fn singles(&self, count: u64) -> (u64, Option<Error>) {
        let mut passed = count;
        for (at, (_, limit)) in self.all().enumerate() {
            let taken = limit.take_up_to(passed, self.now);
            self.give_back_to(at, passed - taken);
            passed = taken;
        }
        let refused = count - passed;
        (passed, (refused > 0).then(|| self.refuse(1, refused)))
    }

    /// Lets a request for `count` ids through, or says why not.
    pub(super) fn batch(&self, count: u64) -> Result<(), Error> {
        if let Some((scope, limit)) = self.all().find(|(_, limit)| count > most(limit)) {
            return Err(Error::above_burst(scope, most(limit)));
        }
        for (at, (_, limit)) in self.all().enumerate() {
            if !limit.take_all(count, self.now) {
                self.give_back_to(at, count);
                return Err(self.refuse(count, count));
            }
        }
        Ok(())
    }

    /// Gives back what was let through and did not become ids.
    pub(super) fn give_back(&self, unused: u64) {
        self.give_back_to(usize::MAX, unused);
    }

    fn give_back_to(&self, first: usize, unused: u64) {
        if unused > 0 {
            self.all().take(first).for_each(|(_, limit)| limit.give_back(unused, self.now));
        }
    }

    /// The error for requests that need `each` ids, `ids` in all: the limit with the longest wait; of equal ones the tag's.
    fn refuse(&self, each: u64, ids: u64) -> Error {
        let waits = self.all().map(|(scope, limit)| (limit.wait(each, self.now), scope, limit.rate()));
        let longest = waits.max_by_key(|(wait, ..)| *wait);
        let (wait, scope, rate) = longest.unwrap_or((Duration::ZERO, Scope::Node, Rate::default()));
        self.entry.metrics().rate_limited.add(scope.label(), ids);
        Error::limited(scope, rate.qps(), wait)
    }
}

/// The most ids that one request can have. A limit that was taken away meanwhile has none.
fn most(limit: &Limit) -> u64 {
    let rate = limit.rate();
    if rate.qps() == 0 { u64::MAX } else { rate.burst() }
}
