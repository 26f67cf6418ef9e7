//! Listing directories.

use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, ItemType, Key, name_hash};

use super::operations::DirectoryOperations;
use crate::error::{Errno, Result};
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId};
use crate::names::DirectoryEntry;

impl DirectoryOperations {
    /// Lists entries whose index is above `after` and at most `last`, at most `limit` of them, in
    /// the order of their indices. `ENOENT` in the root directory of a deleted subvolume.
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

    /// Announces that entries of a directory, as [`Self::list`] returns them, will be looked up. On
    /// devices on which reading takes long, this starts reading the needed blocks, all at once and
    /// in the background.
    pub fn will_look_up(&self, dir: InodeId, entries: &[DirectoryEntry]) {
        // If a block can't be read, the lookup that needs it reports the error.
        let _ = self.prefetch(dir, entries);
    }

    /// Reads ahead what lookups of these entries will need, on devices on which reading takes long.
    fn prefetch(&self, dir: InodeId, entries: &[DirectoryEntry]) -> Result<()> {
        if self.info.volume.devices().reads_ahead() == 0 {
            return Ok(());
        }
        let keys = entries.iter().flat_map(|entry| {
            let inode = (entry.inode.subvolume == dir.subvolume).then_some(entry.inode.ino.0);
            let own = inode.map(|ino| Key::new(ino, ItemType::INODE_ITEM, 0));
            // A directory may be listed next.
            let listed = inode.filter(|_| entry.file_type == FileType::Directory);
            let listed = listed.map(|ino| Key::new(ino, ItemType::DIR_INDEX, 0));
            let name = Key::new(dir.ino.0, ItemType::DIR_ITEM, name_hash(&entry.name));
            [Some(name), own, listed].into_iter().flatten()
        });
        Ok(self.info.committed().tree(dir.subvolume)?.prefetch(keys)?)
    }

    /// Returns the highest index of a directory's entries now. A listing that starts now stops
    /// there, so that entries that are renamed during it don't appear again and again.
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
            // No index is left for a new entry, but existing entries can be listed.
            Err(error) if error.errno() == Errno::NOSPC => Ok(DirIndex(u64::MAX)),
            Err(error) => Err(error),
        }
    }

    /// Begins a listing that is read in several calls, and records its end, which is the current
    /// [`Self::last_index`]. Returns the end.
    pub fn begin_listing(&self, dir: InodeId) -> Result<DirIndex> {
        let last = self.last_index(dir)?;
        self.info.inode(dir)?.write().listings.begin(last);
        Ok(last)
    }

    /// Returns the end of the listing that was begun last, for listings that can't remember their
    /// own end. Beginning another one moves the end of such listings further out, so none loses a
    /// name.
    pub fn listing_end(&self, dir: InodeId) -> Result<DirIndex> {
        let remembered = self.info.inode(dir)?.read().listings.end();
        remembered.map_or_else(|| self.begin_listing(dir), Ok)
    }

    /// To be called when a listing has been read to its end. Returns whether all listings that may
    /// be in progress show the same names, since no name has changed since they began. If not, a
    /// listing that is assembled from several shows removed names or lacks new ones, until
    /// [`Self::forget_listings`].
    pub fn is_listing_whole(&self, dir: InodeId) -> Result<bool> {
        Ok(self.info.inode(dir)?.write().listings.is_ended_unchanged())
    }

    /// To be called when all cached parts of earlier listings have been dropped.
    pub fn forget_listings(&self, dir: InodeId) -> Result<()> {
        self.info.inode(dir)?.write().listings.forget();
        Ok(())
    }
}
