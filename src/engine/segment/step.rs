//! How many ids the next grant asks for.
//!
//! The step that the tag's row defines, held between the row's own bounds: a row that was edited by hand can neither
//! make a refill empty nor ask for the whole id space.

use crate::store::Definition;

/// The step of one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    next: u64,
    min: u64,
    max: u64,
}

impl Step {
    /// The step that `definition` asks for, within its bounds.
    #[must_use]
    pub fn new(definition: &Definition) -> Self {
        let min = definition.min_step.max(1);
        let max = definition.max_step.max(min);
        Self { next: definition.step.clamp(min, max), min, max }
    }

    /// How many ids the next grant asks for, 1 or more.
    #[must_use]
    pub const fn next_step(&self) -> u64 {
        self.next
    }

    /// The most that one grant asks for, unless a single request needs more.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.max
    }

    /// Why the step is what it is: `floor` or `ceiling` where a bound holds it, else `defined`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        if self.next == self.max && self.next != self.min {
            "ceiling"
        } else if self.next == self.min && self.next != self.max {
            "floor"
        } else {
            "defined"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{EngineKind, Order};

    #[test]
    fn the_step_stays_within_bounds_that_make_sense() {
        for (step, min_step, max_step, expected) in
            [(1000, 100, 10_000, 1000), (0, 100, 1000, 100), (5000, 100, 1000, 1000), (0, 0, 0, 1), (7, 9, 3, 9)]
        {
            let definition = Definition {
                engine: EngineKind::Segment,
                order: Order::Node,
                step,
                min_step,
                max_step,
                id_limit: 1,
                qps: 0,
                burst: 0,
                critical: false,
                description: String::new(),
            };
            let step = Step::new(&definition);
            assert_eq!(step.next_step(), expected);
            assert!(step.most() >= step.next_step());
        }
    }
}
