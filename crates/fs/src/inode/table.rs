//! The inodes in memory, and how many references programs hold to each.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Inode, InodeId};

const SHARDS: usize = 64;

#[derive(Default)]
struct Slot {
    inode: Option<Arc<Inode>>,
    /// References by lookups (FUSE node ids) and open handles. An inode may leave memory though it has some.
    references: u64,
    /// Used since the clock hand last passed.
    used: bool,
}

/// The table.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<HashMap<InodeId, Slot>>>,
    hasher: RandomState,
    /// Inodes that may be in memory before clean ones leave.
    limit_per_shard: usize,
}

impl InodeTable {
    /// A table that keeps about `limit` clean inodes.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            limit_per_shard: (limit / SHARDS).max(16),
        }
    }

    fn shard(&self, id: InodeId) -> &Mutex<HashMap<InodeId, Slot>> {
        &self.shards[self.hasher.hash_one(id) as usize % SHARDS]
    }

    /// The inode if it is in memory.
    pub(crate) fn get(&self, id: InodeId) -> Option<Arc<Inode>> {
        let mut shard = self.shard(id).lock();
        let slot = shard.get_mut(&id)?;
        slot.used = true;
        slot.inode.clone()
    }

    /// Puts an inode into the table unless it is there; returns the one that is.
    pub(crate) fn insert(&self, inode: Arc<Inode>) -> Arc<Inode> {
        let mut shard = self.shard(inode.id).lock();
        if shard.len() > self.limit_per_shard {
            evict(&mut shard, self.limit_per_shard);
        }
        let slot = shard.entry(inode.id).or_default();
        slot.used = true;
        slot.inode.get_or_insert(inode).clone()
    }

    /// Forgets an inode whose items are gone.
    pub(crate) fn remove(&self, id: InodeId) {
        let mut shard = self.shard(id).lock();
        if let Some(slot) = shard.get_mut(&id) {
            slot.inode = None;
            if slot.references == 0 {
                shard.remove(&id);
            }
        }
    }

    /// Adds a reference.
    pub(crate) fn reference(&self, id: InodeId) {
        self.shard(id).lock().entry(id).or_default().references += 1;
    }

    /// Takes `count` references away; returns whether none is left.
    pub(crate) fn unreference(&self, id: InodeId, count: u64) -> bool {
        let mut shard = self.shard(id).lock();
        let Some(slot) = shard.get_mut(&id) else { return true };
        slot.references = slot.references.saturating_sub(count);
        let last = slot.references == 0;
        if last && slot.inode.is_none() {
            shard.remove(&id);
        }
        last
    }

    /// Whether programs hold references to the inode.
    pub(crate) fn is_referenced(&self, id: InodeId) -> bool {
        self.shard(id).lock().get(&id).is_some_and(|slot| slot.references > 0)
    }

    /// Inodes in memory.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().values().filter(|slot| slot.inode.is_some()).count()).sum()
    }
}

/// Lets clean, linked inodes that nobody uses leave memory, those first that were not used lately.
fn evict(shard: &mut HashMap<InodeId, Slot>, limit: usize) {
    let target = limit - limit / 8;
    let mut in_memory = shard.values().filter(|slot| slot.inode.is_some()).count();
    if in_memory <= limit {
        return;
    }
    shard.retain(|_, slot| {
        if in_memory > target && !std::mem::take(&mut slot.used) {
            let idle = slot.inode.as_ref().is_some_and(|inode| {
                Arc::strong_count(inode) == 1
                    && inode.try_write().is_some_and(|state| state.is_clean() && state.item.nlink > 0)
            });
            if idle {
                slot.inode = None;
                in_memory -= 1;
            }
        }
        slot.inode.is_some() || slot.references > 0
    });
}
