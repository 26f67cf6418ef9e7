//! Directories: finding a name, listing, resolving what an entry leads to.

use ubtrfs_format::items::{self, FileType, RootRef};
use ubtrfs_format::{DirIndex, Generation, Ino, ItemType, Key, TreeId, extref_hash, name_hash};
use ubtrfs_tree::Item;

use crate::committed::Committed;
use crate::error::{Errno, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{InodeId, InodeState, Target};

/// The inode that stands for a subvolume that can't be reached where its entry is: an empty
/// directory.
pub(crate) const EMPTY_SUBVOLUME_INO: Ino = Ino(2);

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its number: listing goes on after it.
    pub index: DirIndex,
    /// The name.
    pub name: Vec<u8>,
    /// What it leads to.
    pub inode: InodeId,
    /// The type of that.
    pub file_type: FileType,
}

/// An entry that was found, and its number where that is known without a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) index: Option<DirIndex>,
    pub(crate) target: Target,
}

/// What a directory has of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupResult {
    pub(crate) found: Option<Found>,
    /// Bytes of the committed item that all names of this one's hash share, if that was looked at.
    committed_bytes: Option<usize>,
    seen: DirVersion,
}

/// What a [`LookupResult`] is of: how many changes the directory's names had seen, whether it was
/// committed, and the commit that was looked at.
type DirVersion = (u64, bool, Generation);

fn seen(state: &InodeState, committed: &Committed) -> DirVersion {
    (state.name_changes, state.committed, committed.generation)
}

/// The committed item in which all names of a directory with the hash of this one stand.
fn committed_item(committed: &Committed, dir: InodeId, name: &[u8]) -> Result<Option<Item>> {
    Ok(committed.tree(dir.subvolume)?.get(&Key::new(dir.ino.0, ItemType::DIR_ITEM, name_hash(name)))?)
}

/// What a name leads to, from the item of its hash.
fn entry_in(item: &[u8], name: &[u8]) -> Result<Option<Target>> {
    for entry in items::dir_entries(item) {
        let entry = entry?;
        if entry.name == name {
            return Ok(Some(Target { location: entry.location, file_type: entry.file_type }));
        }
    }
    Ok(None)
}

/// The number of a committed name of an inode.
pub(crate) fn committed_ref_index(
    committed: &Committed,
    subvolume: TreeId,
    ino: Ino,
    parent: Ino,
    name: &[u8],
) -> Result<Option<DirIndex>> {
    let tree = committed.tree(subvolume)?;
    if let Some(item) = tree.get(&Key::new(ino.0, ItemType::INODE_REF, parent.0))? {
        for entry in items::inode_refs(&item) {
            let entry = entry?;
            if entry.name == name {
                return Ok(Some(entry.index));
            }
        }
    }
    if let Some(item) = tree.get(&Key::new(ino.0, ItemType::INODE_EXTREF, extref_hash(parent, name)))? {
        for entry in items::extrefs(&item) {
            let entry = entry?;
            if entry.parent == parent && entry.name == name {
                return Ok(Some(entry.index));
            }
        }
    }
    Ok(None)
}

/// What a committed entry leads to.
fn resolve(committed: &Committed, dir: InodeId, name: &[u8], target: Target) -> Result<InodeId> {
    match target.location.item_type {
        ItemType::INODE_ITEM => Ok(InodeId::new(dir.subvolume, Ino(target.location.objectid))),
        ItemType::ROOT_ITEM => {
            let child = TreeId(target.location.objectid);
            // A snapshot keeps the entries of the subvolumes inside its source, but not the
            // subvolumes.
            let key = Key::new(dir.subvolume.0, ItemType::ROOT_REF, child.0);
            let reachable = match committed.tree(TreeId::ROOT)?.get(&key)? {
                Some(item) => {
                    let entry = RootRef::parse(&item)?;
                    entry.dirid == dir.ino && entry.name == name && committed.has_subvolume(child)
                }
                None => false,
            };
            Ok(if reachable { InodeId::root_of(child) } else { InodeId::new(dir.subvolume, EMPTY_SUBVOLUME_INO) })
        }
        _ => Err(Error::Inconsistent {
            tree: dir.subvolume,
            key: Key::new(dir.ino.0, ItemType::DIR_ITEM, name_hash(name)),
            what: "the entry leads to neither an inode nor a subvolume",
        }),
    }
}

