//! Gathers the items of an inode that differ between two subvolumes.

use std::collections::BTreeMap;

use ubtrfs_format::items::{InodeItem, dir_entries};
use ubtrfs_format::posix::S_IFMT;
use ubtrfs_format::{Ino, ItemType, Key, TreeId};
use ubtrfs_fs::{Errno, Result};
use ubtrfs_tree::{Difference, Item, Snapshot};

use crate::content::{ContentChanges, Piece};
use crate::file::{ChangedSubvolume, ChangedXattr, FileChange, FileName, WhatChanged, changed_attributes};
use crate::limits::{self, Budget, MAX_CHANGE};
use crate::paths::Names;

/// What has been gathered of an inode that differs.
pub(crate) struct Gathered {
    pub(crate) ino: Ino,
    old: Option<InodeItem>,
    new: Option<InodeItem>,
    xattrs: Vec<ChangedXattr>,
    subvolumes: Vec<ChangedSubvolume>,
    content: ContentChanges,
    /// How much memory xattrs and entries of subvolumes may still take.
    room: Budget,
}

impl Gathered {
    /// Begins with the inode's first difference.
    pub(crate) fn new(new_tree: &Snapshot, first: &Difference) -> Result<Self> {
        let ino = Ino(first.key.objectid);
        let parsed = |item: Option<&Item>| item.map(|item| InodeItem::parse(item)).transpose();
        let (old, new) = if first.key.item_type == ItemType::INODE_ITEM {
            (parsed(first.old.as_ref())?, parsed(first.new.as_ref())?)
        } else {
            // The inode item is the same in both.
            let item = new_tree.get(&Key::new(ino.0, ItemType::INODE_ITEM, 0))?;
            let item = parsed(item.as_ref())?;
            (item, item)
        };
        let size = |item: Option<InodeItem>| item.map_or(0, |item| item.size);
        let content = ContentChanges::new(size(old), size(new));
        let room = Budget::new(MAX_CHANGE);
        Ok(Self { ino, old, new, xattrs: Vec::new(), subvolumes: Vec::new(), content, room })
    }

    /// The inode's attributes in both subvolumes, if both have it. Another inode that has got the
    /// number since is not the same.
    fn in_both(&self) -> Option<(&InodeItem, &InodeItem)> {
        let (old, new) = (self.old.as_ref()?, self.new.as_ref()?);
        let is_same = old.generation == new.generation && old.mode & S_IFMT == new.mode & S_IFMT;
        is_same.then_some((old, new))
    }

    /// Adds a difference. `E2BIG` if the inode's differences take more than [`MAX_CHANGE`] bytes of
    /// memory.
    pub(crate) fn add(&mut self, difference: &Difference) -> Result<()> {
        if self.in_both().is_none() {
            return Ok(());
        }
        let Difference { key, old, new } = difference;
        let (old, new) = (old.as_ref(), new.as_ref());
        match key.item_type {
            ItemType::XATTR_ITEM => self.add_xattrs(old, new),
            ItemType::DIR_INDEX => self.add_subvolumes(old, new),
            ItemType::EXTENT_DATA => {
                let piece = |item: Option<&Item>| item.map_or(Ok(None), Piece::of);
                self.content.add(key.offset, piece(old)?, piece(new)?);
                if self.content.memory() as u64 > MAX_CHANGE { Err(Errno::TOOBIG.into()) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    fn add_xattrs(&mut self, old: Option<&Item>, new: Option<&Item>) -> Result<()> {
        let mut changed: BTreeMap<Vec<u8>, ChangedXattr> = BTreeMap::new();
        for (item, is_new) in [(old, false), (new, true)] {
            for entry in item.into_iter().flat_map(|item| dir_entries(item)) {
                let entry = entry?;
                self.room.take(limits::xattr(entry.name, entry.value))?;
                let name = entry.name.to_vec();
                let xattr = ChangedXattr { name: name.clone(), old: None, new: None };
                let xattr = changed.entry(name).or_insert(xattr);
                *(if is_new { &mut xattr.new } else { &mut xattr.old }) = Some(entry.value.to_vec());
            }
        }
        self.xattrs.extend(changed.into_values().filter(|xattr| xattr.old != xattr.new));
        Ok(())
    }

    fn add_subvolumes(&mut self, old: Option<&Item>, new: Option<&Item>) -> Result<()> {
        let mut changed: BTreeMap<Vec<u8>, ChangedSubvolume> = BTreeMap::new();
        for (item, is_new) in [(old, false), (new, true)] {
            for entry in item.into_iter().flat_map(|item| dir_entries(item)) {
                let entry = entry?;
                if entry.location.item_type != ItemType::ROOT_ITEM {
                    continue;
                }
                self.room.take(limits::subvolume(entry.name))?;
                let name = entry.name.to_vec();
                let subvolume = ChangedSubvolume { name: name.clone(), old: None, new: None };
                let subvolume = changed.entry(name).or_insert(subvolume);
                let id = TreeId(entry.location.objectid);
                *(if is_new { &mut subvolume.new } else { &mut subvolume.old }) = Some(id);
            }
        }
        self.subvolumes.extend(changed.into_values().filter(|subvolume| subvolume.old != subvolume.new));
        Ok(())
    }

    /// Shows what was gathered, if anything. Returns whether to go on.
    pub(crate) fn show(
        mut self,
        old_names: &mut Names,
        new_names: &mut Names,
        visit: &mut dyn FnMut(FileChange) -> bool,
    ) -> Result<bool> {
        // An inode without names was unlinked while it was open, and is in no directory.
        let old_names = if self.old.is_some() { old_names.of(self.ino)? } else { Vec::new() };
        let new_names = if self.new.is_some() { new_names.of(self.ino)? } else { Vec::new() };
        self.old = self.old.filter(|_| !old_names.is_empty());
        self.new = self.new.filter(|_| !new_names.is_empty());
        let Some((old, new)) = self.in_both() else {
            return Ok(self.show_removed(old_names, visit) && self.show_made(new_names, visit));
        };
        let change = FileChange {
            names_removed: absent(&old_names, &new_names),
            names_added: absent(&new_names, &old_names),
            attributes: changed_attributes(old, new),
            ..FileChange::new(self.ino, WhatChanged::Changed, self.old, self.new)
        };
        let mut subvolumes = self.subvolumes;
        subvolumes.sort_by(|a, b| a.name.cmp(&b.name));
        let mut xattrs = self.xattrs;
        xattrs.sort_by(|a, b| a.name.cmp(&b.name));
        let change = FileChange { old_names, new_names, xattrs, subvolumes, content: self.content.finish(), ..change };
        Ok(change.is_empty() || visit(change))
    }

    fn show_removed(&self, names: Vec<FileName>, visit: &mut dyn FnMut(FileChange) -> bool) -> bool {
        let Some(old) = self.old else { return true };
        let change = FileChange::new(self.ino, WhatChanged::Removed, Some(old), None);
        visit(FileChange { names_removed: names.clone(), old_names: names, ..change })
    }

    fn show_made(&self, names: Vec<FileName>, visit: &mut dyn FnMut(FileChange) -> bool) -> bool {
        let Some(new) = self.new else { return true };
        let change = FileChange::new(self.ino, WhatChanged::Made, None, Some(new));
        visit(FileChange { names_added: names.clone(), new_names: names, ..change })
    }
}

/// The names in `names` that are not in `others`.
fn absent(names: &[FileName], others: &[FileName]) -> Vec<FileName> {
    let others: std::collections::HashSet<_> = others.iter().map(FileName::entry).collect();
    names.iter().filter(|name| !others.contains(&name.entry())).cloned().collect()
}
