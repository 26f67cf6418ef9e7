//! References to inodes: what the kernel, or another caller, holds of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_format::TreeId;

use crate::faults::CommitFault;
use crate::fs_info::FsInfo;
use crate::inactivate::Inactivator;
use crate::inode::InodeId;

/// References to inodes. An inode that has some stays in memory, and one that has lost its last
/// name is freed with the last of them.
pub struct References {
    pub(super) info: Arc<FsInfo>,
    pub(super) inactivator: Arc<Inactivator>,
}

impl References {
    /// Adds a reference to an inode, as a lookup does.
    pub fn reference(&self, id: InodeId) {
        self.info.inodes.reference(id);
    }

    /// Drops references. With the last one an inode without names is freed, and with the last one
    /// to any inode of a deleted subvolume that is dropped; the caller does not wait for that.
    pub fn forget(&self, id: InodeId, count: u64) {
        let left = self.info.inodes.unreference(id, count);
        if left.inode
            && let Some(inode) = self.info.inodes.get(id)
        {
            self.inactivator.inactivate_if_unused(&inode);
        }
        if left.part_of_subvolume {
            self.release_if_unused(id.subvolume);
        }
    }

    /// Has a subvolume dropped that was deleted, unless there are references to inodes of it.
    ///
    /// None comes after the last one has gone: who looks a name up, or makes one, has a reference
    /// to the directory meanwhile. Who looks up the subvolume itself, by an entry that it had or by
    /// a number, finds that it is deleted, and calls this again as it gives its reference back.
    pub(crate) fn release_if_unused(&self, id: TreeId) {
        let faults = self.info.options.faults();
        let is_open = || self.info.inodes.has_references_in(id) && !faults.in_commit(CommitFault::ReleaseOpen);
        if !self.info.is_deleted(id) || is_open() {
            return;
        }
        let is_new = {
            let open = self.info.gate.enter();
            self.info.deleted.release(id, open.generation)
        };
        if is_new {
            self.inactivator.subvolume_released();
        }
    }

    /// All inodes that are referenced, in no order.
    pub fn referenced(&self) -> Vec<InodeId> {
        self.info.inodes.referenced()
    }

    /// Notes that the kernel may have pages of a file from now on, until nothing refers to the
    /// inode any more.
    pub fn note_pages(&self, id: InodeId) {
        self.info.inodes.note_pages(id);
    }

    /// All inodes that the kernel may have pages of, by subvolume and number.
    pub fn with_pages(&self) -> Vec<InodeId> {
        self.info.inodes.with_pages()
    }

    /// Names of inodes of a subvolume that are referenced, by directory; of at most `most` inodes,
    /// and of each about so many. Inodes that can't be read are left out.
    pub fn referenced_names(&self, subvolume: TreeId, most: usize) -> BTreeMap<InodeId, Vec<Vec<u8>>> {
        let mut names: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for id in self.info.inodes.referenced_in(subvolume, most) {
            let Ok(inode) = self.info.inode(id) else { continue };
            let found = self.info.view(id, &inode.read()).names(most);
            for (parent, name) in found.into_iter().flatten() {
                names.entry(InodeId::new(subvolume, parent)).or_default().push(name);
            }
        }
        names
    }

    /// Whether inodes of a subvolume are referenced.
    pub fn is_in_use(&self, subvolume: TreeId) -> bool {
        self.info.inodes.has_references_in(subvolume)
    }

    /// Whether an inode has references: [`DirectoryOperations::lookup`] and others take them,
    /// [`Self::forget`] drops them.
    ///
    /// [`DirectoryOperations::lookup`]: crate::DirectoryOperations::lookup
    pub fn is_referenced(&self, id: InodeId) -> bool {
        self.info.is_referenced(id)
    }

    /// Whether an inode is locked, perhaps for long, so that reading it (or, `to_change`, changing
    /// it) might block.
    pub fn is_busy(&self, id: InodeId, to_change: bool) -> bool {
        self.info.is_busy(id, to_change)
    }
}
