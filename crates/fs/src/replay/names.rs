//! Replays names: entries of directories and the references of inodes that match them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ubtrfs_format::items::{FileType, dir_entries, inode_backrefs};
use ubtrfs_format::{DirIndex, Ino, ItemType, Key, extref_hash};
use ubtrfs_tree::Item;

use super::found::damaged;
use super::read::only_entry;
use super::subvolume::Replay;
use crate::error::Result;
use crate::inode::{Inode, InodeState, LostName, Name, Target};
use crate::ops::inode_target;

/// An entry of a directory.
pub(super) struct Entry {
    pub(super) name: Name,
    pub(super) index: DirIndex,
    pub(super) target: Target,
}

impl Entry {
    /// The inode that it refers to; `None` for a subvolume.
    fn ino(&self) -> Option<Ino> {
        (self.target.location.item_type == ItemType::INODE_ITEM).then_some(Ino(self.target.location.objectid))
    }
}

impl Replay<'_> {
    /// Returns a directory's entry of this name.
    fn entry_named(&self, dir: &Inode, name: &[u8]) -> Result<Option<Entry>> {
        let state = dir.read();
        let Some(found) = self.fs.names.find_entry(dir.id, &state, name)? else { return Ok(None) };
        if found.target.location.item_type != ItemType::INODE_ITEM {
            // The index of a subvolume's entry is in the root tree. The entry stays.
            let entry = Entry { name: name.into(), index: DirIndex(0), target: found.target };
            return Ok(Some(entry));
        }
        let index = self.fs.names.entry_index(dir.id, &state, name, &found)?;
        Ok(Some(Entry { name: name.into(), index, target: found.target }))
    }

    /// Returns a directory's entry with this index.
    fn entry_numbered(&self, dir: &Inode, index: DirIndex) -> Result<Option<Entry>> {
        Ok(self.entries(dir, index..=index)?.pop())
    }

    /// Returns a directory's entries with these indices.
    pub(super) fn entries(&self, dir: &Inode, numbers: RangeInclusive<DirIndex>) -> Result<Vec<Entry>> {
        let state = dir.read();
        let mut found: BTreeMap<DirIndex, Option<(Name, Target)>> = BTreeMap::new();
        let key = |index: DirIndex| Key::new(dir.id.ino.0, ItemType::DIR_INDEX, index.0);
        if state.committed {
            for item in self.tree.range(key(*numbers.start())..=key(*numbers.end())) {
                let item = item?;
                for entry in dir_entries(&item) {
                    let entry = entry?;
                    let target = Target { location: entry.location, file_type: entry.file_type };
                    found.insert(DirIndex(item.key.offset), Some((entry.name.into(), target)));
                }
            }
        }
        let newer = state.pending.entries.by_number.range(numbers);
        found.extend(newer.map(|(index, entry)| (*index, entry.clone())));
        let entry = |(index, entry): (DirIndex, Option<(Name, Target)>)| {
            entry.map(|(name, target)| Entry { name, index, target })
        };
        Ok(found.into_iter().filter_map(entry).collect())
    }

    /// Returns the names of an inode, with their indices.
    pub(super) fn names(&self, inode: &Inode) -> Result<BTreeMap<(Ino, Name), DirIndex>> {
        let state = inode.read();
        let mut names = BTreeMap::new();
        if state.committed {
            let key = |item_type, offset| Key::new(inode.id.ino.0, item_type, offset);
            for item in self.tree.range(key(ItemType::INODE_REF, 0)..=key(ItemType::INODE_EXTREF, u64::MAX)) {
                let item = item?;
                names.extend(names_in(&item.key, &item)?);
            }
        }
        for (name, change) in state.pending.refs.iter() {
            match change.now {
                Some(index) => drop(names.insert(name.clone(), index)),
                None => drop(names.remove(name)),
            }
        }
        Ok(names)
    }

    /// Removes an entry from a directory, and the name from its inode.
    pub(super) fn unlink(&mut self, dir: &Arc<Inode>, entry: Entry) -> Result<()> {
        let Some(ino) = entry.ino() else {
            let key = Key::new(dir.id.ino.0, ItemType::DIR_INDEX, entry.index.0);
            return Err(damaged(&key, "the log contradicts the entry of a subvolume"));
        };
        let Entry { name, index, target } = entry;
        self.change(dir, |state| {
            state.item.size = state.item.size.saturating_sub(2 * name.len() as u64);
            state.pending.remove_entry(name.clone(), index, target);
        });
        if let Some(inode) = self.inode(ino)? {
            self.change(&inode, |state| {
                state.pending.remove_ref(LostName { dir: dir.id.ino, name, index, is_dir_logged: false });
            });
            self.recount.insert(ino);
        }
        Ok(())
    }

    /// Adds a name to an inode. Neither the name nor the index may be in use.
    fn link(&mut self, dir: &Arc<Inode>, name: &[u8], index: DirIndex, inode: &Arc<Inode>) -> Result<()> {
        let file_type = inode.read().file_type();
        if file_type == FileType::Directory {
            // A directory has only one name, and the log knows the newest one.
            for ((parent, old), old_index) in self.names(inode)? {
                let target = inode_target(inode.id, file_type);
                if let Some(parent) = self.inode(parent)?.filter(|parent| parent.id != inode.id) {
                    self.unlink(&parent, Entry { name: old, index: old_index, target })?;
                }
            }
        }
        let name: Name = name.into();
        let next = self.next_number(dir)?;
        self.change(dir, |state| {
            state.item.size = state.item.size.saturating_add(2 * name.len() as u64);
            state.pending.put_entry(name.clone(), index, inode_target(inode.id, file_type));
            state.next_index = Some(next.max(DirIndex(index.0.saturating_add(1))));
        });
        self.change(inode, |state| state.pending.add_ref(dir.id.ino, name, index));
        self.recount.insert(inode.id.ino);
        Ok(())
    }

    /// Returns the lowest index that no entry of a directory has had.
    fn next_number(&self, dir: &Inode) -> Result<DirIndex> {
        let mut state = dir.write();
        self.fs.names.next_index(dir.id, &mut state)
    }

    /// Deletes the entries of a directory that are in a logged range and that the log lacks.
    pub(super) fn drop_unlogged_entries(&mut self, dir: &Arc<Inode>) -> Result<()> {
        for range in self.logged_ranges(dir.id.ino)? {
            for entry in self.entries(dir, range)? {
                // The creation and removal of subvolumes is never logged.
                if entry.ino().is_some() && !self.is_logged(dir.id.ino, &entry)? {
                    self.unlink(dir, entry)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the ranges for which the log of a directory is authoritative, in order. Overlapping
    /// ranges are merged.
    fn logged_ranges(&self, dir: Ino) -> Result<Vec<RangeInclusive<DirIndex>>> {
        let mut ranges: Vec<RangeInclusive<DirIndex>> = Vec::new();
        let key = |offset| Key::new(dir.0, ItemType::DIR_LOG_INDEX, offset);
        for item in self.log.range(key(0)..=key(u64::MAX)) {
            let item = item?;
            let Some(end) = item.first_chunk().map(|end| DirIndex(u64::from_le_bytes(*end))) else { continue };
            let start = DirIndex(item.key.offset);
            match ranges.last_mut() {
                Some(last) if start <= *last.end() => *last = *last.start()..=end.max(*last.end()),
                _ if start <= end => ranges.push(start..=end),
                _ => {}
            }
        }
        Ok(ranges)
    }

    fn is_logged(&self, dir: Ino, entry: &Entry) -> Result<bool> {
        let key = Key::new(dir.0, ItemType::DIR_INDEX, entry.index.0);
        let Some(item) = self.log.get(&key)? else { return Ok(false) };
        Ok(*only_entry(&key, &item)?.name == *entry.name)
    }

    /// Replays an entry of a directory. If the log also has the inode's reference for the name,
    /// that reference is replayed later and takes precedence; here only conflicting entries are
    /// deleted.
    pub(super) fn replay_entry(&mut self, item: &Item) -> Result<()> {
        let key = &item.key;
        let dir = directory(self.owner(key)?, key)?;
        let entry = only_entry(key, item)?;
        if entry.location.item_type != ItemType::INODE_ITEM {
            return Ok(());
        }
        let (name, index) = (entry.name, DirIndex(key.offset));
        let target = Target { location: entry.location, file_type: entry.file_type };
        let ino = Ino(entry.location.objectid);
        // An entry whose inode does not exist replaces no other entry.
        let Some(inode) = self.inode(ino)? else { return Ok(()) };
        if let Some(there) = self.entry_named(&dir, name)? {
            if there.target == target {
                return Ok(());
            }
            self.unlink(&dir, there)?;
        }
        if self.has_logged_name(ino, dir.id.ino, name)? || self.entry_numbered(&dir, index)?.is_some() {
            return Ok(());
        }
        self.link(&dir, name, index, &inode)
    }

    /// Whether the log contains a name as a reference of its inode.
    fn has_logged_name(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<bool> {
        let keys = [
            Key::new(ino.0, ItemType::INODE_REF, parent.0),
            Key::new(ino.0, ItemType::INODE_EXTREF, extref_hash(parent, name)),
        ];
        for key in keys {
            if let Some(item) = self.log.get(&key)?
                && names_in(&key, &item)?.iter().any(|((dir, other), _)| *dir == parent && **other == *name)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replays the names of an inode under one key: the inode gets these names and no others under
    /// that key, and conflicting entries are deleted.
    pub(super) fn replay_names(&mut self, item: &Item) -> Result<()> {
        let key = &item.key;
        if key.item_type == ItemType::INODE_REF && key.objectid == key.offset {
            // The root directory's reference to itself is not a name.
            return Ok(());
        }
        let inode = self.owner(key)?;
        if key.item_type == ItemType::INODE_REF && self.inode(Ino(key.offset))?.is_none() {
            // A log does not contain every new directory with its contents.
            return Ok(());
        }
        let logged = names_in(key, item)?;
        self.drop_unlogged_names(&inode, key, &logged)?;
        for ((parent, name), index) in logged {
            let Some(dir) = self.inode(parent)? else { continue };
            let dir = directory(dir, key)?;
            if let Some(there) = self.entry_named(&dir, &name)? {
                if there.ino() == Some(inode.id.ino) && there.index == index {
                    continue;
                }
                self.unlink(&dir, there)?;
            }
            if let Some(there) = self.entry_numbered(&dir, index)? {
                self.unlink(&dir, there)?;
            }
            self.link(&dir, &name, index, &inode)?;
        }
        Ok(())
    }

    /// Removes the names that an inode has under a key and that the log lacks.
    fn drop_unlogged_names(&mut self, inode: &Arc<Inode>, key: &Key, logged: &[((Ino, Name), DirIndex)]) -> Result<()> {
        let mut under_key: Vec<(Ino, Name)> = Vec::new();
        if inode.read().committed
            && let Some(item) = self.tree.get(key)?
        {
            under_key.extend(names_in(key, &item)?.into_iter().map(|(name, _)| name));
        }
        if key.item_type == ItemType::INODE_REF {
            // New names get the key of their directory.
            let added = |state: &InodeState| -> Vec<(Ino, Name)> {
                let added = state.pending.refs.iter().filter(|(_, change)| change.now.is_some());
                added.map(|(name, _)| name.clone()).filter(|(parent, _)| parent.0 == key.offset).collect()
            };
            under_key.extend(added(&inode.read()));
        }
        for (parent, name) in under_key {
            if logged.iter().any(|(other, _)| *other == (parent, name.clone())) {
                continue;
            }
            let Some(dir) = self.inode(parent)? else { continue };
            // The name may have been deleted already with a range of its directory.
            if let Some(there) = self.entry_named(&dir, &name)?
                && there.ino() == Some(inode.id.ino)
            {
                self.unlink(&dir, there)?;
            }
        }
        Ok(())
    }
}

/// Returns the names in an `INODE_REF` or `INODE_EXTREF` item, with their indices.
fn names_in(key: &Key, item: &[u8]) -> Result<Vec<((Ino, Name), DirIndex)>> {
    let names = inode_backrefs(key, item).map(|entry| {
        let entry = entry?;
        Ok(((entry.parent, entry.name.into()), entry.index))
    });
    names.collect()
}

/// Returns the inode if it is a directory, otherwise an error.
fn directory(inode: Arc<Inode>, key: &Key) -> Result<Arc<Inode>> {
    let is_dir = inode.read().is_dir();
    if is_dir { Ok(inode) } else { Err(damaged(key, "there is a name in something that is no directory")) }
}
