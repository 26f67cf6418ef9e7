//! The table of inodes in memory, with the number of references to each.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use ubtrfs_format::TreeId;
use ubtrfs_threads::Rank;
use ubtrfs_tree::SeededHash;
use ubtrfs_volume::{CountedMutex, LockCounters};

use super::{Inode, InodeId};

const SHARDS: usize = 64;

/// An inode in memory.
struct Resident {
    inode: Arc<Inode>,
    /// Whether it was used since it was last considered for eviction.
    used: bool,
}

/// The references to an inode: their number; and in the highest bit, whether the kernel may have
/// pages of it.
#[derive(Clone, Copy, Default)]
struct References(u64);

impl References {
    const PAGES: u64 = 1 << 63;

    fn count(self) -> u64 {
        self.0 & !Self::PAGES
    }

    fn may_have_pages(self) -> bool {
        self.0 & Self::PAGES != 0
    }
}

struct Shard {
    residents: HashMap<InodeId, Resident, SeededHash>,
    /// References by lookups (FUSE node ids) and open handles. An inode may be evicted although it
    /// has some: the kernel remembers many more inodes than are in memory, so an entry consists of
    /// the count and a bit.
    references: HashMap<InodeId, References, SeededHash>,
    /// How many inodes with references there are, by subvolume.
    referenced: HashMap<TreeId, u64, SeededHash>,
    /// The number of inodes in memory from which on some should be evicted.
    evict_at: usize,
}

/// Whether references remain after some were dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unreferenced {
    /// Whether the inode has none any more.
    pub(crate) inode: bool,
    /// Whether no inode of its subvolume in the same shard has any, either.
    pub(crate) part_of_subvolume: bool,
}

/// The table of inodes in memory.
pub(crate) struct InodeTable {
    shards: Vec<CountedMutex<Shard>>,
    hasher: SeededHash,
    limit_per_shard: usize,
}

impl InodeTable {
    /// Creates a table that keeps about `limit` clean inodes.
    pub(crate) fn new(limit: usize) -> Self {
        let limit_per_shard = (limit / SHARDS).max(16);
        let hasher = SeededHash::new();
        let shard = || Shard {
            residents: HashMap::with_hasher(hasher),
            references: HashMap::with_hasher(hasher),
            referenced: HashMap::with_hasher(hasher),
            evict_at: limit_per_shard,
        };
        Self {
            shards: (0..SHARDS)
                .map(|number| CountedMutex::in_order(Rank::InodeTable, [0, number as u64], shard()))
                .collect(),
            hasher,
            limit_per_shard,
        }
    }

    fn shard(&self, id: InodeId) -> &CountedMutex<Shard> {
        // The maps use the low bits and the top seven bits of the hash.
        &self.shards[(self.hasher.hash_one(id) >> 40) as usize % SHARDS]
    }

    /// Returns the inode if it is in memory.
    pub(crate) fn get(&self, id: InodeId) -> Option<Arc<Inode>> {
        let mut shard = self.shard(id).lock();
        let resident = shard.residents.get_mut(&id)?;
        resident.used = true;
        Some(resident.inode.clone())
    }

    /// Inserts an inode unless the table has it; returns the one in the table.
    pub(crate) fn insert(&self, inode: Arc<Inode>) -> Arc<Inode> {
        let mut shard = self.shard(inode.id).lock();
        if shard.residents.len() >= shard.evict_at {
            shard.evict(self.limit_per_shard);
        }
        let resident = shard.residents.entry(inode.id).or_insert(Resident { inode, used: true });
        resident.used = true;
        resident.inode.clone()
    }

    /// Inserts an inode that was just created: the table has no inode of its number.
    pub(crate) fn insert_new(&self, inode: &Arc<Inode>) {
        let resident = self.insert(Arc::clone(inode));
        assert!(Arc::ptr_eq(&resident, inode), "inode {:?} is made, and there is one already", inode.id);
    }

    /// Removes an inode whose items have been deleted.
    pub(crate) fn remove(&self, id: InodeId) {
        let mut shard = self.shard(id).lock();
        shard.residents.remove(&id);
        shrink(&mut shard.residents);
    }

    /// Adds a reference.
    pub(crate) fn reference(&self, id: InodeId) {
        let mut shard = self.shard(id).lock();
        let references = shard.references.entry(id).or_default();
        references.0 += 1;
        if references.count() == 1 {
            *shard.referenced.entry(id.subvolume).or_default() += 1;
        }
    }

    /// Drops `count` references.
    pub(crate) fn unreference(&self, id: InodeId, count: u64) -> Unreferenced {
        let mut shard = self.shard(id).lock();
        let shard = &mut *shard;
        let Some(references) = shard.references.get_mut(&id) else {
            return Unreferenced { inode: true, part_of_subvolume: false };
        };
        references.0 -= count.min(references.count());
        if references.count() > 0 {
            return Unreferenced::default();
        }
        shard.references.remove(&id);
        shrink(&mut shard.references);
        let Some(inodes) = shard.referenced.get_mut(&id.subvolume) else { return Unreferenced::default() };
        *inodes -= 1;
        let part_of_subvolume = *inodes == 0;
        if part_of_subvolume {
            shard.referenced.remove(&id.subvolume);
        }
        Unreferenced { inode: true, part_of_subvolume }
    }

