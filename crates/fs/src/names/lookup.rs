//! Finds a name in a directory, and the inode that an entry refers to.

use ubtrfs_format::{DirIndex, Generation, Ino, ItemType, Key, TreeId};

use super::Names;
use crate::backrefs::committed_ref_index;
use crate::committed::Committed;
use crate::committed_entries::{committed_item, entry_in, resolve};
use crate::error::{Errno, Error, Result};
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId, InodeState, Target};
use crate::subvolume_entries::EntryLocation;

/// An entry that was found, with its index if that is known without a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) index: Option<DirIndex>,
    pub(crate) target: Target,
}

/// The result of looking up a name in a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupResult {
    pub(crate) found: Option<Found>,
    /// Bytes of the committed item that all names with the same hash share, if that item was read.
    committed_bytes: Option<usize>,
    seen: DirVersion,
}

/// The version of a directory that a [`LookupResult`] has seen: the number of changes to the
/// directory's names, whether they were committed, and the commit that was read.
type DirVersion = (u64, bool, Generation);

fn seen(state: &InodeState, committed: &Committed) -> DirVersion {
    (state.name_changes, state.committed, committed.generation)
}

impl Names {
    /// Finds a name in a directory whose lock the caller holds.
    pub(crate) fn find_entry(&self, dir: InodeId, state: &InodeState, name: &[u8]) -> Result<Option<Found>> {
        Ok(self.seek_entry(dir, state, name)?.found)
    }

    /// Looks up a name in a directory whose lock the caller holds.
    pub(crate) fn seek_entry(&self, dir: InodeId, state: &InodeState, name: &[u8]) -> Result<LookupResult> {
        let committed = self.info.committed();
        let mut lookup = LookupResult { found: None, committed_bytes: None, seen: seen(state, &committed) };
        if let Some(change) = self.info.view(dir, state).entry_change(name) {
            lookup.found = change.now.map(|(index, target)| Found { index: Some(index), target });
            return Ok(lookup);
        }
        let has_items = state.committed && dir.ino != EMPTY_SUBVOLUME_INO;
        let item = if has_items { committed_item(&committed, dir, name)? } else { None };
        lookup.committed_bytes = Some(item.as_ref().map_or(0, |item| item.len()));
        if let Some(item) = item {
            lookup.found = entry_in(&item, name)?.map(|target| Found { index: None, target });
        }
        Ok(lookup)
    }

    /// Returns the entry of a name that was looked up before, in a directory that has been locked
    /// again. Looks it up again only if the directory's version has changed.
    pub(crate) fn seek_entry_again(
        &self,
        dir: InodeId,
        state: &InodeState,
        name: &[u8],
        before: LookupResult,
    ) -> Result<LookupResult> {
        if before.seen == seen(state, &self.info.committed()) { Ok(before) } else { self.seek_entry(dir, state, name) }
    }

    /// Returns the bytes of the committed item that all names with the same hash share. `lookup`
    /// must be from this directory under the same hold of its lock, or from
    /// [`Self::seek_entry_again`].
    pub(crate) fn committed_bytes(
        &self,
        dir: InodeId,
        state: &InodeState,
        name: &[u8],
        lookup: LookupResult,
    ) -> Result<usize> {
        match lookup.committed_bytes {
            Some(bytes) => Ok(bytes),
            None if !state.committed => Ok(0),
            None => Ok(committed_item(&self.info.committed(), dir, name)?.map_or(0, |item| item.len())),
        }
    }

    /// Returns the inode that an entry refers to. The caller holds the lock of the directory.
    pub(crate) fn resolve(&self, committed: &Committed, dir: InodeId, name: &[u8], target: Target) -> Result<InodeId> {
        let child = TreeId(target.location.objectid);
        match target.subvolume().and_then(|child| self.moved.get(child)) {
            Some(entry) if entry.is_at(dir, name) => Ok(InodeId::root_of(child)),
            Some(_) => Ok(InodeId::new(dir.subvolume, EMPTY_SUBVOLUME_INO)),
            None => resolve(committed, dir, name, target),
        }
    }

    /// Returns the index of an entry that was found. `found` must be from this directory under the
    /// same hold of its lock.
    pub(crate) fn entry_index(&self, dir: InodeId, state: &InodeState, name: &[u8], found: &Found) -> Result<DirIndex> {
        if let Some(index) = found.index {
            return Ok(index);
        }
        if let Some(child) = found.target.subvolume() {
            // For an inode, the reference of its name contains the index; for a subvolume, the root
            // tree does; for a snapshot's empty directory, no item does.
            let place = self.subvolume_entry(child)?.filter(|place| place.is_at(dir, name));
            let after = place.and_then(|place| place.index.0.checked_sub(1)).map(DirIndex);
            let there = after.map(|after| self.entries(dir, state, after, DirIndex(after.0 + 1), 1)).transpose()?;
            return match there.as_deref() {
                Some([entry]) if entry.name == name => Ok(entry.index),
                _ => self.number_of(dir, state, name),
            };
        }
        let ino = Ino(found.target.location.objectid);
        committed_ref_index(&self.info.committed().tree(dir.subvolume)?, ino, dir.ino, name)?.ok_or(
            Error::Inconsistent {
                tree: dir.subvolume,
                key: Key::new(ino.0, ItemType::INODE_REF, dir.ino.0),
                what: "the inode does not know a name that its directory has",
            },
        )
    }

