//! The tags this node knows, by name.
//!
//! A sharded map, so that a look-up takes one short read lock on one shard and an unknown tag's arrival disturbs few
//! others. An entry, once in the map, stays there for the life of the process: two entries of one name would each hold
//! ids of their own, which would cost the order that a tag promises.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crossbeam_utils::CachePadded;

use super::entry::Entry;
use crate::clock::Boot;
use crate::ids::TagName;

/// How many shards the map has: enough that a handful of threads rarely meet in one.
const SHARDS: usize = 64;

/// How many names that were found nowhere are remembered: 128 bytes each at most.
const MAX_UNKNOWN: usize = 10_000;

type Shard = HashMap<TagName, Arc<Entry>, foldhash::fast::FixedState>;

/// The tags this node knows.
#[derive(Debug)]
pub(super) struct Catalogue {
    hasher: foldhash::fast::RandomState,
    shards: Vec<CachePadded<RwLock<Shard>>>,
    unknown: RwLock<HashMap<TagName, Boot>>,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self {
            hasher: foldhash::fast::RandomState::default(),
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            unknown: RwLock::default(),
        }
    }
}

impl Catalogue {
    /// The entry of `tag`, if this node knows it.
    pub(super) fn find(&self, tag: &[u8]) -> Option<Arc<Entry>> {
        read(self.shard(tag)?).get(tag).cloned()
    }

    /// The entry of `name`: the one that is there, or else the one that `make` gives.
    pub(super) fn insert(&self, name: &TagName, make: impl FnOnce() -> Arc<Entry>) -> Option<Arc<Entry>> {
        write(&self.unknown).remove(name);
        let mut shard = write(self.shard(name.as_str().as_bytes())?);
        Some(Arc::clone(shard.entry(name.clone()).or_insert_with(make)))
    }

    /// How many tags this node knows, retired ones included.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| read(shard).len()).sum()
    }

    /// All entries, by name.
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        let mut all: Vec<_> =
            self.shards.iter().flat_map(|shard| read(shard).values().cloned().collect::<Vec<_>>()).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        all
    }

    /// One step of a scan: the entries of the shards from `cursor` on until at least `count` are there, and the cursor to
    /// go on with; 0 at the end. An entry that is there during the whole scan is given exactly once.
    pub(super) fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<Arc<Entry>>) {
        let mut found = Vec::new();
        let first = usize::try_from(cursor).unwrap_or(usize::MAX);
        for (number, shard) in self.shards.iter().enumerate().skip(first) {
            found.extend(read(shard).values().cloned());
            if found.len() >= count && number + 1 < SHARDS {
                return (number as u64 + 1, found);
            }
        }
        (0, found)
    }

    /// Whether `name` was looked for in the store a short while ago and not found.
    pub(super) fn is_unknown(&self, name: &TagName, now: Boot) -> bool {
        read(&self.unknown).get(name).is_some_and(|until| now < *until)
    }

    /// Remembers until `until` that the store does not know `name`.
    pub(super) fn remember_unknown(&self, name: &TagName, now: Boot, until: Boot) {
        let mut unknown = write(&self.unknown);
        if unknown.len() >= MAX_UNKNOWN {
            unknown.retain(|_, until| now < *until);
        }
        if unknown.len() < MAX_UNKNOWN {
            unknown.insert(name.clone(), until);
        }
    }

    /// Forgets that `name` is unknown.
    pub(super) fn forget_unknown(&self, name: &TagName) {
        write(&self.unknown).remove(name);
    }

    fn shard(&self, tag: &[u8]) -> Option<&RwLock<Shard>> {
        let number = usize::try_from(self.hasher.hash_one(tag) % SHARDS as u64).ok()?;
        self.shards.get(number).map(|shard| &**shard)
    }
}

// No code that can panic runs under these locks, so a poisoned one still holds a whole map.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