/// The subvolume at a path below the top level; directories on the way may be of any subvolume.
pub(crate) fn subvolume_at(committed: &Committed, path: &str) -> Result<Option<TreeId>> {
    let mut at = InodeId::root_of(TreeId::FS);
    for name in path.split('/').filter(|part| !part.is_empty()) {
        let Some(item) = committed_item(committed, at, name.as_bytes())? else { return Ok(None) };
        let Some(target) = entry_in(&item, name.as_bytes())? else { return Ok(None) };
        at = resolve(committed, at, name.as_bytes(), target)?;
    }
    Ok((at.ino == Ino::ROOT_DIR).then_some(at.subvolume))
}

/// Two layers of changes to a directory in the order of their numbers; what the newer one says of a
/// number counts. Nothing is copied: a listing asks for a few entries at a time, and the layers may
/// hold many.
fn newest_of<'a, T>(
    older: impl Iterator<Item = (&'a DirIndex, T)>,
    newer: impl Iterator<Item = (&'a DirIndex, T)>,
) -> impl Iterator<Item = (&'a DirIndex, T)> {
    let (mut older, mut newer) = (older.peekable(), newer.peekable());
    std::iter::from_fn(move || {
        let next = newer.peek().map(|(index, _)| *index);
        if let Some(next) = next {
            if let Some(earlier) = older.next_if(|(index, _)| *index < next) {
                return Some(earlier);
            }
            older.next_if(|(index, _)| *index == next);
            return newer.next();
        }
        older.next()
    })
}

impl Filesystem {
    /// Finds a name in a directory whose lock the caller holds.
    pub(crate) fn find_entry(&self, dir: InodeId, state: &InodeState, name: &[u8]) -> Result<Option<Found>> {
        Ok(self.seek_entry(dir, state, name)?.found)
    }

    /// Looks for a name in a directory whose lock the caller holds.
    pub(crate) fn seek_entry(&self, dir: InodeId, state: &InodeState, name: &[u8]) -> Result<LookupResult> {
        let committed = self.info.committed();
        let mut lookup = LookupResult { found: None, committed_bytes: None, seen: seen(state, &committed) };
        let layers = [Some(&state.pending), state.frozen.as_ref().map(|frozen| &frozen.batch)];
        for batch in layers.into_iter().flatten() {
            if let Some(change) = batch.entries.by_name.get(name) {
                lookup.found = change.now.map(|(index, target)| Found { index: Some(index), target });
                return Ok(lookup);
            }
        }
        let has_items = state.committed && dir.ino != EMPTY_SUBVOLUME_INO;
        let item = if has_items { committed_item(&committed, dir, name)? } else { None };
        lookup.committed_bytes = Some(item.as_ref().map_or(0, |item| item.len()));
        if let Some(item) = item {
            lookup.found = entry_in(&item, name)?.map(|target| Found { index: None, target });
        }
        Ok(lookup)
    }

    /// What a directory, locked anew, has of a name that was looked up before: looks for it only if
    /// anything can have changed.
    pub(crate) fn seek_entry_again(
        &self,
        dir: InodeId,
        state: &InodeState,
        name: &[u8],
        before: LookupResult,
    ) -> Result<LookupResult> {
        if before.seen == seen(state, &self.info.committed()) { Ok(before) } else { self.seek_entry(dir, state, name) }
    }

    /// Bytes of the committed item that all names of this one's hash share. `lookup` must stem from
    /// this directory under the same hold of its lock, or from [`Self::seek_entry_again`].
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

    /// What an entry leads to. The caller holds the lock of the directory.
    pub(crate) fn resolve(&self, committed: &Committed, dir: InodeId, name: &[u8], target: Target) -> Result<InodeId> {
        let child = TreeId(target.location.objectid);
        match target.subvolume().and_then(|child| self.moved_subvolumes.get(child)) {
            Some(entry) if entry.is_at(dir, name) => Ok(InodeId::root_of(child)),
            Some(_) => Ok(InodeId::new(dir.subvolume, EMPTY_SUBVOLUME_INO)),
            None => resolve(committed, dir, name, target),
        }
    }

    /// The number of an entry that was found. `found` must stem from this directory under the same
    /// hold of its lock.
    pub(crate) fn entry_index(&self, dir: InodeId, state: &InodeState, name: &[u8], found: &Found) -> Result<DirIndex> {
        if let Some(index) = found.index {
            return Ok(index);
        }
        if let Some(child) = found.target.subvolume() {
            // Of an inode the reference to its name tells it, of a subvolume the root tree, of a
            // snapshot's empty directory nothing.
            let place = self.subvolume_entry(child)?.filter(|place| place.is_at(dir, name));
            let after = place.and_then(|place| place.index.0.checked_sub(1)).map(DirIndex);
            let there = after.map(|after| self.entries(dir, state, after, DirIndex(after.0 + 1), 1)).transpose()?;
            return match there.as_deref() {
                Some([entry]) if entry.name == name => Ok(entry.index),
                _ => self.number_of(dir, state, name),
            };
        }
        let ino = Ino(found.target.location.objectid);
        committed_ref_index(&self.info.committed(), dir.subvolume, ino, dir.ino, name)?.ok_or(Error::Inconsistent {
            tree: dir.subvolume,
            key: Key::new(ino.0, ItemType::INODE_REF, dir.ino.0),
            what: "the inode does not know a name that its directory has",
        })
    }

    /// The number of an entry of a directory, looked for among all of them.
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

    /// The number that the next entry of a directory gets; the caller holds its lock and puts it
    /// there.
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

    /// Looks a name up. Takes a reference to the inode, which the caller gives back with
    /// [`Self::forget`].
    pub fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<InodeId> {
        if name.len() > items::MAX_NAME_LEN {
            return Err(Errno::NAMETOOLONG.into());
        }
        let inode = self.info.inode(dir)?;
        let state = inode.read();
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let found = self.find_entry(dir, &state, name)?.ok_or(Errno::NOENT)?;
        let id = self.resolve(&self.info.committed(), dir, name, found.target)?;
        drop(state);
        self.info.inodes.reference(id);
        let alive = self.info.inode(id).and_then(|inode| if inode.read().dead { Err(Errno::NOENT.into()) } else { Ok(()) });
        if let Err(error) = alive {
            self.info.inodes.unreference(id, 1);
            return Err(error);
        }
        Ok(id)
    }

    /// Looks up an inode that is known by its number alone, as one that a file handle names. Takes
    /// a reference to it, which the caller gives back with [`Self::forget`]. `ENOENT` if it is gone
    /// or has no name: whoever has a file without one open does not have to ask, and that it was
    /// forgotten may be told later than this is asked.
    pub fn lookup_inode(&self, id: InodeId) -> Result<()> {
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

    /// The directory that holds a directory: the inode that `..` leads to. The root of a subvolume
    /// is its own parent, or lies in the directory that holds the subvolume's entry.
    pub fn parent(&self, dir: InodeId) -> Result<InodeId> {
        if dir == self.info.root() || dir.ino == EMPTY_SUBVOLUME_INO {
            return Ok(dir);
        }
        if dir.ino == Ino::ROOT_DIR {
            return Ok(self.subvolume_entry(dir.subvolume)?.map_or(dir, |entry| entry.dir));
        }
        let inode = self.info.inode(dir)?;
        let state = inode.read();
        let layers = [Some(&state.pending), state.frozen.as_ref().map(|frozen| &frozen.batch)];
        for batch in layers.into_iter().flatten() {
            if let Some(((parent, _), _)) = batch.refs.iter().find(|(_, change)| change.now.is_some()) {
                return Ok(InodeId::new(dir.subvolume, *parent));
            }
        }
        let refs = Key::new(dir.ino.0, ItemType::INODE_REF, 0)..=Key::new(dir.ino.0, ItemType::INODE_REF, u64::MAX);
        // Looked at after the layers above, and under the same lock: a commit moves names from
        // there to here.
        match self.info.committed().tree(dir.subvolume)?.range(refs).next() {
            Some(item) => Ok(InodeId::new(dir.subvolume, Ino(item?.key.offset))),
            None => Err(Errno::NOENT.into()),
        }
    }

    /// The highest entry number of a directory at this moment: a listing that starts now stops
    /// there, so that entries renamed while it goes on don't come up again and again.
    pub fn last_index(&self, dir: InodeId) -> Result<DirIndex> {
        let inode = self.info.inode(dir)?;
        let mut state = inode.write();
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if dir.ino == EMPTY_SUBVOLUME_INO {
            return Ok(DirIndex(1));
        }
        match self.next_index(dir, &mut state) {
            Ok(next) => {
                state.next_index = Some(next);
                Ok(DirIndex(next.0 - 1))
            }
            // No number is left for a new entry; those that are there can be listed.
            Err(error) if error.errno() == Errno::NOSPC => Ok(DirIndex(u64::MAX)),
            Err(error) => Err(error),
        }
    }

    /// Begins a listing that comes piece by piece, and remembers where it ends: at
    /// [`Self::last_index`] of now. A later beginning moves the end of those that go on: further
    /// out, so none loses a name.
    pub fn begin_listing(&self, dir: InodeId) -> Result<DirIndex> {
        let last = self.last_index(dir)?;
        self.info.inode(dir)?.write().listings.begin(last);
        Ok(last)
    }

    /// Where the listing ends that was begun last.
    pub fn listing_end(&self, dir: InodeId) -> Result<DirIndex> {
        let remembered = self.info.inode(dir)?.read().listings.end();
        remembered.map_or_else(|| self.begin_listing(dir), Ok)
    }

    /// A listing has been read to its end. Whether all that may be under way show the same names:
    /// none has changed since they began. If not, whoever joins what was read of several shows
    /// names that are gone, or lacks some, until [`Self::forget_listings`].
    pub fn is_listing_whole(&self, dir: InodeId) -> Result<bool> {
        Ok(self.info.inode(dir)?.write().listings.is_ended_unchanged())
    }

    /// Nobody has anything any more of what was listed so far.
    pub fn forget_listings(&self, dir: InodeId) -> Result<()> {
        self.info.inode(dir)?.write().listings.forget();
        Ok(())
    }

    /// Lists entries numbered above `after` and up to `last`, at most `limit` of them, in the order
    /// of their numbers.
    pub fn list(&self, dir: InodeId, after: DirIndex, last: DirIndex, limit: usize) -> Result<Vec<DirectoryEntry>> {
        let inode = self.info.inode(dir)?;
        let entries = self.entries(dir, &inode.read(), after, last, limit)?;
        if dir.ino != EMPTY_SUBVOLUME_INO {
            self.touch_atime(&inode);
        }
        Ok(entries)
    }

    pub(crate) fn entries(
        &self,
        dir: InodeId,
        state: &InodeState,
        after: DirIndex,
        last: DirIndex,
        limit: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let Some(from) = after.0.checked_add(1).map(|from| DirIndex(from).max(DirIndex::FIRST)) else {
            return Ok(Vec::new());
        };
        if from > last || dir.ino == EMPTY_SUBVOLUME_INO {
            return Ok(Vec::new());
        }
        // Newer layers over older ones; each is cut at the limit only after what it removes has
        // been taken into account.
        let older = state.frozen.as_ref().map(|frozen| frozen.batch.entries.by_number.range(from..=last));
        let newer = state.pending.entries.by_number.range(from..=last);
        let mut overlay = newest_of(older.into_iter().flatten(), newer).peekable();
        let committed = self.info.committed();
        let mut entries = Vec::new();
        let mut push = |index: DirIndex, name: &[u8], target: Target| -> Result<bool> {
            let inode = self.resolve(&committed, dir, name, target)?;
            entries.push(DirectoryEntry { index, name: name.to_vec(), inode, file_type: target.file_type });
            Ok(entries.len() == limit)
        };
        if state.committed {
            let range =
                Key::new(dir.ino.0, ItemType::DIR_INDEX, from.0)..=Key::new(dir.ino.0, ItemType::DIR_INDEX, last.0);
            for item in committed.tree(dir.subvolume)?.range(range) {
                let item = item?;
                let index = DirIndex(item.key.offset);
                while let Some((newer, entry)) = overlay.next_if(|(newer, _)| **newer < index) {
                    if let Some((name, target)) = entry
                        && push(*newer, name, *target)?
                    {
                        return Ok(entries);
                    }
                }
                if let Some((_, entry)) = overlay.next_if(|(newer, _)| **newer == index) {
                    if let Some((name, target)) = entry
                        && push(index, name, *target)?
                    {
                        return Ok(entries);
                    }
                    continue;
                }
                let Some(entry) = items::dir_entries(&item).next() else { continue };
                let pushed = entry.map_err(Error::from).and_then(|entry| {
                    push(index, entry.name, Target { location: entry.location, file_type: entry.file_type })
                });
                match pushed {
                    Ok(true) => return Ok(entries),
                    Ok(false) => {}
                    Err(error) if self.info.passes_over(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for (index, entry) in overlay {
            if let Some((name, target)) = entry
                && push(*index, name, *target)?
            {
                break;
            }
        }
        Ok(entries)
    }

    /// Whether a directory has no entry; the caller holds its lock. Its size is the sum of its
    /// names, twice.
    pub(crate) fn is_empty_dir(state: &InodeState) -> bool {
        state.item.size == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ubtrfs_mkfs::{MkfsOptions, layout};
    use ubtrfs_volume::{MemoryDevice, OpenOptions, Volume};

    use super::*;
    use crate::ops::{NewInode, RenameFlags};
    use crate::options::Options;

    #[test]
    fn what_was_known_of_a_name_counts_until_names_or_the_trees_change() {
        const SIZE: u64 = 128 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(SIZE).unwrap();
        layout(&MkfsOptions::new(SIZE)).unwrap().write(&mut file.reopen().unwrap()).unwrap();
        let device = MemoryDevice::from_bytes(std::fs::read(file.path()).unwrap());
        let volume = Volume::open(vec![Arc::new(device)], OpenOptions { read_only: false }).unwrap();
        let options = Options { background_commits: false, ..Options::default() };
        let fs = Filesystem::open(Arc::new(volume), options).unwrap();
        let dir = fs.info.root();
        let inode = fs.info.inode(dir).unwrap();
        let seek = |name: &[u8]| fs.seek_entry(dir, &inode.read(), name).unwrap();
        let again = |name: &[u8], before| fs.seek_entry_again(dir, &inode.read(), name, before).unwrap();
        let file = NewInode { mode: 0o100_644, ..NewInode::default() };

        let (absent, other) = (seek(b"a"), seek(b"other"));
        let id = fs.create(dir, b"a", &file).unwrap();
        let there = again(b"a", absent);
        assert_eq!(there.found.unwrap().target.location.objectid, id.ino.0);
        assert_eq!(there.committed_bytes, None);
        assert!(again(b"other", other).found.is_none());

        // The commit moves the name from memory into the trees.
        fs.sync().unwrap();
        let committed = again(b"a", there);
        assert_eq!(committed.found.unwrap().target.location.objectid, id.ino.0);
        assert_eq!(committed.committed_bytes, Some(31));
        assert_eq!(again(b"a", committed).seen, committed.seen);

        fs.rename(dir, b"a", dir, b"b", RenameFlags::default()).unwrap();
        assert!(again(b"a", committed).found.is_none());
        fs.create(dir, b"a", &file).unwrap();
        assert_ne!(again(b"a", committed).found.unwrap().target.location.objectid, id.ino.0);
    }

    #[test]
    fn what_the_newer_layer_says_of_a_number_counts() {
        let layer = |numbers: &[u64]| numbers.iter().map(|number| DirIndex(*number)).collect::<Vec<_>>();
        for (older, newer, wanted) in [
            (&[][..], &[][..], &[][..]),
            (&[2, 5], &[], &[(2, "older"), (5, "older")]),
            (&[], &[2, 5], &[(2, "newer"), (5, "newer")]),
            (
                &[2, 4, 6, 9],
                &[3, 4, 9, 11],
                &[(2, "older"), (3, "newer"), (4, "newer"), (6, "older"), (9, "newer"), (11, "newer")],
            ),
        ] {
            let (older, newer) = (layer(older), layer(newer));
            let both =
                newest_of(older.iter().map(|index| (index, "older")), newer.iter().map(|index| (index, "newer")));
            assert_eq!(both.map(|(index, from)| (index.0, from)).collect::<Vec<_>>(), wanted);
        }
    }
}
