//! Commit mode: which requests of a strict tag one grant serves, and which of its ids each of them gets.
//!
//! Guaranteed: a statement starts after the arrival of every request it serves, and each of its ids goes to one of those
//! or to nobody; so an id is larger than all that were known to anybody when its request arrived, on every node. How:
//! requests gather while a grant is in flight, in the order of their arrival; [`Gather::begin`] takes all that are there
//! then, and [`Gather::settle`] hands out to those alone. Nothing is kept: no cache, no timer, no tail. Pure: it knows no
//! clock, and what a request is answered through is the caller's business.
//! Rejected: serving a request that came during the statement out of what others left (its id may be smaller than one that
//! another node has given since), fetching ahead (the same).

use crate::clock::Boot;
use crate::engine::segment::buffer::Rules;
use crate::engine::{Demand, Refusal};
use crate::ids::IdRange;

/// What a request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// All it asked for, or of [`Demand::Singles`] the first ones.
    Ids(IdRange),
    /// Nothing.
    Refused(Refusal),
}

/// What came of a grant.
#[derive(Debug, PartialEq, Eq)]
pub struct Settled<R> {
    /// Who gets what, in the order of arrival.
    pub given: Vec<(R, Given)>,
    /// The end of the range, when it was too small for any request: the last ids up to the tag's MAX.
    pub unused: Option<IdRange>,
}

#[derive(Debug)]
struct Waiter<R> {
    demand: Demand,
    recipient: R,
}

/// The requests of one strict tag; `R` is where a request's answer goes. There are as many as connections at most, since
/// each waits for one answer at a time.
#[derive(Debug)]
pub struct Gather<R> {
    /// Those that no statement serves yet, in the order of arrival.
    gathered: Vec<Waiter<R>>,
    /// Those that the statement in flight serves; all came before the others.
    serving: Vec<Waiter<R>>,
    committing: bool,
    /// The highest end ever received: no range may start below it.
    highest: u64,
    floor: u64,
    closed: Option<Refusal>,
    trouble: Option<(Refusal, Boot)>,
    last_batch: u64,
    lost: Vec<(&'static str, u64)>,
    rules: Rules,
}

impl<R> Gather<R> {
    /// Nobody waits, and later ids are above `floor`.
    #[must_use]
    pub const fn new(floor: u64, rules: Rules) -> Self {
        Self {
            gathered: Vec::new(),
            serving: Vec::new(),
            committing: false,
            highest: 0,
            floor,
            closed: None,
            trouble: None,
            last_batch: 0,
            lost: Vec::new(),
            rules,
        }
    }

    /// A request arrives. `Ok(true)`: the caller has to run the commits, from [`Self::begin`] on until that gives `None`.
    ///
    /// # Errors
    /// Why it is not served: the tag is closed, or a commit has failed a moment ago.
    pub fn arrive(&mut self, demand: Demand, recipient: R, now: Boot) -> Result<bool, Refusal> {
        self.refusal(now)?;
        self.gathered.push(Waiter { demand, recipient });
        Ok(!std::mem::replace(&mut self.committing, true))
    }

    /// # Errors
    /// Why a request that arrived now would not be served.
    pub fn refusal(&self, now: Boot) -> Result<(), Refusal> {
        if let Some(refusal) = &self.closed {
            return Err(refusal.clone());
        }
        match &self.trouble {
            Some((refusal, until)) if !self.committing && now < *until => Err(refusal.clone()),
            _ => Ok(()),
        }
    }

    /// The next statement serves all who are here and not `gone`: how many ids it asks for. To be called right before it
    /// is sent. `None`: nobody is here, and the commits have ended.
    pub fn begin(&mut self, gone: impl Fn(&R) -> bool) -> Option<u64> {
        self.serving.append(&mut self.gathered);
        self.serving.retain(|waiter| !gone(&waiter.recipient));
        if self.serving.is_empty() || self.closed.is_some() {
            self.committing = false;
            return None;
        }
        let total = self.serving.iter().fold(0_u64, |sum, waiter| sum.saturating_add(waiter.demand.count()));
        self.last_batch = total;
        Some(total)
    }

