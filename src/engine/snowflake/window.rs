//! How a worker id is owned: windows of time, reserved in the registry before they are used. One state machine.
//!
//! Every write to a bound is a compare-and-set on the whole record and raises it, so the windows of a worker id are
//! pairwise disjoint, and the limit that is published comes only from a confirmed answer or from reading our own record
//! back. Hence no clock, lease, timeout or delayed message can make two owners use one moment. After an unknown outcome
//! the record is read: ours stands for what it says, a foreign one is never a guard. Losing a worker id leaves the rest
//! of its confirmed window usable. Rejected: leases alone, and deadlines counted from the sending of a request. Pure:
//! readings of the clocks, randomness and the registry's answers come in as arguments, what to do comes out.

use std::collections::BTreeSet;
use std::time::Duration;

pub use super::exchange::{Ask, Event, Notice, Now, Publish, Step};
use super::timeline::{Line, Timeline};
use crate::clock::rfc3339;
use crate::ids::Incarnation;
use crate::registry::{Bound, RegistryError, Swap, Worker};

/// How often the clocks are looked at, at least.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The first pause after a failed attempt; each further one doubles it.
const FIRST_PAUSE_MS: u64 = 50;
/// The longest pause after a failed attempt.
const LONGEST_PAUSE_MS: u64 = 5_000;
/// The longest pause between attempts to renew, as a part of the window.
const RENEWAL_PAUSE_PART: u64 = 6;
/// Clocks of hosts may be so far apart before one of them is not believed.
const SKEW_MS: u64 = 1_000;

/// What stays the same for the life of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// This process.
    pub incarnation: Incarnation,
    /// Its host, for people.
    pub host: String,
    /// W: how much time a claim or renewal reserves, in milliseconds.
    pub window_ms: u64,
    /// How far a claim may lead time ahead of the wall clock, in milliseconds, when others may use the registry.
    pub max_ahead_ms: u64,
    /// Nobody else can be using the registry.
    pub exclusive: bool,
    /// Owners vanish from the registry when they are gone; else an owner counts only while its bound has not passed.
    pub leases: bool,
    /// The worker id to prefer.
    pub hint: Option<u32>,
}

#[derive(Clone, Debug)]
enum State {
    /// No worker id; a list comes next.
    Seeking,
    Listing,
    Claiming(Attempt),
    /// The outcome of the claim is not known.
    CheckingClaim(Attempt),
    /// Nothing in flight.
    Holding(Held),
    Renewing(Held, Bound),
    /// The record may be another than the one known.
    Doubting(Held),
    CheckingRenewal(Held),
    Releasing,
    Ended,
}

#[derive(Clone, Debug)]
struct Attempt {
    worker: u32,
    expected: Bound,
    next: Bound,
}

#[derive(Clone, Debug)]
struct Held {
    worker: u32,
    /// The record known as ours: the guard of the next write.
    guard: Bound,
    /// The highest bound that was confirmed as ours.
    limit_ms: u64,
}

enum Choice<'a> {
    Take(u32, &'a Bound),
    Wait(Duration, String),
}

/// The machine. One event at a time; each [`Step`] says what to do until the next one.
#[derive(Clone, Debug)]
pub struct Window {
    terms: Terms,
    time: Timeline,
    state: State,
    failures: u32,
    /// The worker ids whose missing records were told.
    missing: BTreeSet<u32>,
    publish: Vec<Publish>,
    notices: Vec<Notice>,
}

