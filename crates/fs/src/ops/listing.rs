//! Listing directories.

use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, ItemType, Key, name_hash};

use super::operations::DirectoryOperations;
use crate::error::{Errno, Result};
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId};
use crate::names::DirectoryEntry;

impl DirectoryOperations {
    /// Lists entries numbered above `after` and up to `last`, at most `limit` of them, in the order
    /// of their numbers. `ENOENT` in the root directory of a deleted subvolume.
    pub fn list(&self, dir: InodeId, after: DirIndex, last: DirIndex, limit: usize) -> Result<Vec<DirectoryEntry>> {
        let inode = self.info.inode(dir)?;
        if self.info.is_deleted_root(dir) {
            return Err(Errno::NOENT.into());
        }
        let entries = self.names.entries(dir, &inode.read(), after, last, limit)?;
        if dir.ino != EMPTY_SUBVOLUME_INO {
            self.access_times.touch(&inode)?;
        }
        Ok(entries)
    }

    /// Says that entries of a directory, as [`Self::list`] returns them, will be looked up: what
    /// that needs is read from devices where reading takes long, at once and in the background.
    pub fn will_look_up(&self, dir: InodeId, entries: &[DirectoryEntry]) {
        // A lookup that needs what can't be read says so.
        let _ = self.prefetch(dir, entries);
    }

    /// Has what lookups of these entries will need read from devices where that takes long.
    fn prefetch(&self, dir: InodeId, entries: &[DirectoryEntry]) -> Result<()> {
        if self.info.volume.reads_ahead() == 0 {
            return Ok(());
        }
        let keys = entries.iter().flat_map(|entry| {
            let inode = (entry.inode.subvolume == dir.subvolume).then_some(entry.inode.ino.0);
            let own = inode.map(|ino| Key::new(ino, ItemType::INODE_ITEM, 0));
            // A directory is listed next, perhaps.
            let listed = inode.filter(|_| entry.file_type == FileType::Directory);
            let listed = listed.map(|ino| Key::new(ino, ItemType::DIR_INDEX, 0));
            let name = Key::new(dir.ino.0, ItemType::DIR_ITEM, name_hash(&entry.name));
            [Some(name), own, listed].into_iter().flatten()
        });
        Ok(self.info.committed().tree(dir.subvolume)?.prefetch(keys)?)
    }

    /// The highest entry number of a directory now: a listing that starts now stops there, so that
    /// entries that are renamed during it don't appear again and again.
    pub fn last_index(&self, dir: InodeId) -> Result<DirIndex> {
        let inode = self.info.inode(dir)?;
        let mut state = inode.write();
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if dir.ino == EMPTY_SUBVOLUME_INO {
            return Ok(DirIndex(1));
        }
        match self.names.next_index(dir, &mut state) {
            Ok(next) => {
                state.next_index = Some(next);
                Ok(DirIndex(next.0 - 1))
            }
            // No number is left for a new entry; existing ones can be listed.
            Err(error) if error.errno() == Errno::NOSPC => Ok(DirIndex(u64::MAX)),
            Err(error) => Err(error),
        }
    }

    /// Begins a listing that is read in several calls, and records where it ends: at the current
    /// [`Self::last_index`].
    pub fn begin_listing(&self, dir: InodeId) -> Result<DirIndex> {
        let last = self.last_index(dir)?;
        self.info.inode(dir)?.write().listings.begin(last);
        Ok(last)
    }

    /// Where the listing ends that was begun last: for one that can't remember its own end. So a
    /// later beginning moves the end of such ones further out, and none loses a name.
    pub fn listing_end(&self, dir: InodeId) -> Result<DirIndex> {
        let remembered = self.info.inode(dir)?.read().listings.end();
        remembered.map_or_else(|| self.begin_listing(dir), Ok)
    }

    /// A listing has been read to its end. Returns whether all listings that may be in progress
    /// show the same names, since none has changed since they began. If not, a listing that is
    /// assembled from several has names that are gone, or lacks some, until
    /// [`Self::forget_listings`].
    pub fn is_listing_whole(&self, dir: InodeId) -> Result<bool> {
        Ok(self.info.inode(dir)?.write().listings.is_ended_unchanged())
    }

    /// All cached parts of earlier listings have been dropped.
    pub fn forget_listings(&self, dir: InodeId) -> Result<()> {
        self.info.inode(dir)?.write().listings.forget();
        Ok(())
    }
}
