//! Looking names up, and listing directories.

use ubtrfs_format::items;
use ubtrfs_format::{DirIndex, Ino, TreeId};

use super::operations::Operations;
use crate::error::{Errno, Error, Result};
use crate::faults::CommitFault;
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId};
use crate::names::DirectoryEntry;

impl Operations {
    /// Looks a name up. Takes a reference to the inode, which the caller drops with
    /// [`Self::forget`].
    pub(crate) fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<InodeId> {
        if name.len() > items::MAX_NAME_LEN {
            return Err(Errno::NAMETOOLONG.into());
        }
        let inode = self.info.inode(dir)?;
        let mut stale = None;
        loop {
            let state = inode.read();
            if !state.is_dir() {
                return Err(Errno::NOTDIR.into());
            }
            let found = self.names.find_entry(dir, &state, name)?.ok_or(Errno::NOENT)?;
            let id = self.names.resolve(&self.info.committed(), dir, name, found.target)?;
            drop(state);
            self.info.inodes.reference(id);
            let alive = if id.subvolume != dir.subvolume && self.info.is_deleted(id.subvolume) {
                Err(Errno::STALE.into())
            } else {
                self.info.inode(id).and_then(|inode| if inode.read().dead { Err(Errno::NOENT.into()) } else { Ok(()) })
            };
            let Err(error) = alive else { return Ok(id) };
            self.forget(id, 1);
            // It was deleted meanwhile, or a commit may have put another subvolume there.
            if error.errno() != Errno::STALE || stale.replace(id) == Some(id) {
                return Err(error);
            }
        }
    }

    /// Looks up an inode that is known by its number alone, as one that a file handle names. Takes
    /// a reference to it, which the caller drops with [`Self::forget`]. `ENOENT` if it is deleted
    /// or has no name: a program that has a nameless file open does not need this, and its forget
    /// may arrive later than this call. `ESTALE` in a subvolume that was deleted.
    pub(crate) fn lookup_inode(&self, id: InodeId) -> Result<()> {
        self.info.inodes.reference(id);
        let alive = if self.info.is_deleted(id.subvolume) {
            Err(Errno::STALE.into())
        } else {
            self.info.inode(id).map(|inode| {
                let state = inode.read();
                !state.dead && state.item.nlink > 0
            })
        };
        if matches!(alive, Ok(true)) {
            return Ok(());
        }
        self.forget(id, 1);
        Err(alive.err().unwrap_or(Errno::NOENT.into()))
    }

    /// The name that paths of an inode show, and its directory, which is in the same subvolume.
    /// `ENOENT` if the inode has no name, or is no more, or its subvolume is not there.
    pub(crate) fn shown_name(&self, id: InodeId) -> Result<(Ino, Vec<u8>)> {
        if self.info.is_deleted(id.subvolume) {
            return Err(Errno::NOENT.into());
        }
        let is_gone = |error: &Error| matches!(error.errno(), Errno::NOENT | Errno::STALE);
        let inode = self.info.inode(id).map_err(|error| if is_gone(&error) { Errno::NOENT.into() } else { error })?;
        let state = inode.read();
        self.info.view(id, &state).shown_name()?.ok_or_else(|| Errno::NOENT.into())
    }

    /// Lists entries numbered above `after` and up to `last`, at most `limit` of them, in the order
    /// of their numbers. `ENOENT` in the root directory of a deleted subvolume.
    pub(crate) fn list(
        &self,
        dir: InodeId,
        after: DirIndex,
        last: DirIndex,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        let inode = self.info.inode(dir)?;
        if self.info.is_deleted_root(dir) {
            return Err(Errno::NOENT.into());
        }
        let entries = self.names.entries(dir, &inode.read(), after, last, limit)?;
        if dir.ino != EMPTY_SUBVOLUME_INO {
            self.touch_atime(&inode)?;
        }
        Ok(entries)
    }

    /// Adds a reference to an inode, as a lookup does.
    pub(crate) fn reference(&self, id: InodeId) {
        self.info.inodes.reference(id);
    }

    /// Drops references. With the last one an inode without names is freed, and with the last one
    /// to any inode of a deleted subvolume that is dropped; the caller does not wait for that.
    pub(crate) fn forget(&self, id: InodeId, count: u64) {
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
    pub(super) fn release_if_unused(&self, id: TreeId) {
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
}