impl Window {
    /// A machine whose time starts with the readings in `now`. Its first event is [`Event::Woken`].
    pub fn new(terms: Terms, now: Now) -> Self {
        Self {
            terms,
            time: Timeline::start(now.boot, now.wall),
            state: State::Seeking,
            failures: 0,
            missing: BTreeSet::new(),
            publish: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// The line that time runs along.
    pub fn line(&self) -> Line {
        self.time.line()
    }

    /// The wall clock minus logical time, at the last event, in nanoseconds.
    pub fn offset(&self) -> i64 {
        self.time.offset()
    }

    /// Takes `event` in and says what to do.
    pub fn on(&mut self, now: Now, event: Event) -> Step {
        self.look(now);
        let state = std::mem::replace(&mut self.state, State::Ended);
        let (state, ask) = match (state, event) {
            (state, Event::Stop) => self.stop(state),
            (State::Seeking, Event::Woken) => (State::Listing, Ask::List),
            (State::Listing, Event::Listed(Ok(workers))) => self.choose(now, &workers),
            (State::Listing, Event::Listed(Err(error))) => self.seek_again(now, error.to_string()),
            (State::Claiming(attempt), Event::Swapped(outcome)) => self.claimed(now, attempt, outcome),
            (State::CheckingClaim(attempt), Event::Read(outcome)) => self.claim_read(now, &attempt, outcome),
            (State::Holding(held), Event::Woken) => self.hold(now, held),
            (State::Renewing(held, next), Event::Swapped(outcome)) => self.renewed(now, held, next, outcome),
            (State::CheckingRenewal(held), Event::Read(outcome)) => self.renewal_read(now, held, outcome),
            (State::Releasing | State::Ended, _) => (State::Ended, Ask::End),
            // A doubt is looked into after its pause. An answer to something else than was asked is no reason to
            // believe anything, either: look what stands.
            (
                State::Holding(held) | State::Renewing(held, _) | State::Doubting(held) | State::CheckingRenewal(held),
                _,
            ) => check(held),
            (State::Seeking | State::Listing | State::Claiming(_) | State::CheckingClaim(_), _) => {
                (State::Listing, Ask::List)
            }
        };
        self.state = state;
        Step { publish: std::mem::take(&mut self.publish), notices: std::mem::take(&mut self.notices), ask }
    }

    fn look(&mut self, now: Now) {
        let seen = self.time.observe(now.boot, now.wall);
        if seen.changed {
            self.publish.push(Publish::Line(self.time.line()));
        }
        if seen.rollback {
            self.notices.push(Notice::Rollback);
        }
        match seen.stepped {
            Some(true) => self.notices.push(Notice::Stepped(self.time.offset())),
            Some(false) => self.notices.push(Notice::StepOver),
            None => {}
        }
    }

    fn logical_ms(&self, now: Now) -> u64 {
        self.time.line().at(now.boot) / 1_000_000
    }

    fn record(&self, now: Now, previous: &Bound, hi: u64) -> Bound {
        Bound {
            hi,
            incarnation: self.terms.incarnation,
            n: previous.n.saturating_add(1),
            wall_ms: now.wall.millis(),
            host: self.terms.host.clone(),
        }
    }

    // --- claiming

    fn choose(&mut self, now: Now, workers: &[Worker]) -> (State, Ask) {
        for worker in workers.iter().filter(|worker| worker.bound.is_none()) {
            self.tell_missing(worker.id);
        }
        if let Some(text) = self.clock_contradicts(now, workers) {
            return self.seek_again(now, text);
        }
        match self.choice(now, workers) {
            Choice::Take(worker, bound) => {
                let expected = bound.clone();
                let hi = expected.hi.max(self.logical_ms(now)).saturating_add(self.terms.window_ms);
                let next = self.record(now, &expected, hi);
                let attempt = Attempt { worker, expected: expected.clone(), next: next.clone() };
                (State::Claiming(attempt), Ask::Claim { worker, expected, next })
            }
            Choice::Wait(pause, text) => {
                self.notices.push(Notice::NotClaimed(text));
                (State::Seeking, Ask::Pause(pause))
            }
        }
    }

    /// A wall clock that contradicts the owners who are online would poison the worker ids it claims. Without leases
    /// nobody can be said to be online.
    fn clock_contradicts(&self, now: Now, workers: &[Worker]) -> Option<String> {
        if self.terms.exclusive || !self.terms.leases {
            return None;
        }
        let owned =
            |worker: &&Worker| worker.owner.as_ref().is_some_and(|owner| owner.incarnation != self.terms.incarnation);
        let newest =
            workers.iter().filter(owned).filter_map(|worker| worker.bound.as_ref()).map(|bound| bound.hi).max()?;
        let wall = now.wall.millis();
        let earliest = newest.saturating_sub(self.terms.window_ms + self.terms.max_ahead_ms + SKEW_MS);
        let latest = newest.saturating_add(SKEW_MS);
        if (earliest..=latest).contains(&wall) {
            return None;
        }
        let (wall, earliest, latest) = (rfc3339(wall), rfc3339(earliest), rfc3339(latest));
        Some(format!("the wall clock of this host says {wall}, but the nodes online say {earliest} to {latest}"))
    }

    fn choice<'a>(&mut self, now: Now, workers: &'a [Worker]) -> Choice<'a> {
        let logical = self.logical_ms(now);
        let free: Vec<(u32, &Bound)> = workers
            .iter()
            .filter_map(|worker| worker.bound.as_ref().map(|bound| (worker, bound)))
            .filter(|(worker, bound)| self.may_claim(worker, bound, logical))
            .map(|(worker, bound)| (worker.id, bound))
            .collect();
        let ripe: Vec<(u32, &Bound)> = free.iter().copied().filter(|(_, bound)| bound.hi <= logical).collect();
        let hinted = ripe.iter().find(|(worker, _)| Some(*worker) == self.terms.hint);
        let any = usize::try_from(now.random % (ripe.len() as u64).max(1)).ok().and_then(|place| ripe.get(place));
        if let Some((worker, bound)) = hinted.or(any) {
            return Choice::Take(*worker, bound);
        }
        let Some((worker, bound)) = free.into_iter().min_by_key(|(_, bound)| bound.hi) else {
            let pause = self.pause(now, LONGEST_PAUSE_MS);
            return Choice::Wait(pause, "every worker id is owned by another node".to_owned());
        };
        // The lead counts from the clock, or claim after claim could lead time further and further.
        let natural = self.time.line().natural(now.boot) / 1_000_000;
        let ahead = bound.hi.saturating_sub(natural);
        if self.terms.exclusive || ahead <= self.terms.max_ahead_ms {
            return Choice::Take(worker, bound);
        }
        let until = Duration::from_millis(ahead - self.terms.max_ahead_ms);
        let reach = rfc3339(bound.hi - self.terms.max_ahead_ms);
        let text = format!(
            "the bounds of all free worker ids lie in the future; the first, of {worker}, is within reach at {reach}"
        );
        Choice::Wait(until.min(LOOK_EVERY), text)
    }

