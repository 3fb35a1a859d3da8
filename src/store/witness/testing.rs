//! Two witnesses for tests: one in memory that misbehaves as told, and one in a folder, which outlives the process.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::fcntl::{Flock, FlockArg};
use tokio::sync::Semaphore;

use super::Witness;
use crate::ids::TagName;
use crate::store::{Answer, Kind, StoreError};

/// What the next call does instead of working; one fault each.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Works.
    None,
    /// Nothing happens, and the answer is an error of this kind.
    Fail(Kind),
    /// A compare-and-set is applied, and the answer is [`Kind::Unknown`].
    AppliedUnknown,
    /// It begins only when the gate has a permit.
    Held(Arc<Semaphore>),
}

#[derive(Debug, Default)]
struct State {
    marks: BTreeMap<TagName, u64>,
    faults: VecDeque<Fault>,
    down: bool,
    calls: u64,
}

/// A witness in memory; clones share the marks.
#[derive(Clone, Debug, Default)]
pub struct MemoryWitness(Arc<Mutex<State>>);

impl MemoryWitness {
    /// Plans what the next call that has no plan yet does.
    pub fn plan(&self, fault: Fault) {
        self.lock().faults.push_back(fault);
    }

    /// Every call fails from now on, or none any more.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
    }

    /// The mark of `tag`.
    pub fn mark(&self, tag: &TagName) -> Option<u64> {
        self.lock().marks.get(tag).copied()
    }

    /// Sets the mark of `tag`, as another node does.
    pub fn set(&self, tag: &TagName, mark: u64) {
        self.lock().marks.insert(tag.clone(), mark);
    }

    /// How often it was asked.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call<T>(&self, work: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        let fault = {
            let mut state = self.lock();
            state.calls += 1;
            if state.down {
                return Err(StoreError::new(Kind::Transient, "the witness is down"));
            }
            state.faults.pop_front()
        };
        match fault {
            None | Some(Fault::None) => {}
            Some(Fault::Fail(kind)) => return Err(StoreError::new(kind, "planned")),
            Some(Fault::AppliedUnknown) => {
                work(&mut self.lock());
                return Err(StoreError::new(Kind::Unknown, "the answer was lost"));
            }
            Some(Fault::Held(gate)) => drop(gate.acquire().await),
        }
        Ok(work(&mut self.lock()))
    }
}

impl Witness for MemoryWitness {
    fn name(&self) -> &'static str {
        "memory-witness"
    }

    fn read<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Option<u64>> {
        Box::pin(async move { self.call(|state| state.marks.get(tag).copied()).await })
    }

    fn compare_and_set<'a>(&'a self, tag: &'a TagName, seen: Option<u64>, to: u64) -> Answer<'a, bool> {
        Box::pin(async move {
            self.call(|state| {
                let same = state.marks.get(tag).copied() == seen;
                if same {
                    state.marks.insert(tag.clone(), to);
                }
                same
            })
            .await
        })
    }
}

/// A witness in a folder, one file a tag: written beside, synced and renamed under a lock of the folder, so that processes
/// can share it and a crash leaves the old mark or the new one.
#[derive(Clone, Debug)]
pub struct FolderWitness(PathBuf);

impl FolderWitness {
    /// The witness in `folder`, which exists.
    pub fn new(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    fn locked<T>(&self, work: impl FnOnce() -> std::io::Result<T>) -> Result<T, StoreError> {
        let failed = |error: &dyn std::fmt::Display| StoreError::new(Kind::Transient, error.to_string());
        let lock = OpenOptions::new().create(true).append(true).open(self.0.join("lock")).map_err(|e| failed(&e))?;
        let _held = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| failed(&error))?;
        work().map_err(|error| StoreError::new(Kind::Unknown, error.to_string()))
    }

    /// Without what a path gives a meaning to.
    fn file(&self, tag: &TagName) -> PathBuf {
        let bytes: Vec<String> = tag.as_str().bytes().map(|byte| format!("{byte:02x}")).collect();
        self.0.join(bytes.concat())
    }

    fn mark(&self, tag: &TagName) -> std::io::Result<Option<u64>> {
        match fs::read_to_string(self.file(tag)) {
            Ok(text) => text.trim().parse().map(Some).map_err(std::io::Error::other),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&self, tag: &TagName, mark: u64) -> std::io::Result<()> {
        let (file, beside) = (self.file(tag), self.file(tag).with_extension("new"));
        let mut new = File::create(&beside)?;
        new.write_all(mark.to_string().as_bytes())?;
        new.sync_all()?;
        fs::rename(beside, file)?;
        File::open(&self.0)?.sync_all()
    }
}

impl Witness for FolderWitness {
    fn name(&self) -> &'static str {
        "folder"
    }

    fn read<'a>(&'a self, tag: &'a TagName) -> Answer<'a, Option<u64>> {
        Box::pin(async move { self.locked(|| self.mark(tag)) })
    }

    fn compare_and_set<'a>(&'a self, tag: &'a TagName, seen: Option<u64>, to: u64) -> Answer<'a, bool> {
        Box::pin(async move {
            self.locked(|| {
                let same = self.mark(tag)? == seen;
                if same {
                    self.write(tag, to)?;
                }
                Ok(same)
            })
        })
    }
}

mod tests {
    use super::*;

    async fn keeps_the_contract(witness: &dyn Witness, again: &dyn Witness) {
        let (tag, other) = (TagName::new(b"a/../b").expect("a tag"), TagName::new(b"other").expect("a tag"));
        assert_eq!(witness.read(&tag).await, Ok(None));
        assert_eq!(witness.compare_and_set(&tag, Some(0), 5).await, Ok(false), "none is not 0");
        assert_eq!(witness.compare_and_set(&tag, None, 5).await, Ok(true));
        assert_eq!(witness.compare_and_set(&tag, None, 6).await, Ok(false));
        assert_eq!(again.read(&tag).await, Ok(Some(5)), "it outlives who wrote it");
        assert_eq!(again.compare_and_set(&tag, Some(5), 3).await, Ok(true), "also downward");
        assert_eq!(witness.read(&tag).await, Ok(Some(3)));
        assert_eq!(witness.read(&other).await, Ok(None), "each tag for itself");
    }

    #[tokio::test]
    async fn both_witnesses_compare_before_they_set() {
        let folder = tempfile::tempdir().expect("a folder");
        keeps_the_contract(&FolderWitness::new(folder.path()), &FolderWitness::new(folder.path())).await;
        let memory = MemoryWitness::default();
        keeps_the_contract(&memory, &memory.clone()).await;
    }

    #[tokio::test]
    async fn of_many_who_compare_with_the_same_mark_one_sets_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let tag = TagName::new(b"order").expect("a tag");
        let tasks: Vec<_> = (1..=8)
            .map(|to| {
                let (witness, tag) = (FolderWitness::new(folder.path()), tag.clone());
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
                    runtime.block_on(witness.compare_and_set(&tag, None, to))
                })
            })
            .collect();
        let set = tasks.into_iter().map(|task| task.join().expect("a thread"));
        assert_eq!(set.filter(|answer| *answer == Ok(true)).count(), 1);
    }
}
