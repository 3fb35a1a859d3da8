//! Whether a store that keeps failing is asked at all: the circuit breaker, one for each store.
//!
//! Guaranteed: after [`THRESHOLD`] failures in a row nobody waits for the store any more, but one asker at a time, about
//! once in [`PROBE_EVERY`], who finds out whether it works again; one success closes the breaker. How: three states and a
//! number that tells the probe that is out from earlier ones, so that a late answer decides nothing it no longer knows.
//! Pure: time comes in, and asking is the caller's business. Rejected: a share of failures over a window of time (tags
//! with ids left rarely ask, so a window holds one request or none), a pause that doubles (recovery would get slow).

use std::time::Duration;

use crate::clock::Boot;

/// So many failures in a row open the breaker: one more than the attempts of one refill with the default
/// `segment.max_retry`, so that one unlucky tag alone does not close the store for the others.
pub const THRESHOLD: u32 = 5;

/// How long after a failure the next probe may go out: what a store that is down is asked in all, and a fifth of the time
/// in which its return has to be noticed.
pub const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Who wants to ask the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// A tag. Refused while the breaker is open.
    Ordinary,
    /// A tag with `CRITICAL yes`, or the node itself: may be the probe.
    Prober,
}

/// The leave to ask, to be handed back with what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The breaker was closed.
    Through,
    /// The breaker was open: the probe of that number.
    Probe(u64),
}

/// The state as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Circuit {
    /// The store is asked.
    Closed = 0,
    /// It is not asked, but the one probe that is out.
    HalfOpen = 1,
    /// It is not asked.
    Open = 2,
}

/// The breaker of one store.
#[derive(Debug, Default)]
pub struct Breaker {
    /// Failures since the last success, while closed.
    failures: u32,
    open: Option<Open>,
    /// How many probes went out.
    probes: u64,
}

#[derive(Debug)]
struct Open {
    /// The number of the probe that is out.
    probe: Option<u64>,
    /// When the next one may go.
    next: Boot,
}

impl Breaker {
    /// The leave to ask the store now, or `None`.
    pub fn admit(&mut self, asker: Asker, now: Boot) -> Option<Pass> {
        let Some(open) = &mut self.open else { return Some(Pass::Through) };
        if asker == Asker::Ordinary || open.probe.is_some() || now < open.next {
            return None;
        }
        self.probes += 1;
        open.probe = Some(self.probes);
        Some(Pass::Probe(self.probes))
    }

    /// The store has answered whoever had `pass`: it works, whatever was asked for before it broke.
    pub fn succeeded(&mut self, _pass: Pass) {
        (self.failures, self.open) = (0, None);
    }

    /// It has not: counts towards opening, or ends the probe.
    pub fn failed(&mut self, pass: Pass, now: Boot) {
        let next = now.plus(PROBE_EVERY);
        match (&mut self.open, pass) {
            (None, _) => {
                self.failures += 1;
                if self.failures >= THRESHOLD {
                    self.open = Some(Open { probe: None, next });
                }
            }
            (Some(open), Pass::Probe(number)) if open.probe == Some(number) => (open.probe, open.next) = (None, next),
            // Asked before the breaker opened, or before it opened again: known already.
            (Some(_), _) => {}
        }
    }

    /// What was asked says nothing about the store: somebody else held a lock, or nobody waited for the answer.
    pub fn undecided(&mut self, pass: Pass, now: Boot) {
        if self.open.is_some() {
            self.failed(pass, now);
        }
    }

