//! What this node can do right now, in words: the one source of `PING`, `INFO`, `IDNODE`, `/readyz` and `/startupz`.
//!
//! A node is *loading* until it can serve some tag, then *serving*, then *draining* from the first stop signal on. A part
//! (a store, the worker id) may be missing while the node serves: readiness names it and stays good as long as any tag
//! can be served, since taking every node out of a load balancer helps nobody.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// The phase of a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// No tag can be served yet.
    Loading = 0,
    /// At least one engine serves.
    Serving = 1,
    /// A stop has been asked for; what was read is still answered.
    Draining = 2,
}

/// Why a node that drains is not ready.
pub const STOPPING: &str = "this node is stopping";

/// A part of the node whose state is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Grants: the database as the segment engine writes it.
    Store,
    /// Polls: the database as the catalogue is read from it.
    Catalogue,
    /// The worker id of the Snowflake engine.
    Snowflake,
}

impl Part {
    /// The name used in texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Catalogue => "catalogue",
            Self::Snowflake => "snowflake",
        }
    }
}

/// What is known of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing has asked for it.
    Unused,
    /// It works.
    Up,
    /// It doesn't, and why.
    Down(String),
}

/// What a report changed: whoever made it logs a line, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that is news.
    None,
    /// The part worked, or nothing had asked for it, and now it doesn't.
    Failed,
    /// The part was down and works again.
    Recovered,
}

/// The node's state, shared by all rooms.
#[derive(Debug)]
pub struct Health {
    phase: AtomicU8,
    parts: Mutex<BTreeMap<Part, State>>,
}

impl Default for Health {
    fn default() -> Self {
        Self { phase: AtomicU8::new(Phase::Loading as u8), parts: Mutex::default() }
    }
}

impl Health {
    /// The phase: one relaxed load.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Loading,
            1 => Phase::Serving,
            _ => Phase::Draining,
        }
    }

    /// Enters `phase`; a phase that has passed never comes back.
    pub fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Records the state of `part` and returns the one it had.
    pub fn set(&self, part: Part, state: State) -> State {
        self.lock().insert(part, state).unwrap_or(State::Unused)
    }

    /// Records the state of `part`, of which the caller is the only teller, and says whether it is news.
    pub fn report(&self, part: Part, state: State) -> Change {
        let fails = matches!(state, State::Down(_));
        match (matches!(self.set(part, state), State::Down(_)), fails) {
            (false, true) => Change::Failed,
            (true, false) => Change::Recovered,
            _ => Change::None,
        }
    }

    /// Whether `part` is down.
    #[must_use]
    pub fn is_down(&self, part: Part) -> bool {
        matches!(self.part(part), State::Down(_))
    }

    /// The state of `part`.
    #[must_use]
    pub fn part(&self, part: Part) -> State {
        self.lock().get(&part).cloned().unwrap_or(State::Unused)
    }

    /// Each part that is down with its reason, as `store: reason`.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let describe = |(part, state): (&Part, &State)| match state {
            State::Down(reason) => Some(format!("{}: {reason}", part.name())),
            State::Up | State::Unused => None,
        };
        self.lock().iter().filter_map(describe).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Part, State>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_never_comes_back() {
        let health = Health::default();
        assert_eq!(health.phase(), Phase::Loading);
        health.enter(Phase::Draining);
        health.enter(Phase::Serving);
        assert_eq!(health.phase(), Phase::Draining);
    }

    #[test]
    fn a_report_is_news_when_a_part_goes_down_or_comes_back() {
        let health = Health::default();
        let down = |why: &str| State::Down(why.into());
        for (state, change) in [
            (State::Up, Change::None),
            (down("busy"), Change::Failed),
            (down("full"), Change::None),
            (State::Up, Change::Recovered),
            (State::Up, Change::None),
        ] {
            assert_eq!(health.report(Part::Catalogue, state.clone()), change, "{state:?}");
            assert_eq!(health.part(Part::Catalogue), state);
        }
        assert_eq!(health.report(Part::Store, down("busy")), Change::Failed);
        assert!(health.is_down(Part::Store) && !health.is_down(Part::Catalogue), "each for itself");
    }

    #[test]
    fn only_parts_that_are_down_are_missing() {
        let health = Health::default();
        health.set(Part::Store, State::Up);
        assert_eq!(health.set(Part::Snowflake, State::Down("no worker id".into())), State::Unused);
        assert_eq!(health.missing(), ["snowflake: no worker id"]);
    }
}
