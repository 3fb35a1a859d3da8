//! The engine of a strict tag: commit mode, in which every id is granted after the request for it has arrived.
//!
//! Guaranteed: over all nodes, a request that starts after another has ended gets a larger id. How: [`gather`](super::gather)
//! decides who is served by which statement, and one task at a time for each tag sends them. A request's answer is a
//! [`Ticket`]: the ids themselves and not the news that some are there, since ids that anybody may take would be a cache.
//! The ids of a ticket that is dropped are skipped. A statement takes its turn among the refills of all tags: a strict tag
//! asks the store without end, and would leave nothing of it to the others.
//! Rejected: the caller's own task sends the statement (a disconnect in the middle of a commit leaves a range in doubt).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{oneshot, watch};

use super::circuit::OPEN;
use super::gather::{Gather, Given};
use super::grants::{Ask, Attempts, FIRST_PAUSE, LAST_PAUSE, pause};
use super::{Supply, View};
use crate::clock::Boot;
use crate::engine::{Demand, Later, Refusal, Shortage};
use crate::health;
use crate::ids::{IdRange, TagName};
use crate::metrics::{Labelled, TagMetrics};
use crate::store::{Definition, Grant, Kind, Row, StoreError, Tail};

/// The word for ids of requests that were gone when their answer came.
const STALE: &str = "stale";

/// The answer to one request, to be waited for.
#[derive(Debug)]
pub struct Ticket {
    answer: oneshot::Receiver<Given>,
    discarded: Arc<Labelled>,
}

impl Ticket {
    /// Waits for the answer.
    pub async fn wait(mut self) -> Given {
        let broken_off = || Given::Refused(Refusal::Backend("the commit was broken off; ask again".into()));
        (&mut self.answer).await.unwrap_or_else(|_| broken_off())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // From here on no answer can be sent; one that came already is skipped.
        self.answer.close();
        if let Ok(Given::Ids(ids)) = self.answer.try_recv() {
            self.discarded.add(STALE, ids.len());
        }
    }
}

type Sender = oneshot::Sender<Given>;

/// The engine of one strict tag.
#[derive(Debug)]
pub struct Strict {
    state: Mutex<State>,
    tag: TagName,
    supply: Arc<Supply>,
    metrics: Arc<TagMetrics>,
    /// Changes whenever commits have ended.
    ended: watch::Sender<u64>,
    this: Weak<Self>,
}

#[derive(Debug)]
struct State {
    gather: Gather<Sender>,
    id_limit: u64,
    critical: bool,
    /// Commits that failed since the last good one.
    failures: u32,
    /// The row's `max_id` when this process read it first.
    loaded: u64,
    /// Whether the row was found to be gone, and no grant has shown since that it is back.
    vanished: bool,
    /// Why the commit in flight has failed so far.
    cause: Option<Refusal>,
}

/// The commits of one tag, from when they were started until nobody waits.
struct Commits {
    strict: Arc<Strict>,
    done: bool,
}

impl Commits {
    async fn run(mut self) {
        self.strict.commit().await;
        self.done = true;
        self.strict.ended.send_modify(|ended| *ended += 1);
    }
}

impl Drop for Commits {
    fn drop(&mut self) {
        if !self.done {
            let refusal = Refusal::Backend("the commit was broken off; ask again".into());
            let until = self.strict.supply.clock.boot().plus(FIRST_PAUSE);
            self.strict.refuse_all(|state| (refusal.clone(), state.gather.fail(refusal, until), ()));
            self.strict.ended.send_modify(|ended| *ended += 1);
        }
    }
}

impl Strict {
    /// The engine of the strict tag that `row` defines. `closed`: why it serves nothing, where its store can't keep what
    /// strict order promises.
    #[must_use]
    pub fn new(row: &Row, supply: Arc<Supply>, metrics: Arc<TagMetrics>, closed: Option<Refusal>) -> Arc<Self> {
        metrics.headroom.set(row.definition.id_limit.saturating_sub(row.max_id));
        let mut gather = Gather::new(row.floor, supply.rules.buffer);
        if !supply.store.shared() {
            gather.fence(row.max_id);
        }
        if let Some(refusal) = if row.retired { Some(Refusal::Retired) } else { closed } {
            drop(gather.close(refusal));
        }
        let (id_limit, critical, loaded) = (row.definition.id_limit, row.definition.critical, row.max_id);
        let state = State { gather, id_limit, critical, failures: 0, loaded, vanished: false, cause: None };
        Arc::new_cyclic(|this| Self {
            state: Mutex::new(state),
            tag: row.tag.clone(),
            supply,
            metrics,
            ended: watch::Sender::new(0),
            this: this.clone(),
        })
    }

