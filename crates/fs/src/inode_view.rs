//! An inode as programs see it: the batch of the open transaction, above the batch of the commit in
//! flight, above the committed trees.
//!
//! Batches are read before the trees, and all of them while the inode's lock is held, since
//! publishing a commit moves the frozen changes into the trees.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use ubtrfs_file::Mapped;
use ubtrfs_format::items::{dir_entries, inode_backrefs, inode_refs};
use ubtrfs_format::{Ino, ItemType, Key, extref_hash, name_hash};
use ubtrfs_tree::Item;

use crate::error::Result;
use crate::file_map::FileMap;
use crate::fs_info::FsInfo;
use crate::inode::{EMPTY_SUBVOLUME_INO, EntryChange, InodeId, InodeState};

/// An inode whose lock is held, with all its layers.
#[derive(Clone, Copy)]
pub(crate) struct InodeView<'a> {
    info: &'a FsInfo,
    id: InodeId,
    state: &'a InodeState,
}

impl FsInfo {
    /// The inode `id`, whose lock the caller holds, with all its layers.
    pub(crate) fn view<'a>(&'a self, id: InodeId, state: &'a InodeState) -> InodeView<'a> {
        InodeView { info: self, id, state }
    }
}

impl InodeView<'_> {
    fn key(&self, item_type: ItemType, offset: u64) -> Key {
        Key::new(self.id.ino.0, item_type, offset)
    }

    /// Whether the committed tree of the subvolume has items of the inode.
    fn has_items(&self) -> bool {
        self.state.committed && self.id.ino != EMPTY_SUBVOLUME_INO
    }

    /// Returns an item of the inode in the committed tree.
    pub(crate) fn committed_item(&self, item_type: ItemType, offset: u64) -> Result<Option<Item>> {
        if !self.has_items() {
            return Ok(None);
        }
        let committed = self.info.committed();
        Ok(committed.tree(self.id.subvolume)?.get(&self.key(item_type, offset))?)
    }

    /// Returns the value of an xattr.
    pub(crate) fn xattr(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.state.no_xattrs {
            return Ok(None);
        }
        if let Some(value) = self.state.batches().find_map(|batch| batch.xattrs.get(name)) {
            return Ok(value.as_ref().map(|value| value.to_vec()));
        }
        let item = self.committed_item(ItemType::XATTR_ITEM, name_hash(name))?;
        for entry in item.iter().flat_map(|item| dir_entries(item)) {
            let entry = entry?;
            if entry.name == name {
                return Ok(Some(entry.value.to_vec()));
            }
        }
        Ok(None)
    }

    /// Returns the names of all xattrs.
    pub(crate) fn xattr_names(&self) -> Result<BTreeSet<Vec<u8>>> {
        let mut names = BTreeSet::new();
        if self.state.no_xattrs {
            return Ok(names);
        }
        if self.has_items() {
            let all = self.key(ItemType::XATTR_ITEM, 0)..=self.key(ItemType::XATTR_ITEM, u64::MAX);
            let committed = self.info.committed();
            for item in committed.tree(self.id.subvolume)?.range(all) {
                for entry in dir_entries(&item?) {
                    names.insert(entry?.name.to_vec());
                }
            }
        }
        for (name, value) in self.state.batches().rev().flat_map(|batch| batch.xattrs.iter()) {
            if value.is_some() {
                names.insert(name.to_vec());
            } else {
                names.remove(&**name);
            }
        }
        Ok(names)
    }

    /// Returns the lengths of the values of all xattrs whose names have this hash. They share an
    /// item.
    pub(crate) fn xattr_lengths(&self, hash: u64) -> Result<BTreeMap<Vec<u8>, usize>> {
        let mut lengths = BTreeMap::new();
        let item = if self.state.no_xattrs { None } else { self.committed_item(ItemType::XATTR_ITEM, hash)? };
        for entry in item.iter().flat_map(|item| dir_entries(item)) {
            let entry = entry?;
            lengths.insert(entry.name.to_vec(), entry.value.len());
        }
        for (name, value) in self.state.batches().rev().flat_map(|batch| batch.xattrs.with_hash(hash)) {
            match value {
                None => drop(lengths.remove(&**name)),
                Some(value) => drop(lengths.insert(name.to_vec(), value.len())),
            }
        }
        Ok(lengths)
    }

    /// Returns the newest change of an entry of the directory since the last commit, if any.
    pub(crate) fn entry_change(&self, name: &[u8]) -> Option<EntryChange> {
        self.state.batches().find_map(|batch| batch.entries.by_name.get(name)).copied()
    }

    /// Returns the names of the directory's entries that have this hash. They share an item.
    pub(crate) fn entries_with_hash(&self, hash: u64) -> Result<BTreeSet<Vec<u8>>> {
        let mut names = BTreeSet::new();
        let item = self.committed_item(ItemType::DIR_ITEM, hash)?;
        for entry in item.iter().flat_map(|item| dir_entries(item)) {
            names.insert(entry?.name.to_vec());
        }
        for (name, change) in self.state.batches().rev().flat_map(|batch| &batch.entries.by_name) {
            if change.now.is_none() {
                names.remove(&**name);
            } else if name_hash(name) == hash {
                names.insert(name.to_vec());
            }
        }
        Ok(names)
    }

    /// Returns the names of the inode that would share an `INODE_EXTREF` item of this hash.
    pub(crate) fn names_with_hash(&self, hash: u64) -> Result<BTreeSet<(Ino, Vec<u8>)>> {
        let mut names = BTreeSet::new();
        let key = self.key(ItemType::INODE_EXTREF, hash);
        let item = self.committed_item(key.item_type, key.offset)?;
        for entry in item.iter().flat_map(|item| inode_backrefs(&key, item)) {
            let entry = entry?;
            names.insert((entry.parent, entry.name.to_vec()));
        }
        for ((parent, name), change) in self.state.batches().rev().flat_map(|batch| batch.refs.iter()) {
            if change.now.is_none() {
                names.remove(&(*parent, name.to_vec()));
            } else if extref_hash(*parent, name) == hash {
                names.insert((*parent, name.to_vec()));
            }
        }
        Ok(names)
    }

    /// Returns the names of the inode with their directories, about `most` of the committed ones at
    /// most.
    pub(crate) fn names(&self, most: usize) -> Result<BTreeSet<(Ino, Vec<u8>)>> {
        let mut names = BTreeSet::new();
        let refs = self.key(ItemType::INODE_REF, 0)..=self.key(ItemType::INODE_EXTREF, u64::MAX);
        for item in self.info.committed().tree(self.id.subvolume)?.range(refs) {
            let item = item?;
            for entry in inode_backrefs(&item.key, &item) {
                let entry = entry?;
                names.insert((entry.parent, entry.name.to_vec()));
            }
            if names.len() >= most {
                break;
            }
        }
        for ((parent, name), change) in self.state.batches().rev().flat_map(|batch| batch.refs.iter()) {
            let name = (*parent, name.to_vec());
            if change.now.is_none() {
                names.remove(&name);
            } else {
                names.insert(name);
            }
        }
        Ok(names)
    }

    /// Returns the name that paths of the inode show: the oldest one in the directory with the
    /// highest number. Names in extended references are left out, as in the kernel's driver.
    pub(crate) fn shown_name(&self) -> Result<Option<(Ino, Vec<u8>)>> {
        let mut changes = BTreeMap::new();
        for ((parent, name), change) in self.state.batches().rev().flat_map(|batch| batch.refs.iter()) {
            changes.insert((*parent, &**name), change.now);
        }
        // Commits add the names of a directory in this order, behind the existing ones.
        let added = changes.iter().filter_map(|((parent, name), index)| Some((*parent, Reverse((*index)?), *name)));
        let added = added.max().map(|(parent, _, name)| (parent, name.to_vec()));
        let mut committed = None;
        if self.has_items() {
            let refs = self.key(ItemType::INODE_REF, 0)..=self.key(ItemType::INODE_REF, u64::MAX);
            for item in self.info.committed().tree(self.id.subvolume)?.range(refs) {
                let item = item?;
                let parent = Ino(item.key.offset);
                for name in inode_refs(&item) {
                    let name = name?.name;
                    if !changes.contains_key(&(parent, name)) {
                        committed = Some((parent, name.to_vec()));
                        break;
                    }
                }
            }
        }
        Ok(match (committed, added) {
            (Some(committed), Some(added)) if added.0 > committed.0 => Some(added),
            (committed, added) => committed.or(added),
        })
    }

    /// Returns the directory of an inode that has only one name: the `..` of a directory.
    pub(crate) fn parent(&self) -> Result<Option<Ino>> {
        let newest = self.state.batches().find_map(|batch| batch.refs.iter().find(|(_, change)| change.now.is_some()));
        if let Some(((parent, _), _)) = newest {
            return Ok(Some(*parent));
        }
        let refs = self.key(ItemType::INODE_REF, 0)..=self.key(ItemType::INODE_REF, u64::MAX);
        let committed = self.info.committed();
        let first = committed.tree(self.id.subvolume)?.range(refs).next();
        Ok(first.transpose()?.map(|item| Ino(item.key.offset)))
    }

    /// Returns the map of the file below its batches.
    pub(crate) fn map(&self) -> Result<FileMap> {
        FileMap::new(&self.info.committed(), self.id, self.state)
    }

    /// Returns the pieces of the file in a range, without dirty data, in order and without gaps.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Result<Vec<Mapped>> {
        Ok(self.map()?.with_stack(self.state, |stack| stack.resolve(range))?)
    }
}
