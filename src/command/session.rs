//! One connection as the commands see it: who it is, which protocol it speaks, and what it is in the middle of.
//!
//! The order of checks is Redis': unknown command, number of arguments, login, rights, state of the connection, state of
//! the node. Equal id requests behind each other are only counted ([`Session::joins`]); whatever comes next answers the
//! run first, so replies keep the order of their requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::draw::Waiting;
use super::idget::{Form, Run};
use super::rights::Rights;
use super::spec::{FAST, IN_MULTI, Kind, LOADING, NO_AUTH, NO_MULTI, SUBSCRIBED, Spec, lookup};
use super::stats::Tally;
use super::transaction::{Replay, Transaction, Watched};
use super::{
    Batch, Client, Context, Error, Flow, iddecode, idinfo, idmget, idrange, idtag, idworkers, incr, transaction,
};
use crate::acl::User;
use crate::clock::Boot;
use crate::health::Phase;
use crate::ids::{IdRange, total};
use crate::resp::{Protocol, Request};
use crate::router::Entry;

/// So many failed logins and the connection is closed.
pub(super) const MAX_FAILED_LOGINS: u8 = 5;

/// [Work](Session::take_work) of one request, of one that may walk over all tags or connections, and ids in one unit.
const QUICK_WORK: u64 = 4;
const SLOW_WORK: u64 = 4_000;
const IDS_PER_WORK: u64 = 100;

/// Ranges that are kept for the next request; room for more is given back.
const KEPT_RANGES: usize = 64;

/// Whether replies are written: `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Replies {
    #[default]
    On,
    Off,
    /// Off for the next request alone.
    SkipNext,
}

/// One request on its way through the commands.
pub(super) struct Call<'c> {
    pub(super) spec: &'static Spec,
    pub(super) request: &'c Request<'c>,
    pub(super) context: &'c Context,
    pub(super) batch: &'c Batch,
}

impl<'c> Call<'c> {
    /// The argument at `index`, the command's name being 0; empty when it is not there, which the arity rules out.
    pub(super) fn arg(&self, index: usize) -> &'c [u8] {
        self.request.arg(index).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.request.len()
    }

    /// The arguments from `index` on.
    pub(super) fn rest(&self, index: usize) -> impl Iterator<Item = &'c [u8]> {
        self.request.args().skip(index)
    }
}

/// One connection.
pub struct Session {
    pub(super) client: Arc<Client>,
    pub(super) protocol: Protocol,
    pub(super) user: Option<Arc<User>>,
    rights: Rights,
    pub(super) failed_logins: u8,
    pub(super) replies: Replies,
    pub(super) tracking: bool,
    pub(super) db: u8,
    pub(super) closing: bool,
    pub(super) transaction: Option<Transaction>,
    pub(super) watched: Vec<Watched>,
    pub(super) replay: Option<Replay>,
    pub(super) channels: BTreeSet<Vec<u8>>,
    pub(super) patterns: BTreeSet<Vec<u8>>,
    pub(super) run: Run,
    /// The tag last used: most connections use one.
    pub(super) entry: Option<Arc<Entry>>,
    pub(super) ranges: Vec<IdRange>,
    pub(super) waiting: Waiting,
    /// What has been done since it was last asked; see [`Session::take_work`].
    work: u64,
    tally: Tally,
    last_row: u16,
}

impl Session {
    /// The session of a connection that has just been opened.
    #[must_use]
    pub fn new(context: &Context, client: &Arc<Client>) -> Self {
        let mut session = Self {
            client: Arc::clone(client),
            protocol: Protocol::Resp2,
            user: None,
            rights: Rights::default(),
            failed_logins: 0,
            replies: Replies::On,
            tracking: false,
            db: 0,
            closing: false,
            transaction: None,
            watched: Vec::new(),
            replay: None,
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            run: Run::default(),
            entry: None,
            ranges: Vec::new(),
            waiting: Waiting::default(),
            work: 0,
            tally: Tally::new(),
            last_row: u16::MAX,
        };
        session.become_user(context.users.initial());
        session
    }

    /// Whether the connection ends once its replies are written.
    #[must_use]
    pub fn closing(&self) -> bool {
        self.closing
    }

    /// Whether the connection may send more than a login.
    #[must_use]
    pub fn authenticated(&self) -> bool {
        self.user.is_some()
    }

    /// Counts `request` when it equals the one before it and that one draws a single id; `false` when it has to be
    /// [executed](Self::execute).
    #[inline]
    pub fn joins(&mut self, request: &Request<'_>) -> bool {
        self.run.joins(request.raw())
    }