    /// Lets the request wait for a statement that starts from now on; never gives ids at once.
    ///
    /// # Errors
    /// Always: the ticket, or why there is none.
    pub fn take(&self, demand: Demand, now: Boot) -> Result<(), Shortage> {
        let (sender, answer) = oneshot::channel();
        let start = self.lock().gather.arrive(demand, sender, now).map_err(Shortage::Refused)?;
        if let Some(strict) = self.this.upgrade().filter(|_| start) {
            self.supply.runtime.spawn(Commits { strict, done: false }.run());
        }
        self.metrics.buffer_waits.add(1);
        Err(Shortage::Later(Later::Ids(Ticket { answer, discarded: Arc::clone(&self.supply.discarded) })))
    }

    /// One statement after the other until nobody waits.
    async fn commit(&self) {
        let mut attempts = Attempts::default();
        loop {
            let permit = self.supply.permits.acquire().await;
            // With the permit in hand, so that it serves all who came while it was waited for.
            let Some(count) = self.lock().gather.begin(Sender::is_closed) else { return };
            self.metrics.step.set(count);
            let outcome = self.attempt(count).await;
            drop(permit);
            let Err(error) = outcome else {
                attempts = Attempts::default();
                continue;
            };
            match attempts.pause_after(&error, self.supply.max_retry) {
                Some(pause) => {
                    self.lock().cause = Some(Refusal::Backend(error.text));
                    tokio::time::sleep(pause).await;
                }
                None => return self.fail(&error),
            }
        }
    }

    /// One statement, and what came of it.
    async fn attempt(&self, count: u64) -> Result<(), StoreError> {
        let (last, critical) = {
            let state = self.lock();
            (state.gather.highest().max(state.loaded), state.critical)
        };
        let ask = Ask { tag: &self.tag, metrics: &self.metrics, count, last, critical };
        let grant = self.supply.obtain(&ask).await?;
        let settled = self.change(|state| {
            let settled = state.gather.settle(grant.range, state.id_limit);
            if settled.is_ok() {
                (state.failures, state.vanished, state.cause) = (0, false, None);
            }
            settled
        });
        let settled = match settled {
            Ok(settled) => settled,
            Err(highest) => {
                let error = self.supply.repair(&self.tag, highest.saturating_sub(1)).await;
                self.metrics.fetch_failures.add(error.reason, 1);
                return Err(error);
            }
        };
        self.supply.tell(health::State::Up);
        for (sender, given) in settled.given {
            self.answer(sender, given);
        }
        if let Some(unused) = settled.unused {
            self.give_back(unused, grant).await;
        }
        Ok(())
    }

    fn answer(&self, sender: Sender, given: Given) {
        if let Err(Given::Ids(ids)) = sender.send(given) {
            self.supply.discarded.add(STALE, ids.len());
        }
    }

    /// The last ids up to MAX that were too few for who asked: a smaller request shall find them in the row.
    async fn give_back(&self, unused: IdRange, grant: Grant) {
        let tail = Tail { tag: self.tag.clone(), unused, nonce: grant.nonce };
        let may = self.supply.lower_mark(&tail).await;
        let back = may && self.supply.store.return_tails(&[tail]).await.is_ok_and(|taken| taken == [true]);
        if !back {
            self.supply.discarded.add(STALE, unused.len());
        }
    }