    /// The state.
    #[must_use]
    pub const fn circuit(&self) -> Circuit {
        match &self.open {
            None => Circuit::Closed,
            Some(Open { probe: Some(_), .. }) => Circuit::HalfOpen,
            Some(_) => Circuit::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Boot = Boot(1_000_000_000);

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for n in 0..THRESHOLD {
            assert_eq!(breaker.circuit(), Circuit::Closed, "after {n} failures");
            let pass = breaker.admit(Asker::Ordinary, NOW).expect("closed");
            breaker.failed(pass, NOW);
        }
        assert_eq!(breaker.circuit(), Circuit::Open);
        breaker
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        opened();
        let mut breaker = Breaker::default();
        for n in 0..100 {
            let pass = breaker.admit(Asker::Ordinary, NOW).expect("closed");
            if n % 5 == 4 { breaker.succeeded(pass) } else { breaker.failed(pass, NOW) }
        }
        assert_eq!(breaker.circuit(), Circuit::Closed);
    }

    #[test]
    fn only_a_prober_gets_through_and_only_one_at_a_time() {
        let mut breaker = opened();
        assert_eq!(breaker.admit(Asker::Prober, NOW), None, "too soon");
        let later = NOW.plus(PROBE_EVERY);
        assert_eq!(breaker.admit(Asker::Ordinary, later), None);
        let probe = breaker.admit(Asker::Prober, later).expect("the probe");
        assert_eq!((breaker.circuit(), breaker.admit(Asker::Prober, later)), (Circuit::HalfOpen, None));
        breaker.failed(probe, later);
        assert_eq!((breaker.circuit(), breaker.admit(Asker::Prober, later)), (Circuit::Open, None));
        let probe = breaker.admit(Asker::Prober, later.plus(PROBE_EVERY)).expect("the next one");
        breaker.succeeded(probe);
        assert_eq!(breaker.circuit(), Circuit::Closed);
        assert!(breaker.admit(Asker::Ordinary, later).is_some());
    }

    #[test]
    fn a_lock_in_the_way_neither_opens_it_nor_keeps_the_probe_out_for_ever() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            let pass = breaker.admit(Asker::Ordinary, NOW).expect("closed");
            breaker.undecided(pass, NOW);
        }
        assert_eq!(breaker.circuit(), Circuit::Closed);
        let mut breaker = opened();
        let later = NOW.plus(PROBE_EVERY);
        let probe = breaker.admit(Asker::Prober, later).expect("the probe");
        breaker.undecided(probe, later);
        assert!(breaker.admit(Asker::Prober, later.plus(PROBE_EVERY)).is_some());
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Ask(Asker),
        Answer(usize, bool),
        Passes(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => Just(Event::Ask(Asker::Ordinary)),
            3 => Just(Event::Ask(Asker::Prober)),
            6 => (0..8_usize, prop::bool::weighted(0.2)).prop_map(|(which, well)| Event::Answer(which, well)),
            2 => (0..1_500_000_000_u64).prop_map(Event::Passes),
        ];
        proptest::collection::vec(event, 1..300)
    }

    proptest! {
        #[test]
        fn an_open_breaker_lets_one_prober_a_second_through_and_any_success_closes_it(events in events()) {
            let (mut breaker, mut now, mut out) = (Breaker::default(), NOW, Vec::new());
            // Failures in a row as told, and when the probe or the opening failed last.
            let (mut row, mut failed_at) = (0_u32, NOW);
            for event in events {
                let before = breaker.circuit();
                match event {
                    Event::Passes(nanos) => now = Boot(now.0 + nanos),
                    Event::Ask(asker) => {
                        let pass = breaker.admit(asker, now);
                        let may = before == Circuit::Closed
                            || (asker == Asker::Prober && before == Circuit::Open
                                && now.since(failed_at) >= PROBE_EVERY);
                        prop_assert_eq!(pass.is_some(), may, "{:?} while {:?}", asker, before);
                        out.extend(pass);
                    }
                    Event::Answer(which, _) if out.get(which).is_none() => {}
                    Event::Answer(which, true) => {
                        breaker.succeeded(out.swap_remove(which));
                        row = 0;
                        prop_assert_eq!(breaker.circuit(), Circuit::Closed);
                    }
                    Event::Answer(which, false) => {
                        let pass = out.swap_remove(which);
                        breaker.failed(pass, now);
                        row += u32::from(before == Circuit::Closed);
                        let opens = before == Circuit::Closed && row >= THRESHOLD;
                        let ends = before == Circuit::HalfOpen && breaker.circuit() == Circuit::Open;
                        prop_assert_eq!(breaker.circuit() != Circuit::Closed, before != Circuit::Closed || opens);
                        prop_assert!(!ends || matches!(pass, Pass::Probe(_)), "an old answer ended the probe");
                        if opens || ends {
                            (row, failed_at) = (0, now);
                        }
                    }
                }
            }
        }
    }
}
