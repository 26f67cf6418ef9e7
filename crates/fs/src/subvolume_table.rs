//! Subvolumes in memory: whether they can be changed, and the numbers for new inodes and new
//! subvolumes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpds::RedBlackTreeMapSync;
use ubtrfs_format::{Ino, ItemType, Key, TreeId};
use ubtrfs_threads::atomic::AtomicBool;
use ubtrfs_threads::{ArcSwap, Mutex, Rank};

use crate::committed::Committed;
use crate::error::{Errno, Result};

/// A key behind all items of a tree.
const HIGHEST: Key = Key::new(Ino::LAST_FREE.0, ItemType(u8::MAX), u64::MAX);

/// The state of a subvolume that stays in memory when its inodes are evicted.
pub(crate) struct Subvolume {
    read_only: AtomicBool,
    replaced: AtomicBool,
    next_ino: AtomicU64,
}

impl Subvolume {
    /// Loads the state from a commit. `ENOENT` if the commit does not contain the subvolume.
    pub(crate) fn load(committed: &Committed, id: TreeId) -> Result<Self> {
        let root = committed.trees.get(id).ok_or(Errno::NOENT)?;
        let last = committed.tree(id)?.last_at_or_before(&HIGHEST)?.map_or(0, |item| item.key.objectid);
        Ok(Self {
            read_only: AtomicBool::new(root.is_read_only()),
            replaced: AtomicBool::new(false),
            next_ino: AtomicU64::new(last.max(Ino::FIRST_FREE.0) + 1),
        })
    }

    /// Whether it is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Makes it read-only or writable from now on.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Release);
    }

    /// Whether a future commit puts another subvolume in its place. Until then its entry stays
    /// where it is, and no subvolume is added to it.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Records that the commit of the open transaction puts another subvolume in its place.
    pub(crate) fn set_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Returns a number that no inode of the subvolume has had. `ENOSPC` if there is none.
    pub(crate) fn new_ino(&self) -> Result<Ino> {
        let ino = self.next_ino.fetch_add(1, Ordering::Relaxed);
        // The kernel's driver does not use the last number, either.
        if ino >= Ino::LAST_FREE.0 {
            self.next_ino.store(Ino::LAST_FREE.0, Ordering::Relaxed);
            return Err(Errno::NOSPC.into());
        }
        Ok(Ino(ino))
    }
}

/// The subvolumes that were used in a mount.
pub(crate) struct SubvolumeTable {
    loaded: ArcSwap<RedBlackTreeMapSync<TreeId, Arc<Subvolume>>>,
    /// The id of the next new subvolume, once known.
    next_id: Mutex<Option<u64>>,
}

impl SubvolumeTable {
    /// Creates an empty table.
    pub(crate) fn new() -> Self {
        Self {
            loaded: ArcSwap::from_pointee(RedBlackTreeMapSync::new_sync()),
            next_id: Mutex::with_default(Rank::NextTreeId),
        }
    }

    /// Returns a subvolume that was loaded.
    pub(crate) fn get(&self, id: TreeId) -> Option<Arc<Subvolume>> {
        self.loaded.load().get(&id).cloned()
    }

    /// Adds a subvolume that was just loaded, unless the table has it. Returns the one in the
    /// table.
    pub(crate) fn insert(&self, id: TreeId, subvolume: &Arc<Subvolume>) -> Arc<Subvolume> {
        self.loaded.rcu(|known| match known.get(&id) {
            Some(_) => known.clone(),
            None => Arc::new(known.insert(id, Arc::clone(subvolume))),
        });
        self.get(id).unwrap_or_else(|| unreachable!("no subvolume leaves the table"))
    }

    /// Returns an id that no subvolume has had; `last_deleted` is the highest id of deleted
    /// subvolumes. `ENOSPC` if there is none.
    pub(crate) fn new_id(&self, committed: &Committed, last_deleted: Option<TreeId>) -> Result<TreeId> {
        let mut next = self.next_id.lock();
        let id = if let Some(id) = *next {
            id
        } else {
            let last = committed.tree(TreeId::ROOT)?.last_at_or_before(&HIGHEST)?;
            // A subvolume that was deleted and dropped already has left no item.
            let deleted = last_deleted.map_or(0, |id| id.0);
            let last = last.map_or(0, |item| item.key.objectid).max(deleted);
            last.max(Ino::FIRST_FREE.0 - 1) + 1
        };
        if id > Ino::LAST_FREE.0 {
            return Err(Errno::NOSPC.into());
        }
        *next = Some(id + 1);
        Ok(TreeId(id))
    }

    /// Sets the id of the next new subvolume.
    #[cfg(test)]
    pub(crate) fn give_ids_from(&self, id: TreeId) {
        *self.next_id.lock() = Some(id.0);
    }
}
