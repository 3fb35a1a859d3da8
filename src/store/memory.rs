//! A segment store in memory, for tests and simulations: it keeps nothing over a restart, so no server offers it.
//!
//! It follows the same contract as the databases, which the conformance suite checks, and can be told to misbehave in
//! the ways a database does: fail, apply without saying so, answer late, apply late.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::{
    Alteration, Answer, Definition, Grant, Kind, MAX_TAILS, Row, SegmentStore, StoreError, Tail, nonce, rules,
};
use crate::ids::{IdRange, MAX_ID, TagName};

/// What the next grant or probe does instead of working; one fault each, in the order they were planned.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing happens and the answer is an error of this kind.
    Fail(Kind),
    /// It is applied, and the answer is [`Kind::Unknown`].
    AppliedUnknown,
    /// It begins only when the gate has a permit.
    Held(Arc<Semaphore>),
    /// The answer is [`Kind::Unknown`] at once; it is applied when the gate has a permit.
    AppliedLate(Arc<Semaphore>),
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<TagName, (Row, u128)>,
    revision: u64,
    faults: VecDeque<Fault>,
    grants: Vec<u64>,
    delay: Duration,
    shared: bool,
    rules: Rules,
}

/// Bugs to plant, for tests that show that they would be found. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// B21: a tail goes back without a look at the nonce.
    pub ignore_nonce: bool,
}

/// The store; clones share the rows.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<State>>);

impl Memory {
    /// A store that several nodes may use.
    #[must_use]
    pub fn of_many_nodes(rules: Rules) -> Self {
        Self(Arc::new(Mutex::new(State { shared: true, rules, ..State::default() })))
    }

    /// Plans the next fault.
    pub fn plan(&self, fault: Fault) {
        self.lock().faults.push_back(fault);
    }

    /// Lets every grant take `delay` from now on, before it happens.
    pub fn slow_down(&self, delay: Duration) {
        self.lock().delay = delay;
    }

    /// The counts that were asked for, in order of arrival.
    #[must_use]
    pub fn grants(&self) -> Vec<u64> {
        self.lock().grants.clone()
    }

    /// Deletes a row, as no command can; says whether there was one.
    #[must_use]
    pub fn delete(&self, tag: &TagName) -> bool {
        self.lock().rows.remove(tag).is_some()
    }

