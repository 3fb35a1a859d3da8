//! A store whose work is done on one runtime, whoever asks, and that can be had before its database is open.
//!
//! A connection to a database belongs to the event loop on which it was opened, and connections of clients live on event
//! loops that end before the last tails go back. So the work runs on the runtime that was there first. And a caller that
//! goes away in the middle cancels nothing: what was begun ends, which keeps its outcome known. Until the database is open
//! every answer is an error of which it is sure that nothing has happened.

use std::future::Future;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;

use super::{Alteration, Answer, Definition, Dialect, Grant, Kind, Row, SegmentStore, StoreError, Tail};
use crate::ids::TagName;

/// A store that does its work on one runtime.
pub struct Anchored {
    dialect: Dialect,
    store: OnceLock<Arc<dyn SegmentStore>>,
    runtime: Handle,
}

impl Anchored {
    /// The store of a database of that kind, which is not open yet, working on `runtime`.
    pub fn new(dialect: Dialect, runtime: Handle) -> Self {
        Self { dialect, store: OnceLock::new(), runtime }
    }

    /// Works with `store` from now on. A second one is not taken.
    pub fn open(&self, store: Arc<dyn SegmentStore>) {
        let _ = self.store.set(store);
    }

    fn run<'a, T, F>(&self, work: impl FnOnce(Arc<dyn SegmentStore>) -> F) -> Answer<'a, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let Some(store) = self.store.get() else {
            let text = "the database is not open yet";
            return Box::pin(async move { Err(StoreError::new(Kind::Transient, text).because("loading")) });
        };
        let task = self.runtime.spawn(work(Arc::clone(store)));
        Box::pin(async move {
            // A task that panicked, or a runtime that ends: what it did is not known.
            task.await.unwrap_or_else(|error| Err(StoreError::new(Kind::Unknown, format!("broken off: {error}"))))
        })
    }
}

impl SegmentStore for Anchored {
    fn name(&self) -> &'static str {
        self.dialect.name()
    }

    fn shared(&self) -> bool {
        self.dialect != Dialect::Sqlite
    }

    fn grant<'a>(&'a self, tag: &'a TagName, count: u64) -> Answer<'a, Grant> {
        let tag = tag.clone();
        self.run(move |store| async move { store.grant(&tag, count).await })
    }

    fn return_tails<'a>(&'a self, tails: &'a [Tail]) -> Answer<'a, Vec<bool>> {
        let tails = tails.to_vec();
        self.run(move |store| async move { store.return_tails(&tails).await })
    }

    fn find<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Option<Row>> {
        let tag = tag.clone();
        self.run(move |store| async move { store.find(&tag).await })
    }

    fn changed_since(&self, revision: u64) -> Answer<'_, Vec<Row>> {
        self.run(move |store| async move { store.changed_since(revision).await })
    }

    fn count(&self) -> Answer<'_, u64> {
        self.run(|store| async move { store.count().await })
    }

    fn create<'a>(
        &'a self,
        tag: &'a TagName,
        definition: &'a Definition,
        start: u64,
        most: u64,
    ) -> Answer<'a, (Row, bool)> {
        let (tag, definition) = (tag.clone(), definition.clone());
        self.run(move |store| async move { store.create(&tag, &definition, start, most).await })
    }

    fn alter<'a>(&'a self, tag: &'a TagName, alteration: &'a Alteration) -> Answer<'a, Row> {
        let (tag, alteration) = (tag.clone(), alteration.clone());
        self.run(move |store| async move { store.alter(&tag, &alteration).await })
    }

    fn raise_floor<'a>(&'a self, tag: &'a TagName, floor: u64) -> Answer<'a, Row> {
        let tag = tag.clone();
        self.run(move |store| async move { store.raise_floor(&tag, floor).await })
    }

    fn retire<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Row> {
        let tag = tag.clone();
        self.run(move |store| async move { store.retire(&tag).await })
    }

    fn raise_all(&self, by: u64) -> Answer<'_, u64> {
        self.run(move |store| async move { store.raise_all(by).await })
    }

    fn probe(&self) -> Answer<'_, ()> {
        self.run(|store| async move { store.probe().await })
    }

    fn durability(&self) -> Answer<'_, Vec<String>> {
        self.run(|store| async move { store.durability().await })
    }
}
