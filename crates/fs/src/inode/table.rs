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
    /// Used since it was last considered for leaving.
    used: bool,
}

struct Shard {
    slots: HashMap<InodeId, Slot>,
    in_memory: usize,
    /// With this many inodes in memory some should leave.
    evict_at: usize,
}

/// The table.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    limit_per_shard: usize,
}

impl InodeTable {
    /// A table that keeps about `limit` clean inodes.
    pub(crate) fn new(limit: usize) -> Self {
        let limit_per_shard = (limit / SHARDS).max(16);
        let shard = || Mutex::new(Shard { slots: HashMap::new(), in_memory: 0, evict_at: limit_per_shard });
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), hasher: RandomState::new(), limit_per_shard }
    }

    fn shard(&self, id: InodeId) -> &Mutex<Shard> {
        &self.shards[self.hasher.hash_one(id) as usize % SHARDS]
    }

    /// The inode if it is in memory.
    pub(crate) fn get(&self, id: InodeId) -> Option<Arc<Inode>> {
        let mut shard = self.shard(id).lock();
        let slot = shard.slots.get_mut(&id)?;
        slot.used = true;
        slot.inode.clone()
    }

    /// Puts an inode into the table unless it is there; returns the one that is.
    pub(crate) fn insert(&self, inode: Arc<Inode>) -> Arc<Inode> {
        let mut shard = self.shard(inode.id).lock();
        if shard.in_memory >= shard.evict_at {
            shard.evict(self.limit_per_shard);
        }
        let Shard { slots, in_memory, .. } = &mut *shard;
        let slot = slots.entry(inode.id).or_default();
        slot.used = true;
        slot.inode
            .get_or_insert_with(|| {
                *in_memory += 1;
                inode
            })
            .clone()
    }

    /// Forgets an inode whose items are gone.
    pub(crate) fn remove(&self, id: InodeId) {
        let mut shard = self.shard(id).lock();
        let Some(slot) = shard.slots.get_mut(&id) else { return };
        let (was_there, unreferenced) = (slot.inode.take().is_some(), slot.references == 0);
        if unreferenced {
            shard.slots.remove(&id);
            shard.shrink();
        }
        shard.in_memory -= usize::from(was_there);
    }

    /// Adds a reference.
    pub(crate) fn reference(&self, id: InodeId) {
        self.shard(id).lock().slots.entry(id).or_default().references += 1;
    }

    /// Takes `count` references away; returns whether none is left.
    pub(crate) fn unreference(&self, id: InodeId, count: u64) -> bool {
        let mut shard = self.shard(id).lock();
        let Some(slot) = shard.slots.get_mut(&id) else { return true };
        slot.references = slot.references.saturating_sub(count);
        let last = slot.references == 0;
        if last && slot.inode.is_none() {
            shard.slots.remove(&id);
            shard.shrink();
        }
        last
    }

    /// Whether programs hold references to the inode.
    pub(crate) fn is_referenced(&self, id: InodeId) -> bool {
        self.shard(id).lock().slots.get(&id).is_some_and(|slot| slot.references > 0)
    }

    /// Inodes in memory.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().in_memory).sum()
    }
}

impl Shard {
    /// Gives memory back when most of what took it is gone.
    fn shrink(&mut self) {
        const LEAST: usize = 64;
        if self.slots.len() > LEAST && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(self.slots.len() * 2);
        }
    }

    /// Lets clean, linked inodes that nobody uses leave memory, those first that were not used lately. What has to stay
    /// raises the bar for the next time, so that a shard full of dirty inodes isn't searched at each insertion.
    fn evict(&mut self, limit: usize) {
        let target = limit - limit / 4;
        let in_memory = &mut self.in_memory;
        self.slots.retain(|_, slot| {
            if *in_memory > target && !std::mem::take(&mut slot.used) {
                let idle = slot.inode.as_ref().is_some_and(|inode| {
                    Arc::strong_count(inode) == 1
                        && inode.try_write().is_some_and(|state| state.is_clean() && state.item.nlink > 0)
                });
                if idle {
                    slot.inode = None;
                    *in_memory -= 1;
                }
            }
            slot.inode.is_some() || slot.references > 0
        });
        self.evict_at = limit.max(self.in_memory + self.in_memory / 4 + 1);
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::items::InodeItem;
    use ubtrfs_format::{Ino, TreeId};

    use super::*;
    use crate::inode::InodeState;

    fn inode(number: u64, nlink: u32) -> Arc<Inode> {
        let item = InodeItem { nlink, ..InodeItem::default() };
        Arc::new(Inode::new(InodeId::new(TreeId::FS, Ino(number)), InodeState::new(item, true, true, 4096)))
    }

    #[test]
    fn clean_inodes_leave_and_unlinked_or_used_ones_stay() {
        let table = InodeTable::new(0);
        let held: Vec<_> = (0..50).map(|number| table.insert(inode(number, 1))).collect();
        for number in 50..100 {
            table.insert(inode(number, 0));
        }
        for number in 100..20_000 {
            table.reference(InodeId::new(TreeId::FS, Ino(number)));
            table.insert(inode(number, 1));
        }
        assert!(table.len() < 6_000, "{} inodes in memory", table.len());
        for number in 0..100 {
            assert!(table.get(InodeId::new(TreeId::FS, Ino(number))).is_some(), "{number}");
        }
        // References outlive the stay in memory.
        assert!((100..20_000).all(|number| table.is_referenced(InodeId::new(TreeId::FS, Ino(number)))));
        drop(held);
    }
}