    /// Returns the index of an entry of a directory, by a search through all entries.
    fn number_of(&self, dir: InodeId, state: &InodeState, name: &[u8]) -> Result<DirIndex> {
        const AT_ONCE: usize = 1000;
        let mut after = DirIndex(0);
        loop {
            let entries = self.entries(dir, state, after, DirIndex(u64::MAX), AT_ONCE)?;
            if let Some(found) = entries.iter().find(|entry| entry.name == name) {
                return Ok(found.index);
            }
            after = entries.last().ok_or(Errno::IO)?.index;
        }
    }

    /// Returns the index that the next entry of a directory gets, and records it as used. The
    /// caller holds the directory's lock.
    pub(crate) fn next_index(&self, dir: InodeId, state: &mut InodeState) -> Result<DirIndex> {
        let index = match state.next_index {
            Some(index) => index,
            None if !state.committed => DirIndex::FIRST,
            None => {
                let last = Key::new(dir.ino.0, ItemType::DIR_INDEX, u64::MAX);
                match self.info.committed().tree(dir.subvolume)?.last_at_or_before(&last)? {
                    Some(item) if item.key.objectid == dir.ino.0 && item.key.item_type == ItemType::DIR_INDEX => {
                        DirIndex((item.key.offset.saturating_add(1)).max(DirIndex::FIRST.0))
                    }
                    _ => DirIndex::FIRST,
                }
            }
        };
        if index.0 >= i64::MAX as u64 {
            return Err(Errno::NOSPC.into());
        }
        state.next_index = Some(DirIndex(index.0 + 1));
        Ok(index)
    }

    /// Returns the parent of a directory: the inode that `..` refers to. The parent of a
    /// subvolume's root is the directory with the subvolume's entry; the top level is its own
    /// parent.
    pub(crate) fn parent(&self, dir: InodeId) -> Result<InodeId> {
        if dir.ino == EMPTY_SUBVOLUME_INO {
            return Ok(dir);
        }
        if dir.ino == Ino::ROOT_DIR {
            return Ok(self.subvolume_entry(dir.subvolume)?.map_or(dir, |entry| entry.dir));
        }
        let inode = self.info.inode(dir)?;
        let state = inode.read();
        let parent = self.info.view(dir, &state).parent()?;
        parent.map(|parent| InodeId::new(dir.subvolume, parent)).ok_or_else(|| Errno::NOENT.into())
    }

    /// Returns the location of a subvolume's entry; `None` for the top level.
    pub(crate) fn subvolume_entry(&self, id: TreeId) -> Result<Option<EntryLocation>> {
        match self.moved.get(id) {
            Some(entry) => Ok(Some(entry)),
            None => EntryLocation::committed(&self.info.committed(), id),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ubtrfs_mkfs::{MkfsOptions, layout};
    use ubtrfs_volume::{MemoryDevice, OpenOptions, Volume};

    use crate::filesystem::Filesystem;
    use crate::ops::{NewInode, RenameFlags};
    use crate::options::Options;

    #[test]
    fn lookup_results_are_valid_until_names_or_the_trees_change() {
        const SIZE: u64 = 128 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE).unwrap();
        layout(&MkfsOptions::new(SIZE)).unwrap().write(&mut [&mut file.reopen().unwrap()]).unwrap();
        let device = MemoryDevice::from_bytes(std::fs::read(file.path()).unwrap());
        let volume = Volume::open(vec![Arc::new(device)], OpenOptions { read_only: false }).unwrap();
        let options = Options { background_commits: false, ..Options::default() };
        let fs = Filesystem::open(Arc::new(volume), options).unwrap();
        let dir = fs.info.root();
        let inode = fs.info.inode(dir).unwrap();
        let seek = |name: &[u8]| fs.names.seek_entry(dir, &inode.read(), name).unwrap();
        let again = |name: &[u8], before| fs.names.seek_entry_again(dir, &inode.read(), name, before).unwrap();
        let file = NewInode { mode: 0o100_644, ..NewInode::default() };

        let (absent, other) = (seek(b"a"), seek(b"other"));
        let id = fs.directories().create(dir, b"a", &file).unwrap();
        let there = again(b"a", absent);
        assert_eq!(there.found.unwrap().target.location.objectid, id.ino.0);
        assert_eq!(there.committed_bytes, None);
        assert!(again(b"other", other).found.is_none());

        // The commit moves the name from memory into the trees.
        fs.durability().sync().unwrap();
        let committed = again(b"a", there);
        assert_eq!(committed.found.unwrap().target.location.objectid, id.ino.0);
        assert_eq!(committed.committed_bytes, Some(31));
        assert_eq!(again(b"a", committed).seen, committed.seen);

        fs.directories().rename(dir, b"a", dir, b"b", RenameFlags::default()).unwrap();
        assert!(again(b"a", committed).found.is_none());
        fs.directories().create(dir, b"a", &file).unwrap();
        assert_ne!(again(b"a", committed).found.unwrap().target.location.objectid, id.ino.0);
    }
}