    fn fail(&self, error: &StoreError) {
        let now = self.supply.clock.boot();
        let down = self.refuse_all(|state| {
            state.cause = None;
            let (refusal, until, down) = match error.kind {
                Kind::Missing => (self.vanished(state), now.plus(LAST_PAUSE), false),
                Kind::Retired => (Refusal::Retired, now, false),
                Kind::Exhausted => (Refusal::AtMax { max: state.id_limit, left: 0 }, now.plus(LAST_PAUSE), false),
                Kind::Conflict | Kind::TooMany | Kind::Transient | Kind::Unknown | Kind::Permanent => {
                    // Asking a breaker costs the store nothing, and it may close at any moment.
                    let open = error.reason == OPEN;
                    let until = now.plus(if open { FIRST_PAUSE } else { pause(state.failures) });
                    state.failures = state.failures.saturating_add(u32::from(!open));
                    (Refusal::Backend(error.text.clone()), until, true)
                }
            };
            let mut waiting = state.gather.fail(refusal.clone(), until);
            if error.kind == Kind::Retired {
                waiting.extend(state.gather.close(Refusal::Retired));
            }
            (refusal, waiting, down)
        });
        if error.reason != OPEN {
            self.supply.tell(if down { health::State::Down(error.text.clone()) } else { health::State::Up });
        }
    }

    fn vanished(&self, state: &mut State) -> Refusal {
        let highest = state.gather.highest().max(state.gather.floor()).max(state.loaded);
        let news = !std::mem::replace(&mut state.vanished, true);
        self.supply.vanished(&self.tag, highest, news)
    }

    /// Later ids are larger than `floor`.
    pub fn floor(&self, floor: u64) {
        self.change(|state| state.gather.raise_floor(floor));
    }

    /// Gives no more ids, ever.
    pub fn retire(&self) {
        self.close(&Refusal::Retired);
    }

    /// Serves nothing from now on. Then [`Self::idle`].
    pub fn stop(&self) {
        self.close(&Refusal::TryAgain("this node is stopping".into()));
    }

    /// Gives no more ids, ever; requests are told `refusal`. Closed before, it stays as it was.
    pub fn close(&self, refusal: &Refusal) {
        self.refuse_all(|state| (refusal.clone(), state.gather.close(refusal.clone()), ()));
    }

    /// The row has vanished from the store: refuses until a grant shows that it is back. The row is never made again from
    /// here. Gives what requests are told.
    pub fn vanish(&self) -> Refusal {
        let until = self.supply.clock.boot().plus(LAST_PAUSE);
        self.refuse_all(|state| {
            let refusal = self.vanished(state);
            let waiting = state.gather.refuse(refusal.clone(), until);
            (refusal.clone(), waiting, refusal)
        })
    }

    /// Follows a changed definition from the next grant on.
    pub fn redefine(&self, definition: &Definition) {
        self.change(|state| {
            (state.id_limit, state.critical) = (definition.id_limit, definition.critical);
            state.gather.forgive();
        });
    }

    /// Waits until no commit is in flight.
    pub async fn idle(&self) {
        let mut ended = self.ended.subscribe();
        while self.lock().gather.is_committing() && ended.changed().await.is_ok() {}
    }

    /// Why the commit in flight has failed so far, where it has.
    #[must_use]
    pub fn cause(&self) -> Option<Refusal> {
        self.lock().cause.clone()
    }

    /// What is known of the tag now: nothing is kept in memory, and the step is the size of the last statement.
    #[must_use]
    pub fn view(&self) -> View {
        let state = self.lock();
        View {
            remaining: 0,
            next_ready: false,
            step: state.gather.last_batch(),
            step_reason: "strict",
            max_id: state.gather.highest(),
            floor: state.gather.floor(),
        }
    }

    /// The tag.
    #[must_use]
    pub const fn tag(&self) -> &TagName {
        &self.tag
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, make: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = make(&mut state);
        let lost = state.gather.drain_lost();
        if state.gather.highest() > 0 {
            self.metrics.headroom.set(state.id_limit.saturating_sub(state.gather.highest()));
        }
        drop(state);
        for (reason, n) in lost {
            self.supply.discarded.add(reason, n);
        }
        result
    }

    /// Changes the state and tells all who it says have waited in vain.
    fn refuse_all<T>(&self, make: impl FnOnce(&mut State) -> (Refusal, Vec<Sender>, T)) -> T {
        let (refusal, waiting, result) = self.change(make);
        for sender in waiting {
            self.answer(sender, Given::Refused(refusal.clone()));
        }
        result
    }
}

#[cfg(test)]
mod tests;
