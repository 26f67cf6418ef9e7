//! References to inodes that the kernel or another caller holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_format::TreeId;

use crate::faults::CommitFault;
use crate::fs_info::FsInfo;
use crate::inactivate::Inactivator;
use crate::inode::InodeId;

/// References to inodes. An inode with references stays in memory. An inode that has lost its last
/// name is freed when its last reference is dropped.
pub struct References {
    pub(super) info: Arc<FsInfo>,
    pub(super) inactivator: Arc<Inactivator>,
}

impl References {
    /// Adds a reference to an inode, as a lookup does.
    pub fn reference(&self, id: InodeId) {
        self.info.inodes.reference(id);
    }

    /// Drops references. When the last reference is dropped, an inode without names is freed. When
    /// no inode of a deleted subvolume has references any more, the subvolume is dropped. The
    /// caller does not wait for either.
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

    /// Lets a deleted subvolume be dropped, unless there are references to inodes of it.
    ///
    /// No reference is added after the last one has gone: a lookup or creation of a name holds a
    /// reference to the directory meanwhile. A lookup of the subvolume itself, by its former entry
    /// or by a number, finds that it is deleted, drops its reference and calls this again.
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

    /// Returns all inodes that have references, in no order.
    pub fn referenced(&self) -> Vec<InodeId> {
        self.info.inodes.referenced()
    }

    /// Notes that the kernel may have pages of a file from now on, until nothing refers to the
    /// inode any more.
    pub fn note_pages(&self, id: InodeId) {
        self.info.inodes.note_pages(id);
    }

    /// Returns all inodes that the kernel may have pages of, by subvolume and number.
    pub fn with_pages(&self) -> Vec<InodeId> {
        self.info.inodes.with_pages()
    }

    /// Returns the names of inodes of a subvolume that have references, by directory: those of at
    /// most `most` inodes, and about as many names of each. Inodes that can't be read are left out.
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

    /// Whether an inode is locked, perhaps for long, so that reading it (or changing it if
    /// `to_change` is set) might block.
    pub fn is_busy(&self, id: InodeId, to_change: bool) -> bool {
        self.info.is_busy(id, to_change)
    }
}
