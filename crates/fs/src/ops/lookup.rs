//! Looking names up, and listing directories.

use ubtrfs_format::DirIndex;
use ubtrfs_format::items;

use super::operations::Operations;
use crate::error::{Errno, Result};
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
            let alive =
                self.info.inode(id).and_then(|inode| if inode.read().dead { Err(Errno::NOENT.into()) } else { Ok(()) });
            let Err(error) = alive else { return Ok(id) };
            self.info.inodes.unreference(id, 1);
            // A commit may have put another subvolume there meanwhile.
            if error.errno() != Errno::STALE || stale.replace(id) == Some(id) {
                return Err(error);
            }
        }
    }

    /// Looks up an inode that is known by its number alone, as one that a file handle names. Takes
    /// a reference to it, which the caller drops with [`Self::forget`]. `ENOENT` if it is deleted
    /// or has no name: a program that has a nameless file open does not need this, and its forget
    /// may arrive later than this call.
    pub(crate) fn lookup_inode(&self, id: InodeId) -> Result<()> {
        self.info.inodes.reference(id);
        let alive = self.info.inode(id).map(|inode| {
            let state = inode.read();
            !state.dead && state.item.nlink > 0
        });
        if matches!(alive, Ok(true)) {
            return Ok(());
        }
        self.forget(id, 1);
        Err(alive.err().unwrap_or(Errno::NOENT.into()))
    }

    /// Lists entries numbered above `after` and up to `last`, at most `limit` of them, in the order
    /// of their numbers.
    pub(crate) fn list(
        &self,
        dir: InodeId,
        after: DirIndex,
        last: DirIndex,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        let inode = self.info.inode(dir)?;
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

    /// Drops references. With the last one an inode without names is freed; the caller does not
    /// wait for that.
    pub(crate) fn forget(&self, id: InodeId, count: u64) {
        if !self.info.inodes.unreference(id, count) {
            return;
        }
        let Some(inode) = self.info.inodes.get(id) else { return };
        self.inactivator.inactivate_if_unused(&inode);
    }
}
