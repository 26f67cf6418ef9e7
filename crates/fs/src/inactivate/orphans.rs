//! Orphans: inodes without a name that a crash or an unmount left behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::RootFlags;
use ubtrfs_format::{Ino, ItemType, Key, objectid};

use super::Inactivator;
use super::queue::Orphans;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState, OrphanEdit};
use crate::item_sizes::{FILE_EXTENT_ITEM, INODE_ITEM, ORPHAN_ITEM};
use crate::space::{Demand, UseOfKept};

/// Orphans that are brought into memory at a time.
const BATCH: usize = 1000;

fn orphan_key(ino: u64) -> Key {
    Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, ino)
}

impl Inactivator {
    /// Has the inactivator search for orphans.
    pub(crate) fn find_orphans(&self) {
        let committed = self.info.committed();
        let writable = |flags: u64, refs: u32| flags & RootFlags::RDONLY == 0 && refs > 0;
        let subvolumes = committed.subvolumes().filter(|subvolume| writable(subvolume.item.flags, subvolume.item.refs));
        let subvolumes = subvolumes.map(crate::committed::TreeRoot::id).collect();
        self.queue.set_orphans(Some(Orphans { subvolumes, next: 0 }));
        self.queue.set_subvolumes(committed.deleted_subvolumes().next().is_some());
    }

    /// Adopts some orphans; returns how many there were. Large ones are in the queue then.
    pub(super) fn adopt_some(&self, most: u64) -> Result<u64> {
        let Some(mut orphans) = self.queue.waiting.lock().orphans.clone() else { return Ok(0) };
        let mut found = Vec::new();
        orphans.subvolumes.retain(|subvolume| !self.info.is_deleted(*subvolume));
        if let Some(subvolume) = orphans.subvolumes.last().copied() {
            let most = BATCH.min(most as usize).max(1);
            let tree = self.info.committed().tree(subvolume)?;
            for item in tree.range(orphan_key(orphans.next)..=orphan_key(u64::MAX)).take(most) {
                found.push(InodeId::new(subvolume, Ino(item?.key.offset)));
            }
            if let Some(next) = found.last().filter(|_| found.len() == most).and_then(|last| last.ino.0.checked_add(1))
            {
                orphans.next = next;
            } else {
                orphans.subvolumes.pop();
                orphans.next = 0;
            }
        }
        for id in &found {
            self.adopt_orphan(*id)?;
        }
        let left = (!orphans.subvolumes.is_empty()).then_some(orphans);
        self.queue.set_orphans(left);
        Ok(found.len() as u64)
    }

    /// Frees an orphan. One that programs of this mount have open has an item as well, and is not
    /// meant.
    fn adopt_orphan(&self, id: InodeId) -> Result<()> {
        let inode: Arc<Inode> = match self.info.inode(id) {
            Ok(inode) => inode,
            // The item of an inode that has been deleted already, or with its subvolume.
            Err(error) if matches!(error.errno(), Errno::NOENT | Errno::STALE) => return Ok(()),
            Err(error) => return Err(error),
        };
        let linked = inode.read().item.nlink > 0;
        if if linked { self.finish_truncation(&inode) } else { self.inactivate_if_unused(&inode) } {
            self.info.counters.orphans_cleaned.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// An orphan with names is an old kernel's record of an unfinished truncation: drops extents
    /// beyond the end of the file, and the orphan item.
    fn finish_truncation(&self, inode: &Arc<Inode>) -> bool {
        let reservation = self.info.try_reserve(Demand {
            edits: 4,
            item_bytes: INODE_ITEM + ORPHAN_ITEM + 4 * FILE_EXTENT_ITEM,
            kept: UseOfKept::All,
            ..Demand::default()
        });
        let mut state = inode.write();
        if state.item.nlink == 0 || state.batches().any(|batch| batch.orphan == OrphanEdit::Remove) {
            return false;
        }
        let transaction = self.info.gate.enter();
        if reservation.is_none() {
            self.info.space.lock().may_use_all_kept();
        }
        state.join(inode, &transaction);
        state.drop_beyond_end(self.info.volume.sector_size());
        true
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