    /// Hands out what the statement was granted, in the order of arrival. Who does not fit into a range that is smaller
    /// than was asked for, since the tag's MAX `id_limit` is near, is refused; who lost ids to a floor stays for the next
    /// statement.
    ///
    /// # Errors
    /// The end below which the range starts, though all ids below it were given away before: it is dropped, the store has
    /// lost something, and all stay for another attempt.
    pub fn settle(&mut self, range: IdRange, id_limit: u64) -> Result<Settled<R>, u64> {
        if range.start() < self.highest && !self.rules.accept_lower {
            self.lose("regression", range.len());
            return Err(self.highest);
        }
        self.highest = self.highest.max(range.end());
        self.trouble = None;
        let mut settled = Settled { given: Vec::new(), unused: None };
        if self.closed.is_some() {
            self.lose("stop", range.len());
            return Ok(settled);
        }
        let mut left = IdRange::new(range.start().max(self.floor.saturating_add(1)), range.end());
        let below = range.len() - left.map_or(0, IdRange::len);
        self.lose("floor", below);
        for waiter in std::mem::take(&mut self.serving) {
            let here = left.map_or(0, IdRange::len);
            let wanted = match waiter.demand {
                Demand::Singles(n) => n.min(here),
                Demand::Batch(n) | Demand::Consecutive(n) if n <= here => n,
                Demand::Batch(_) | Demand::Consecutive(_) => 0,
            };
            let (ids, rest) = left.map_or((None, None), |range| range.split(wanted));
            let given = match ids {
                Some(ids) => Given::Ids(ids),
                None if below > 0 => {
                    self.serving.push(waiter);
                    continue;
                }
                None => Given::Refused(Refusal::AtMax { max: id_limit, left: here }),
            };
            left = rest;
            settled.given.push((waiter.recipient, given));
        }
        settled.unused = left;
        if let Some(unused) = left {
            // Nobody was given those, so they may come again.
            self.highest = unused.start();
        }
        Ok(settled)
    }

    /// The commits end without ids. All who wait are given back, to be told `refusal`, as are those who arrive before
    /// `until`.
    #[must_use]
    pub fn fail(&mut self, refusal: Refusal, until: Boot) -> Vec<R> {
        self.trouble = Some((refusal, until));
        self.committing = false;
        self.everybody()
    }

    /// Serves nothing from now on. All who wait are given back, to be told `refusal`.
    #[must_use]
    pub fn close(&mut self, refusal: Refusal) -> Vec<R> {
        self.closed.get_or_insert(refusal);
        self.everybody()
    }

    fn everybody(&mut self) -> Vec<R> {
        let all = std::mem::take(&mut self.serving).into_iter().chain(std::mem::take(&mut self.gathered));
        all.map(|waiter| waiter.recipient).collect()
    }

    /// Until `until`, or until the commits that run have ended, who arrives is told `refusal`. All who wait are given back.
    #[must_use]
    pub fn refuse(&mut self, refusal: Refusal, until: Boot) -> Vec<R> {
        self.trouble = Some((refusal, until));
        self.everybody()
    }

    /// Lets the next request ask the store whatever went wrong before: the definition has changed.
    pub fn forgive(&mut self) {
        self.trouble = None;
    }

    /// Takes `last` for the last id ever given away: no later range may start at or below it.
    pub fn fence(&mut self, last: u64) {
        self.highest = self.highest.max(last.saturating_add(1));
    }

    /// Later ids are above `floor`.
    pub fn raise_floor(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
    }

    fn lose(&mut self, reason: &'static str, n: u64) {
        if n > 0 {
            self.lost.push((reason, n));
        }
    }

    /// How many ids were dropped since the last call, by reason.
    pub fn drain_lost(&mut self) -> Vec<(&'static str, u64)> {
        std::mem::take(&mut self.lost)
    }

    /// The last id that is known to be given away; 0: none.
    #[must_use]
    pub const fn highest(&self) -> u64 {
        self.highest.saturating_sub(1)
    }

    /// The floor that is known here.
    #[must_use]
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    /// How many ids the last statement asked for; 0: none was sent.
    #[must_use]
    pub const fn last_batch(&self) -> u64 {
        self.last_batch
    }

    /// Whether commits run.
    #[must_use]
    pub const fn is_committing(&self) -> bool {
        self.committing
    }

    /// Whether the tag was closed.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.closed.is_some()
    }
}

#[cfg(test)]
mod tests;