    /// Once for each: a missing record stays missing.
    fn tell_missing(&mut self, worker: u32) {
        if self.missing.insert(worker) {
            self.notices.push(Notice::Missing(worker));
        }
    }

    fn may_claim(&self, worker: &Worker, bound: &Bound, logical: u64) -> bool {
        match &worker.owner {
            None => true,
            Some(owner) => {
                let passed = !self.terms.leases && bound.hi <= logical;
                self.terms.exclusive || passed || owner.incarnation == self.terms.incarnation
            }
        }
    }

    fn claimed(&mut self, now: Now, attempt: Attempt, outcome: Result<Swap, RegistryError>) -> (State, Ask) {
        match outcome {
            Ok(Swap::Done) => {
                let bound = attempt.next;
                self.open(now, attempt.worker, &attempt.expected, bound)
            }
            Ok(Swap::Refused) => self.seek_again(now, format!("worker id {} was claimed by another", attempt.worker)),
            Err(error) => {
                self.notices.push(Notice::NotClaimed(error.to_string()));
                let worker = attempt.worker;
                (State::CheckingClaim(attempt), Ask::Read { worker })
            }
        }
    }

    fn claim_read(
        &mut self,
        now: Now,
        attempt: &Attempt,
        outcome: Result<Option<Bound>, RegistryError>,
    ) -> (State, Ask) {
        match outcome {
            // Ours, by this attempt or by an earlier one with the same guard: the window ends where the record says.
            Ok(Some(found)) if found.incarnation == self.terms.incarnation && found.hi > attempt.expected.hi => {
                self.open(now, attempt.worker, &attempt.expected, found)
            }
            // If the claim comes through later, some time of that worker id is wasted, no more.
            Ok(_) => self.seek_again(now, format!("the claim of worker id {} did not come through", attempt.worker)),
            Err(error) => self.seek_again(now, error.to_string()),
        }
    }