    /// Whether an inode of a subvolume has references. All shards are checked at one point in time,
    /// since a program may find one inode through another and then drop that one.
    pub(crate) fn has_references_in(&self, subvolume: TreeId) -> bool {
        let shards: Vec<_> = self.shards.iter().map(CountedMutex::lock).collect();
        shards.iter().any(|shard| shard.referenced.contains_key(&subvolume))
    }

    /// Returns inodes of a subvolume that have references, in no order, at most `most`.
    pub(crate) fn referenced_in(&self, subvolume: TreeId, most: usize) -> Vec<InodeId> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            if shard.referenced.contains_key(&subvolume) {
                found.extend(shard.references.keys().filter(|id| id.subvolume == subvolume).take(most - found.len()));
            }
        }
        found
    }

    /// Whether programs hold references to the inode.
    pub(crate) fn is_referenced(&self, id: InodeId) -> bool {
        self.shard(id).lock().references.contains_key(&id)
    }

    /// Records that the kernel may have pages of the inode from now on, as long as it has
    /// references.
    pub(crate) fn note_pages(&self, id: InodeId) {
        if let Some(references) = self.shard(id).lock().references.get_mut(&id) {
            references.0 |= References::PAGES;
        }
    }

    /// Returns the inodes that the kernel may have pages of, in the order of their numbers, which
    /// is their order in the trees.
    pub(crate) fn with_pages(&self) -> Vec<InodeId> {
        let of_shard = |shard: &CountedMutex<Shard>| {
            let shard = shard.lock();
            let found = shard.references.iter().filter(|(_, references)| references.may_have_pages());
            found.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        let mut found: Vec<_> = self.shards.iter().flat_map(of_shard).collect();
        found.sort_unstable_by_key(|id| (id.subvolume, id.ino));
        found
    }

    /// Returns all inodes that programs hold references to, in no order.
    pub(crate) fn referenced(&self) -> Vec<InodeId> {
        self.shards.iter().flat_map(|shard| shard.lock().references.keys().copied().collect::<Vec<_>>()).collect()
    }

    /// How often locks of shards were taken.
    pub(crate) fn counters(&self) -> LockCounters {
        self.shards.iter().map(CountedMutex::counters).sum()
    }

    /// Returns all inodes in memory, in no order.
    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        let of_shard = |shard: &CountedMutex<Shard>| {
            shard.lock().residents.values().map(|resident| resident.inode.clone()).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Returns the number of inodes in memory.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().residents.len()).sum()
    }
}

/// Shrinks a map when most of its entries are gone.
fn shrink<T>(map: &mut HashMap<InodeId, T, SeededHash>) {
    const MIN: usize = 64;
    if map.len() > MIN && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

impl Shard {
    /// Evicts clean, linked inodes that are not in use and were not used since the last call. If
    /// many inodes have to stay, the threshold for the next call rises, so that a shard full of
    /// dirty inodes isn't searched at each insertion.
    fn evict(&mut self, limit: usize) {
        let target = limit - limit / 4;
        let mut left = self.residents.len();
        self.residents.retain(|_, Resident { inode, used }| {
            let leaves = left > target
                && !std::mem::take(used)
                && Arc::strong_count(inode) == 1
                && inode.try_write().is_some_and(|state| state.is_clean() && state.item.nlink > 0);
            left -= usize::from(leaves);
            !leaves
        });
        self.evict_at = limit.max(left + left / 4 + 1);
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::Ino;
    use ubtrfs_format::items::InodeItem;

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
        // References remain when an inode leaves memory.
        assert!((100..20_000).all(|number| table.is_referenced(InodeId::new(TreeId::FS, Ino(number)))));
        drop(held);
    }
    #[test]
    fn a_subvolume_has_references_while_one_of_its_inodes_has() {
        let table = InodeTable::new(0);
        let (one, other) = (TreeId(300), TreeId(301));
        for number in 300..700 {
            table.reference(InodeId::new(one, Ino(number)));
            table.reference(InodeId::new(one, Ino(number)));
        }
        assert!(table.has_references_in(one) && !table.has_references_in(other));
        let mut parts = 0;
        for number in 300..700 {
            let id = InodeId::new(one, Ino(number));
            let first = table.unreference(id, 1);
            assert!(!first.inode && !first.part_of_subvolume && table.has_references_in(one));
            let last = table.unreference(id, 1);
            assert!(last.inode);
            parts += usize::from(last.part_of_subvolume);
        }
        assert!((1..=SHARDS).contains(&parts) && !table.has_references_in(one));
        assert!(!table.unreference(InodeId::new(one, Ino(300)), 1).part_of_subvolume);
    }
}