    /// Carries `request` out and appends its reply to `out`, behind the replies of the run in progress. An id request may
    /// only begin a run: [`Self::settle`] answers it.
    pub async fn execute(
        &mut self,
        request: &Request<'_>,
        context: &Context,
        batch: &Batch,
        out: &mut Vec<u8>,
    ) -> Flow {
        if self.closing {
            return Flow::Close;
        }
        self.settle(context, batch, out).await;
        let before = out.len();
        let mut silent = match self.replies {
            Replies::On => self.replay.as_ref().is_some_and(|replay| replay.silent),
            Replies::Off => true,
            Replies::SkipNext => {
                self.replies = Replies::On;
                true
            }
        };
        self.work += QUICK_WORK;
        match self.check(request, context) {
            Err(error) => self.reject(&error, context, out),
            Ok(spec) if self.transaction.is_some() && !spec.has(IN_MULTI) => self.enqueue(request, context, out),
            Ok(spec) => {
                self.last_row = u16::try_from(spec.index()).unwrap_or(u16::MAX);
                if !spec.has(FAST) {
                    self.work += SLOW_WORK;
                }
                let call = Call { spec, request, context, batch };
                self.perform(&call, silent, out).await;
                let reply = |word: &[u8]| request.arg(2).is_some_and(|sent| sent.eq_ignore_ascii_case(word));
                if spec.name == "reset"
                    || (spec.name == "client|reply" && [&b"ON"[..], b"OFF", b"SKIP"].iter().any(|word| reply(word)))
                {
                    // What has just been chosen holds for its own reply, too.
                    silent = self.replies != Replies::On;
                } else if let (Kind::Exec, true, Some(replay)) = (spec.kind, silent, &mut self.replay) {
                    replay.silent = true;
                }
            }
        }
        if silent {
            out.truncate(before);
        }
        if self.closing { Flow::Close } else { Flow::Continue }
    }

    /// Answers the run in progress, if there is one.
    pub async fn settle(&mut self, context: &Context, batch: &Batch, out: &mut Vec<u8>) {
        if self.run.in_progress() {
            self.answer_run(context, batch, out).await;
        }
    }