    /// Sets `max_id` to anything, as a failover that lost commits does.
    pub fn rewind(&self, tag: &TagName, max_id: u64) {
        if let Some((row, _)) = self.lock().rows.get_mut(tag) {
            row.max_id = max_id;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn grant(&mut self, tag: &TagName, count: u64) -> Result<Grant, StoreError> {
        let nonce = nonce::fresh()?;
        let (row, row_nonce) = self.rows.get_mut(tag).ok_or_else(|| rules::missing(tag))?;
        rules::live(row.clone())?;
        let limit = row.definition.id_limit;
        let last = row.max_id.max(row.floor).saturating_add(count).min(limit);
        let range = IdRange::new(row.max_id.max(row.floor) + 1, last + 1).ok_or_else(|| rules::exhausted(limit))?;
        (row.max_id, *row_nonce) = (last, nonce);
        Ok(Grant { range, nonce })
    }

    fn take_back(&mut self, tail: &Tail) -> Result<bool, StoreError> {
        let fresh = nonce::fresh()?;
        let any_nonce = self.rules.ignore_nonce;
        let before = tail.unused.start() - 1;
        match self.rows.get_mut(&tail.tag) {
            Some((row, nonce))
                if row.max_id == tail.unused.last()
                    && (*nonce == tail.nonce || any_nonce)
                    && row.floor <= before
                    && !row.retired =>
            {
                (row.max_id, *nonce) = (before, fresh);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn create(
        &mut self,
        tag: &TagName,
        definition: &Definition,
        start: u64,
        most: u64,
    ) -> Result<(Row, bool), StoreError> {
        if let Some((row, _)) = self.rows.get(tag) {
            return Ok((row.clone(), false));
        }
        let before = rules::before_start(definition, start)?;
        if self.rows.len() as u64 >= most {
            return Err(rules::too_many(most));
        }
        let (tag, definition) = (tag.clone(), definition.clone());
        let row = Row { tag, definition, max_id: before, floor: before, retired: false, revision: 0 };
        self.write(row).map(|row| (row, true))
    }

    /// Stores a row under a new revision and nonce.
    fn write(&mut self, mut row: Row) -> Result<Row, StoreError> {
        self.revision += 1;
        row.revision = self.revision;
        self.rows.insert(row.tag.clone(), (row.clone(), nonce::fresh()?));
        Ok(row)
    }

    fn read(&self, tag: &TagName) -> Result<Row, StoreError> {
        self.rows.get(tag).map(|(row, _)| row.clone()).ok_or_else(|| rules::missing(tag))
    }
}

impl SegmentStore for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn shared(&self) -> bool {
        self.lock().shared
    }

    fn grant<'a>(&'a self, tag: &'a TagName, count: u64) -> Answer<'a, Grant> {
        Box::pin(async move {
            let (fault, delay) = {
                let mut state = self.lock();
                state.grants.push(count);
                (state.faults.pop_front(), state.delay)
            };
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let unknown = || StoreError::new(Kind::Unknown, "the answer was lost");
            match fault {
                None => self.lock().grant(tag, count),
                Some(Fault::Fail(kind)) => Err(StoreError::new(kind, format!("planned: {}", kind.name()))),
                Some(Fault::AppliedUnknown) => self.lock().grant(tag, count).and(Err(unknown())),
                Some(Fault::Held(gate)) => {
                    drop(gate.acquire().await);
                    self.lock().grant(tag, count)
                }
                Some(Fault::AppliedLate(gate)) => {
                    let (store, tag) = (self.clone(), tag.clone());
                    tokio::spawn(async move {
                        drop(gate.acquire().await);
                        store.lock().grant(&tag, count)
                    });
                    Err(unknown())
                }
            }
        })
    }

    fn return_tails<'a>(&'a self, tails: &'a [Tail]) -> Answer<'a, Vec<bool>> {
        Box::pin(async move {
            let mut state = self.lock();
            tails
                .iter()
                .enumerate()
                .map(|(n, tail)| if n < MAX_TAILS { state.take_back(tail) } else { Ok(false) })
                .collect()
        })
    }

    fn find<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Option<Row>> {
        Box::pin(async move { Ok(self.lock().read(tag).ok()) })
    }

    fn changed_since(&self, revision: u64) -> Answer<'_, Vec<Row>> {
        Box::pin(async move {
            let mut rows: Vec<Row> = self.lock().rows.values().map(|(row, _)| row.clone()).collect();
            rows.retain(|row| row.revision > revision);
            rows.sort_by_key(|row| row.revision);
            Ok(rows)
        })
    }

    fn count(&self) -> Answer<'_, u64> {
        Box::pin(async move { Ok(self.lock().rows.len() as u64) })
    }

    fn create<'a>(
        &'a self,
        tag: &'a TagName,
        definition: &'a Definition,
        start: u64,
        most: u64,
    ) -> Answer<'a, (Row, bool)> {
        Box::pin(async move { self.lock().create(tag, definition, start, most) })
    }

    fn alter<'a>(&'a self, tag: &'a TagName, alteration: &'a Alteration) -> Answer<'a, Row> {
        Box::pin(async move {
            let mut state = self.lock();
            let row = rules::altered(rules::live(state.read(tag)?)?, alteration)?;
            state.write(row)
        })
    }

    fn raise_floor<'a>(&'a self, tag: &'a TagName, floor: u64) -> Answer<'a, Row> {
        Box::pin(async move {
            let mut state = self.lock();
            let row = rules::raised(rules::live(state.read(tag)?)?, floor)?;
            state.write(row)
        })
    }

    fn retire<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Row> {
        Box::pin(async move {
            let mut state = self.lock();
            let row = state.read(tag)?;
            if row.retired { Ok(row) } else { state.write(Row { retired: true, ..row }) }
        })
    }

    fn raise_all(&self, by: u64) -> Answer<'_, u64> {
        Box::pin(async move {
            let mut state = self.lock();
            let rows: Vec<Row> = state.rows.values().map(|(row, _)| row.clone()).collect();
            let count = rows.len() as u64;
            for row in rows {
                let raised = row.max_id.saturating_add(by).min(row.definition.id_limit).min(MAX_ID);
                state.write(Row { max_id: raised, floor: raised, ..row })?;
            }
            Ok(count)
        })
    }

    fn probe(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let fault = self.lock().faults.pop_front();
            match fault {
                None => Ok(()),
                Some(Fault::Fail(kind)) => Err(StoreError::new(kind, format!("planned: {}", kind.name()))),
                Some(Fault::Held(gate)) => {
                    drop(gate.acquire().await);
                    Ok(())
                }
                Some(Fault::AppliedUnknown | Fault::AppliedLate(_)) => {
                    Err(StoreError::new(Kind::Unknown, "the answer was lost"))
                }
            }
        })
    }

    fn durability(&self) -> Answer<'_, Vec<String>> {
        Box::pin(async { Ok(vec!["the store is in memory".into()]) })
    }
}
