//! Orphans: inodes without a name that a crash or an unmount has left, or that a snapshot
//! inherited.
//!
//! They are freed in read-only subvolumes, too: no program can open an orphan, and no visible part
//! of the subvolume changes. A snapshot that was created just before a crash has the orphans of its
//! source; the next writable mount frees them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::{Ino, ItemType, Key, TreeId, objectid};

use super::Inactivator;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState, OrphanEdit};
use crate::item_sizes::{FILE_EXTENT_ITEM, INODE_ITEM, ORPHAN_ITEM};
use crate::tree_roots::TreeRoot;
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// The most orphans that are loaded into memory at a time.
const BATCH: usize = 1000;

fn orphan_key(ino: u64) -> Key {
    Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, ino)
}

impl Inactivator {
    /// Lets the inactivator search for orphans, in writable subvolumes first.
    pub(crate) fn find_orphans(&self) {
        let committed = self.info.committed();
        let used = committed.subvolumes().filter(|subvolume| subvolume.item.refs > 0);
        let (read_only, writable): (Vec<_>, Vec<_>) = used.partition(|subvolume| subvolume.is_read_only());
        self.queue.add_orphans_of(writable.into_iter().chain(read_only).map(TreeRoot::id));
        self.queue.set_subvolumes(committed.trees.deleted_subvolumes().next().is_some());
    }

    /// Lets the inactivator free the orphans of a subvolume: a new snapshot, or a subvolume that
    /// becomes writable.
    pub(crate) fn free_orphans_of(&self, subvolume: TreeId) {
        let has_none = self.info.committed().tree(subvolume).is_ok_and(|tree| {
            let first = tree.range(orphan_key(0)..=orphan_key(u64::MAX)).next();
            first.is_none()
        });
        if !has_none {
            self.queue.add_orphans_of([subvolume]);
        }
    }

    /// Adopts some orphans. Returns their number, or `None` if there is no space for one of them.
    /// Large ones are in the queue then.
    pub(super) fn adopt_some(&self, most: u64) -> Result<Option<u64>> {
        let Some((subvolume, next)) = self.queue.next_orphans(|id| self.info.is_deleted(id)) else {
            return Ok(Some(0));
        };
        let most = BATCH.min(most as usize).max(1);
        let mut found = Vec::new();
        let tree = self.info.committed().tree(subvolume)?;
        for item in tree.range(orphan_key(next)..=orphan_key(u64::MAX)).take(most) {
            found.push(InodeId::new(subvolume, Ino(item?.key.offset)));
        }
        // An orphan for which there is no space does not prevent the adoption of the others.
        let mut is_stuck = false;
        for id in &found {
            is_stuck |= !self.adopt_orphan(*id)?;
        }
        if is_stuck {
            return Ok(None);
        }
        let last = found.last().filter(|_| found.len() == most);
        self.queue.searched_orphans(last.and_then(|last| last.ino.0.checked_add(1)));
        Ok(Some(found.len() as u64))
    }

    /// Frees an orphan. Returns `false` if there is no space for that. An inode without names that
    /// programs of this mount have open has an orphan item as well, and is left alone.
    fn adopt_orphan(&self, id: InodeId) -> Result<bool> {
        let inode: Arc<Inode> = match self.info.inode(id) {
            Ok(inode) => inode,
            // The inode has been deleted already, alone or with its subvolume.
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::STALE) => return Ok(true),
            Err(error) => return Err(error),
        };
        let linked = inode.read().item.nlink > 0;
        let has_freed = if linked {
            let Some(is_finished) = self.finish_truncation(&inode) else { return Ok(false) };
            is_finished
        } else {
            self.inactivate_if_unused(&inode)
        };
        if has_freed {
            self.info.counters.orphans_cleaned.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Drops extents beyond the end of an orphan with names, and its orphan item; such an orphan is
    /// an old kernel's record of an unfinished truncation. Returns whether there was anything to
    /// do, or `None` if no space can be reserved for it and what it takes of the global reserve
    /// would not come back.
    fn finish_truncation(&self, inode: &Arc<Inode>) -> Option<bool> {
        let reservation = self.info.try_reserve(Demand {
            edits: 4,
            item_bytes: INODE_ITEM + ORPHAN_ITEM + 4 * FILE_EXTENT_ITEM,
            global_reserve: UseOfGlobalReserve::All,
            ..Demand::default()
        });
        let mut state = inode.write();
        if state.item.nlink == 0 || state.batches().any(|batch| batch.orphan == OrphanEdit::Remove) {
            return Some(false);
        }
        let transaction = self.info.gate.enter();
        if reservation.is_none() && !self.use_kept() {
            return None;
        }
        state.join(inode, &transaction);
        state.drop_beyond_end(self.info.volume.sector_size());
        Some(true)
    }

    /// Whether a file is an orphan with names that has not been processed: before it grows, extents
    /// beyond its end must be dropped.
    pub(crate) fn is_half_truncated(&self, id: InodeId, state: &InodeState) -> Result<bool> {
        if !self.queue.is_adopting() || !state.committed || state.item.nlink == 0 {
            return Ok(false);
        }
        let is_orphan = self.info.committed().tree(id.subvolume)?.get(&orphan_key(id.ino.0))?.is_some();
        Ok(is_orphan && state.pending.orphan != OrphanEdit::Remove)
    }
}