    fn open(&mut self, now: Now, worker: u32, previous: &Bound, bound: Bound) -> (State, Ask) {
        self.failures = 0;
        if self.time.lead_to(now.boot, previous.hi) {
            self.publish.push(Publish::Line(self.time.line()));
        }
        self.publish.push(Publish::Open { worker, edge_ms: previous.hi, limit_ms: bound.hi });
        let limit_ms = bound.hi;
        self.hold(now, Held { worker, guard: bound, limit_ms })
    }

    fn seek_again(&mut self, now: Now, text: String) -> (State, Ask) {
        self.notices.push(Notice::NotClaimed(text));
        let pause = self.pause(now, LONGEST_PAUSE_MS);
        (State::Seeking, Ask::Pause(pause))
    }

    /// A pause that doubles from failure to failure up to `longest_ms`, cut by up to a half at random.
    fn pause(&mut self, now: Now, longest_ms: u64) -> Duration {
        let full = (FIRST_PAUSE_MS << self.failures.min(16)).min(longest_ms).max(1);
        self.failures = self.failures.saturating_add(1);
        Duration::from_millis(full - now.random % (full / 2 + 1))
    }

    // --- renewing

    /// Renews when less than two thirds of the window are left, else waits for that.
    fn hold(&mut self, now: Now, held: Held) -> (State, Ask) {
        let logical = self.logical_ms(now);
        let left = held.limit_ms.saturating_sub(logical);
        let renew_below = self.terms.window_ms / 3 * 2;
        if left >= renew_below.max(1) {
            let pause = Duration::from_millis(left - renew_below + 1).min(LOOK_EVERY);
            return (State::Holding(held), Ask::Pause(pause));
        }
        self.renew(now, held)
    }

    /// The bound grows with time, not with each renewal, or it would run away. After a regression it is also what
    /// repairs.
    fn renew(&mut self, now: Now, held: Held) -> (State, Ask) {
        let hi = held.limit_ms.max(self.logical_ms(now).saturating_add(self.terms.window_ms));
        let next = self.record(now, &held.guard, hi);
        let (worker, expected) = (held.worker, held.guard.clone());
        (State::Renewing(held, next.clone()), Ask::Renew { worker, expected, next })
    }

    fn renewed(&mut self, now: Now, held: Held, next: Bound, outcome: Result<Swap, RegistryError>) -> (State, Ask) {
        match outcome {
            Ok(Swap::Done) => self.confirmed(now, &held, next),
            Ok(Swap::Refused) => check(held),
            Err(error) => {
                self.notices.push(Notice::NotRenewed(error.to_string()));
                check(held)
            }
        }
    }

    /// `bound` stands in the registry and is ours.
    fn confirmed(&mut self, now: Now, held: &Held, bound: Bound) -> (State, Ask) {
        self.failures = 0;
        let limit_ms = held.limit_ms.max(bound.hi);
        if limit_ms > held.limit_ms {
            self.publish.push(Publish::Raise { limit_ms });
        }
        self.hold(now, Held { worker: held.worker, guard: bound, limit_ms })
    }