    /// Whether a transaction was executed whose requests are still to be carried out.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        self.replay.is_some()
    }

    /// Carries out the next request of an executed transaction; `false` when there is none left. The last ones may have
    /// begun a run: [`Self::settle`] answers it.
    pub async fn execute_queued(&mut self, context: &Context, batch: &Batch, out: &mut Vec<u8>) -> bool {
        transaction::replay(self, context, batch, out).await
    }

    /// How much has been done since this was last asked, so that a connection takes turns with others: about a quarter of a
    /// microsecond a unit. A command that is not fast by the table counts as a whole turn, since it may walk over all tags.
    pub fn take_work(&mut self) -> u64 {
        std::mem::take(&mut self.work)
    }

    /// Notes what the batch has done, once its replies are written: `elapsed` is shared among its requests.
    pub fn finish(&mut self, context: &Context, client: &Client, now: Boot, elapsed: Duration) {
        self.tally.flush(&context.stats, &context.metrics, elapsed);
        client.touch(now);
        self.publish();
        if self.ranges.capacity() > KEPT_RANGES {
            self.ranges = Vec::new();
        }
    }

    /// Makes what others see of this connection current.
    pub(super) fn publish(&self) {
        let client = &self.client;
        client.row.store(self.last_row, Relaxed);
        client.protocol.store(if self.protocol == Protocol::Resp3 { 3 } else { 2 }, Relaxed);
        client.db.store(self.db, Relaxed);
        let queued = self.transaction.as_ref().map(Transaction::size);
        client.queued.store(queued.map_or(-1, |(count, _)| i32::try_from(count).unwrap_or(i32::MAX)), Relaxed);
        client.queued_bytes.store(queued.map_or(0, |(_, bytes)| bytes), Relaxed);
        client.channels.store(u32::try_from(self.channels.len()).unwrap_or(u32::MAX), Relaxed);
        client.patterns.store(u32::try_from(self.patterns.len()).unwrap_or(u32::MAX), Relaxed);
        client.watched.store(u32::try_from(self.watched.len()).unwrap_or(u32::MAX), Relaxed);
    }

    /// Makes the connection that of `user`, with the user's rights.
    pub(super) fn become_user(&mut self, user: Option<Arc<User>>) {
        self.rights = user.as_ref().map_or_else(Rights::default, |user| Rights::of(user));
        self.client.profile().user = user.as_ref().map_or_else(String::new, |user| user.name().to_owned());
        self.user = user;
    }

    /// Puts the connection back to how it was opened: `RESET`. What the client has said about its library stays.
    pub(super) fn reset(&mut self, context: &Context) {
        self.protocol = Protocol::Resp2;
        self.replies = Replies::On;
        self.tracking = false;
        self.db = 0;
        self.transaction = None;
        self.watched.clear();
        self.channels.clear();
        self.patterns.clear();
        self.client.profile().name.clear();
        self.become_user(context.users.initial());
    }

    /// The row of the request, when this connection may use it now.
    fn check(&self, request: &Request<'_>, context: &Context) -> Result<&'static Spec, Rejection> {
        let spec = match lookup(request) {
            Ok(spec) => spec,
            // Even what is refused to everybody is told only to those who may ask.
            Err(error) if error.prefix() == super::Prefix::IdType && self.user.is_none() => {
                return Err(Rejection(Error::no_auth(), None));
            }
            Err(error) => return Err(Rejection(error, None)),
        };
        let refuse = |error| Err(Rejection(error, Some(spec)));
        if !spec.takes(request.len()) {
            return refuse(Error::arity(spec.name));
        }
        let Some(user) = self.user.as_ref() else {
            return if spec.has(NO_AUTH) { Ok(spec) } else { refuse(Error::no_auth()) };
        };
        if spec.has(NO_MULTI) && self.transaction.is_some() {
            return refuse(Error::not_in_transaction());
        }
        if !self.rights.allow(spec) {
            return refuse(Error::no_perm_command(user.name(), spec.name));
        }
        if spec.keys.is_some() && !spec.tags(request).all(|tag| user.rules().allow_tag(tag)) {
            return refuse(Error::no_perm_tag());
        }
        let subscribed = !self.channels.is_empty() || !self.patterns.is_empty();
        if subscribed && self.protocol == Protocol::Resp2 && !spec.has(SUBSCRIBED) {
            return refuse(Error::not_in_subscribed_mode(spec.name));
        }
        if !spec.has(LOADING) && context.health.phase() == Phase::Loading {
            return refuse(Error::loading(&context.health.missing()));
        }
        Ok(spec)
    }

    fn reject(&mut self, rejection: &Rejection, context: &Context, out: &mut Vec<u8>) {
        let Rejection(error, spec) = rejection;
        let error = if spec.is_some_and(|spec| matches!(spec.kind, Kind::Exec)) {
            // As in Redis, the transaction is over then.
            self.transaction = None;
            self.watched.clear();
            Error::exec_refused(error)
        } else {
            error.clone()
        };
        if let Some(transaction) = &mut self.transaction {
            transaction.spoil();
        }
        if let Some(spec) = spec {
            context.stats.reject(spec);
        }
        context.stats.errors.add(error.prefix().word(), 1);
        error.write(out);
    }

    fn enqueue(&mut self, request: &Request<'_>, context: &Context, out: &mut Vec<u8>) {
        let queued = self.transaction.as_mut().map_or(Ok(()), |transaction| transaction.push(request));
        match queued {
            Ok(()) => crate::resp::simple(out, "QUEUED"),
            Err(error) => {
                context.stats.errors.add(error.prefix().word(), 1);
                error.write(out);
            }
        }
    }

    async fn perform(&mut self, call: &Call<'_>, silent: bool, out: &mut Vec<u8>) {
        let answer = match call.spec.kind {
            // These count and answer for themselves.
            Kind::IdGet => return self.begin_run(call, Form::of_idget(call), silent, out).await,
            Kind::Incr => return self.begin_run(call, Ok(Form::INTEGER), silent, out).await,
            Kind::IdMget => return idmget::execute(self, call, out).await,
            Kind::IdRange => return idrange::execute(self, call, out).await,
            Kind::IncrBy => return incr::incrby(self, call, out).await,
            Kind::Exec => transaction::exec(self, call, out),
            Kind::Plain(plain) => plain(self, call).map(Some),
            Kind::Messages(messages) => messages(self, call).map(|messages| {
                for message in messages {
                    message.write(out, self.protocol);
                }
                None
            }),
            // Seldom and large: boxed, so that every connection's task stays small.
            Kind::IdInfo => Box::pin(idinfo::idinfo(call)).await.map(Some),
            Kind::IdDecode => Box::pin(iddecode::iddecode(call)).await.map(Some),
            Kind::IdTag(change) => Box::pin(idtag::execute(change, call)).await.map(Some),
            Kind::IdWorkers => Box::pin(idworkers::idworkers(call)).await.map(Some),
            Kind::Container => Err(Error::arity(call.spec.name)),
        };
        self.tally.add(call.spec, None, 1, u64::from(answer.is_err()));
        match answer {
            Ok(Some(value)) => value.write(out, self.protocol),
            Ok(None) => {}
            Err(error) => {
                call.context.stats.errors.add(error.prefix().word(), 1);
                error.write(out);
            }
        }
    }

    /// Counts a request for ids that was refused before an engine was asked, under its tag if this node knows it.
    pub(super) fn count_refused(&mut self, call: &Call<'_>, error: &Error) {
        let entry = call.context.router.find(call.arg(1));
        self.count(call.context, call.spec, entry.as_deref(), 1, Some((error, 1)));
    }

    /// Counts requests that drew ids, and those that failed.
    pub(super) fn count(
        &mut self,
        context: &Context,
        spec: &Spec,
        entry: Option<&Entry>,
        calls: u64,
        failed: Option<(&Error, u64)>,
    ) {
        let failures = failed.map_or(0, |(_, failures)| failures);
        self.tally.add(spec, entry.map(Entry::kind), calls, failures);
        self.work += total(&self.ranges) / IDS_PER_WORK;
        // Only tags of the catalogue become label values: whatever else was asked for is counted together.
        let metrics = entry.map_or(&context.metrics.unknown, Entry::metrics);
        if calls > failures {
            metrics.requests_ok.add(calls - failures);
        }
        if let Some((error, failures)) = failed {
            metrics.requests_failed.add(error.prefix().label(), failures);
            context.stats.errors.add(error.prefix().word(), failures);
        }
    }
}

/// Why a request was not carried out, and the row it asked for.
struct Rejection(Error, Option<&'static Spec>);