    fn renewal_read(&mut self, now: Now, held: Held, outcome: Result<Option<Bound>, RegistryError>) -> (State, Ask) {
        let found = match outcome {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.tell_missing(held.worker);
                return (State::Listing, Ask::List);
            }
            Err(error) => {
                self.notices.push(Notice::NotRenewed(error.to_string()));
                let pause = self.pause(now, (self.terms.window_ms / RENEWAL_PAUSE_PART).min(1_000));
                return (State::Doubting(held), Ask::Pause(pause));
            }
        };
        let (worker, confirmed_ms, found_ms) = (held.worker, held.limit_ms, found.hi);
        let regression = Notice::Regression { worker, confirmed_ms, found_ms };
        if found.incarnation != self.terms.incarnation {
            self.notices.push(Notice::Lost(worker));
            // Who claims after us starts at our bound or above. A record that is not above it was written by somebody
            // who did not see it: his window may overlap ours, so the rest of ours is given up.
            if found_ms <= confirmed_ms || found.n <= held.guard.n {
                self.notices.push(regression);
                self.publish.push(Publish::Close);
            }
            return (State::Listing, Ask::List);
        }
        if found_ms < confirmed_ms {
            self.notices.push(regression);
            let held = Held { guard: found, ..held };
            if self.failures == 0 {
                self.failures = 1;
                return self.renew(now, held);
            }
            // A registry that refuses what it has just shown must not be asked without a pause.
            return (State::Holding(held), Ask::Pause(self.pause(now, LONGEST_PAUSE_MS)));
        }
        if found == held.guard {
            // Nothing was written yet. An attempt in flight may still come through and refuse the next one.
            let pause = self.pause(now, (self.terms.window_ms / RENEWAL_PAUSE_PART).min(1_000));
            return (State::Holding(held), Ask::Pause(pause));
        }
        self.confirmed(now, &held, found)
    }

    // --- the end

    /// Closes what is open, then gives up the ownership. The bound stays: lowering it could repeat ids.
    fn stop(&mut self, state: State) -> (State, Ask) {
        let worker = match state {
            State::Seeking | State::Listing | State::Releasing | State::Ended => None,
            State::Claiming(attempt) | State::CheckingClaim(attempt) => Some(attempt.worker),
            State::Holding(held) | State::Renewing(held, _) | State::Doubting(held) | State::CheckingRenewal(held) => {
                Some(held.worker)
            }
        };
        self.publish.push(Publish::Close);
        worker.map_or((State::Ended, Ask::End), |worker| (State::Releasing, Ask::Release { worker }))
    }
}

fn check(held: Held) -> (State, Ask) {
    let worker = held.worker;
    (State::CheckingRenewal(held), Ask::Read { worker })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Boot, Wall};
    use crate::registry::{Owner, unclaimed};

    const ME: Incarnation = Incarnation(1);
    const OTHER: Incarnation = Incarnation(2);
    const W: u64 = 30_000;
    /// The wall clock at the start, in Unix milliseconds.
    const T: u64 = 1_800_000_000_000;

    fn at(ms: u64) -> Now {
        Now { boot: Boot(ms * 1_000_000), wall: Wall((T + ms) * 1_000_000), random: 0 }
    }

    fn terms(exclusive: bool) -> Terms {
        Terms {
            incarnation: ME,
            host: "here".into(),
            window_ms: W,
            max_ahead_ms: 30_000,
            exclusive,
            leases: !exclusive,
            hint: None,
        }
    }

    fn worker(id: u32, hi: u64, owner: Option<Incarnation>) -> Worker {
        let owner = owner.map(|incarnation| Owner { incarnation, host: "there".into() });
        Worker { id, bound: Some(unclaimed(hi)), owner }
    }

    fn started(terms: Terms) -> Window {
        let mut window = Window::new(terms, at(0));
        assert_eq!(window.on(at(0), Event::Woken).ask, Ask::List);
        window
    }

    fn lost() -> RegistryError {
        RegistryError::Unknown("no answer".into())
    }

    /// A machine that has just claimed worker id 3, whose bound was `T - 1`; the record it wrote.
    fn holding() -> (Window, Bound) {
        let mut window = started(terms(true));
        let step = window.on(at(0), Event::Listed(Ok(vec![worker(3, T - 1, None)])));
        let Ask::Claim { worker: 3, next, .. } = step.ask else { panic!("{step:?}") };
        let step = window.on(at(0), Event::Swapped(Ok(Swap::Done)));
        assert_eq!(step.publish, [Publish::Open { worker: 3, edge_ms: T - 1, limit_ms: T + W }]);
        assert!(matches!(step.ask, Ask::Pause(_)));
        (window, next)
    }

    /// A machine that has asked for the renewal of what [`holding`] gives; the guard and the record it wants to write.
    fn renewing() -> (Window, Bound, Bound) {
        let (mut window, mine) = holding();
        assert!(matches!(window.on(at(9_999), Event::Woken).ask, Ask::Pause(_)), "two thirds are left");
        let Ask::Renew { worker: 3, expected, next } = window.on(at(10_001), Event::Woken).ask else { panic!() };
        assert_eq!(expected, mine);
        (window, expected, next)
    }

    #[test]
    fn the_hinted_ripe_id_is_claimed_else_any_ripe_one() {
        let workers =
            || vec![worker(0, T + 1, None), worker(1, 0, None), worker(2, 0, None), worker(3, T, Some(OTHER))];
        let claimed = |hint, random| {
            let mut window = started(Terms { hint, ..terms(false) });
            let step = window.on(Now { random, ..at(0) }, Event::Listed(Ok(workers())));
            let Ask::Claim { worker, .. } = step.ask else { panic!("{step:?}") };
            worker
        };
        assert_eq!((claimed(Some(2), 0), claimed(None, 0), claimed(None, 1)), (2, 1, 2));
        assert_eq!((claimed(Some(0), 0), claimed(Some(3), 1)), (1, 2), "a hint that is not ripe or not free");
    }

    #[test]
    fn without_leases_an_owner_counts_only_until_its_bound_has_passed() {
        let claimed = |hi, owner| {
            let mut window = started(Terms { leases: false, ..terms(false) });
            let step = window.on(at(0), Event::Listed(Ok(vec![worker(0, hi, owner)])));
            matches!(step.ask, Ask::Claim { .. })
        };
        assert!(claimed(T, Some(OTHER)), "it crashed long ago");
        assert!(!claimed(T + 1, Some(OTHER)), "it may be alive");
        assert!(claimed(T + 1, None), "it was released: time is led to its bound");
        assert!(claimed(T + 1, Some(ME)), "a claim of ours that came through late");
    }

    #[test]
    fn without_a_ripe_id_time_is_led_to_the_nearest_bound() {
        let mut window = started(terms(true));
        let far = T + 7_200_000;
        let step = window.on(at(0), Event::Listed(Ok(vec![worker(0, far, Some(OTHER)), worker(1, far + 1, None)])));
        let Ask::Claim { worker: 0, next, .. } = step.ask else { panic!("{step:?}") };
        assert_eq!(next.hi, far + W);
        assert_eq!(window.line().at(at(0).boot) / 1_000_000, T, "not before the claim is confirmed");
        let step = window.on(at(5), Event::Swapped(Ok(Swap::Done)));
        assert_eq!(step.publish.last(), Some(&Publish::Open { worker: 0, edge_ms: far, limit_ms: far + W }));
        assert_eq!(window.line().at(at(5).boot) / 1_000_000, far);
    }

    #[test]
    fn a_shared_registry_lets_time_be_led_only_so_far() {
        let mut window = started(terms(false));
        let step = window.on(at(0), Event::Listed(Ok(vec![worker(0, T + 30_001, None), worker(1, 0, Some(OTHER))])));
        assert!(matches!(&step.notices[..], [Notice::NotClaimed(text)] if text.contains("the wall clock")), "{step:?}");
        // That was the check against the owner who is online with a bound of long ago; without one it is the lead.
        let mut window = started(terms(false));
        let step = window.on(at(0), Event::Listed(Ok(vec![worker(0, T + 30_001, None)])));
        assert!(matches!(&step.notices[..], [Notice::NotClaimed(text)] if text.contains("future")), "{step:?}");
        assert_eq!(step.ask, Ask::Pause(Duration::from_millis(1)));
        assert_eq!(window.on(at(1), Event::Woken).ask, Ask::List);
        let step = window.on(at(1), Event::Listed(Ok(vec![worker(0, T + 30_001, None)])));
        assert!(matches!(step.ask, Ask::Claim { worker: 0, .. }));
    }

    #[test]
    fn a_wall_clock_that_contradicts_the_nodes_online_claims_nothing() {
        let claims = |peer_hi| {
            let mut window = started(terms(false));
            let step = window.on(at(0), Event::Listed(Ok(vec![worker(0, 0, None), worker(1, peer_hi, Some(OTHER))])));
            matches!(step.ask, Ask::Claim { .. })
        };
        assert!(claims(T + W) && claims(T - 1_000) && claims(T + W + 30_000 + 1_000));
        assert!(!claims(T - 1_001), "this clock is ahead");
        assert!(!claims(T + W + 30_000 + 1_001), "this clock is behind");
    }

    #[test]
    fn an_unknown_claim_counts_only_for_what_the_record_says() {
        let mut window = started(terms(true));
        window.on(at(0), Event::Listed(Ok(vec![worker(3, T - 1, None)])));
        assert_eq!(window.on(at(10), Event::Swapped(Err(lost()))).ask, Ask::Read { worker: 3 });
        let stands = Bound { hi: T + 77, incarnation: ME, n: 1, ..unclaimed(0) };
        let step = window.on(at(20), Event::Read(Ok(Some(stands))));
        assert_eq!(step.publish, [Publish::Open { worker: 3, edge_ms: T - 1, limit_ms: T + 77 }]);
        for other in [Some(unclaimed(T - 1)), Some(Bound { incarnation: OTHER, ..unclaimed(T + W) }), None] {
            let mut window = started(terms(true));
            window.on(at(0), Event::Listed(Ok(vec![worker(3, T - 1, None)])));
            window.on(at(10), Event::Swapped(Err(lost())));
            let step = window.on(at(20), Event::Read(Ok(other)));
            assert_eq!(step.publish, [], "nothing is known to be ours");
            assert!(matches!(step.ask, Ask::Pause(_)));
        }
    }

    #[test]
    fn a_renewal_reserves_from_the_time_it_is_and_is_published_when_confirmed() {
        let (mut window, expected, next) = renewing();
        assert_eq!((next.hi, next.n), (T + 10_001 + W, expected.n + 1));
        let step = window.on(at(10_050), Event::Swapped(Ok(Swap::Done)));
        assert_eq!(step.publish, [Publish::Raise { limit_ms: next.hi }]);
    }

    #[test]
    fn an_unknown_renewal_is_read_back_before_anything_else() {
        for outcome in [Err(lost()), Err(RegistryError::Unavailable("refused".into())), Ok(Swap::Refused)] {
            let (mut window, expected, next) = renewing();
            let step = window.on(at(12_000), Event::Swapped(outcome));
            assert_eq!((step.publish, step.ask), (vec![], Ask::Read { worker: 3 }));
            let step = window.clone().on(at(12_001), Event::Read(Ok(Some(next.clone()))));
            assert_eq!(step.publish, [Publish::Raise { limit_ms: next.hi }], "it had come through");
            let step = window.on(at(12_001), Event::Read(Ok(Some(expected.clone()))));
            assert_eq!(step.publish, [], "it had not");
            assert!(matches!(step.ask, Ask::Pause(_)));
            let step = window.on(at(13_000), Event::Woken);
            assert!(matches!(step.ask, Ask::Renew { expected: guard, .. } if guard == expected));
        }
    }

    #[test]
    fn a_read_that_fails_is_repeated_and_nothing_is_written_meanwhile() {
        let (mut window, ..) = renewing();
        window.on(at(12_000), Event::Swapped(Err(lost())));
        for attempt in 0..5 {
            let step = window.on(at(13_000 + attempt), Event::Read(Err(lost())));
            assert!(matches!(step.ask, Ask::Pause(_)));
            assert_eq!(window.on(at(13_000 + attempt), Event::Woken).ask, Ask::Read { worker: 3 });
        }
    }

    #[test]
    fn a_lost_worker_id_serves_to_the_end_of_its_window_while_another_is_claimed() {
        let (mut window, expected, _) = renewing();
        window.on(at(40_000), Event::Swapped(Ok(Swap::Refused)));
        let foreign = Bound { hi: T + 90_000, incarnation: OTHER, n: expected.n + 1, ..unclaimed(0) };
        let step = window.on(at(40_001), Event::Read(Ok(Some(foreign))));
        assert_eq!((step.publish, step.notices, step.ask), (vec![], vec![Notice::Lost(3)], Ask::List));
    }

    #[test]
    fn a_foreign_record_that_is_not_above_ours_ends_the_window_at_once() {
        let (mut window, expected, _) = renewing();
        window.on(at(12_000), Event::Swapped(Ok(Swap::Refused)));
        let foreign = Bound { hi: T + 90_000, incarnation: OTHER, n: expected.n, ..unclaimed(0) };
        let step = window.on(at(12_001), Event::Read(Ok(Some(foreign))));
        assert_eq!((step.publish, step.ask), (vec![Publish::Close], Ask::List));
        assert!(matches!(step.notices[..], [Notice::Lost(3), Notice::Regression { .. }]));
    }

    #[test]
    fn a_registry_that_went_back_is_told_and_raised_again() {
        let (mut window, expected, _) = renewing();
        window.on(at(12_000), Event::Swapped(Ok(Swap::Refused)));
        let older = Bound { hi: T + 5, n: 0, ..expected };
        let step = window.on(at(12_001), Event::Read(Ok(Some(older.clone()))));
        let notice = Notice::Regression { worker: 3, confirmed_ms: T + W, found_ms: T + 5 };
        assert_eq!((step.publish, step.notices), (vec![], vec![notice]));
        let Ask::Renew { expected: guard, next, .. } = step.ask else { panic!() };
        assert_eq!((guard, next.hi), (older.clone(), T + 12_001 + W));
        window.on(at(12_002), Event::Swapped(Ok(Swap::Refused)));
        let step = window.clone().on(at(12_003), Event::Read(Ok(Some(older))));
        assert!(matches!(step.ask, Ask::Pause(_)), "no endless haste where reads and writes contradict each other");
        let step = window.on(at(12_003), Event::Read(Ok(Some(next.clone()))));
        assert_eq!(step.publish, [Publish::Raise { limit_ms: next.hi }]);
    }

    #[test]
    fn a_record_that_is_gone_is_told_and_another_id_is_claimed() {
        let (mut window, ..) = renewing();
        window.on(at(12_000), Event::Swapped(Ok(Swap::Refused)));
        let step = window.on(at(12_001), Event::Read(Ok(None)));
        assert_eq!((step.publish, step.notices, step.ask), (vec![], vec![Notice::Missing(3)], Ask::List));
        let gone = Worker { id: 3, bound: None, owner: None };
        let step = window.on(at(12_002), Event::Listed(Ok(vec![gone, worker(4, 0, None)])));
        assert!(matches!(step.ask, Ask::Claim { worker: 4, .. }));
    }

    #[test]
    fn a_stop_closes_first_and_then_releases() {
        let (mut window, _) = holding();
        let step = window.on(at(5), Event::Stop);
        assert_eq!((step.publish, step.ask), (vec![Publish::Close], Ask::Release { worker: 3 }));
        assert_eq!(window.on(at(6), Event::Released).ask, Ask::End);
        let mut window = started(terms(true));
        assert_eq!(window.on(at(5), Event::Stop).ask, Ask::End);
        let (mut window, ..) = renewing();
        assert_eq!(window.on(at(12_000), Event::Stop).ask, Ask::Release { worker: 3 });
    }

    #[test]
    fn failed_attempts_come_less_and_less_often() {
        let mut window = started(terms(true));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let step = window.on(at(0), Event::Listed(Err(lost())));
            let Ask::Pause(pause) = step.ask else { panic!("{step:?}") };
            pauses.push(pause);
            window.on(at(0), Event::Woken);
        }
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!((pauses[0].as_millis(), pauses[11].as_millis()), (50, 5_000));
    }
}
