//! Gathers the changes of an inode since a commit from its items.

use ubtrfs_format::items::{FileExtent, InodeItem, dir_entries};
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_fs::{Errno, Result};
use ubtrfs_tree::Item;

use crate::content::{Piece, extend};
use crate::file::{ChangedContent, ChangedSubvolume, ChangedXattr, FileChange, WhatChanged};
use crate::limits::{self, Budget, MAX_CHANGE, MAX_NAMES};
use crate::paths::{Names, Reference};

/// What has been gathered of an inode of which some items are in leaves that were written since.
pub(crate) struct GatheredSince {
    pub(crate) ino: Ino,
    generation: Generation,
    xattrs: Vec<ChangedXattr>,
    subvolumes: Vec<ChangedSubvolume>,
    extents: Vec<ChangedContent>,
    /// How much memory xattrs and entries of subvolumes may still take.
    room: Budget,
}

impl GatheredSince {
    pub(crate) fn new(ino: Ino, generation: Generation) -> Self {
        let room = Budget::new(MAX_CHANGE);
        Self { ino, generation, xattrs: Vec::new(), subvolumes: Vec::new(), extents: Vec::new(), room }
    }

    /// Adds an item, if it is not older than the commit; most items are older than their leaf.
    /// `E2BIG` if the inode's changes take more than [`MAX_CHANGE`] bytes of memory.
    pub(crate) fn add(&mut self, item: &Item) -> Result<()> {
        match item.key.item_type {
            ItemType::XATTR_ITEM => {
                for entry in dir_entries(item) {
                    let entry = entry?;
                    if entry.transid >= self.generation {
                        self.room.take(limits::xattr(entry.name, entry.value))?;
                        let (name, value) = (entry.name.to_vec(), entry.value.to_vec());
                        self.xattrs.push(ChangedXattr { name, old: None, new: Some(value) });
                    }
                }
            }
            ItemType::DIR_INDEX => {
                for entry in dir_entries(item) {
                    let entry = entry?;
                    if entry.transid >= self.generation && entry.location.item_type == ItemType::ROOT_ITEM {
                        self.room.take(limits::subvolume(entry.name))?;
                        let (name, id) = (entry.name.to_vec(), TreeId(entry.location.objectid));
                        self.subvolumes.push(ChangedSubvolume { name, old: None, new: Some(id) });
                    }
                }
            }
            ItemType::EXTENT_DATA if FileExtent::parse(item)?.generation >= self.generation => {
                // The end of the file is known only when all is gathered.
                if let Some(piece) = Piece::of(item)? {
                    extend(&mut self.extents, ChangedContent { range: piece.range(), old: None, new: piece.content() });
                }
                if (self.extents.len() * size_of::<ChangedContent>()) as u64 > MAX_CHANGE {
                    return Err(Errno::TOOBIG.into());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Shows what was gathered, if the inode changed. Returns whether to go on.
    pub(crate) fn show(self, names: &mut Names, visit: &mut dyn FnMut(FileChange) -> bool) -> Result<bool> {
        let Some(item) = names.tree().get(&Key::new(self.ino.0, ItemType::INODE_ITEM, 0))? else { return Ok(true) };
        let item = InodeItem::parse(&item)?;
        let is_made = item.generation >= self.generation;
        if item.transid < self.generation && self.is_empty() {
            return Ok(true);
        }
        let (mut all, mut added) = (Vec::new(), Vec::new());
        let mut room = Budget::new(MAX_NAMES);
        for reference in names.references(self.ino)? {
            let is_added = is_made || self.was_added(names, &reference)?;
            let name = names.name(reference)?;
            room.take(limits::name(&name))?;
            if is_added {
                added.push(name.clone());
            }
            all.push(name);
        }
        // An inode without names was unlinked while it was open, and is in no directory.
        if all.is_empty() {
            return Ok(true);
        }
        let what = if is_made { WhatChanged::Made } else { WhatChanged::Changed };
        let mut change = FileChange::new(self.ino, what, None, Some(item));
        (change.new_names, change.names_added) = (all, added);
        if !is_made {
            change.content = self.extents;
            for changed in change.content.iter_mut().filter(|changed| changed.new == crate::Content::Data) {
                changed.range.end = changed.range.end.min(item.size);
            }
            change.content.retain(|changed| !changed.range.is_empty());
            (change.xattrs, change.subvolumes) = (self.xattrs, self.subvolumes);
        }
        Ok(visit(change))
    }

    fn is_empty(&self) -> bool {
        self.xattrs.is_empty() && self.subvolumes.is_empty() && self.extents.is_empty()
    }

    /// Returns whether an entry was made since. The root directory has no entry.
    fn was_added(&self, names: &Names, reference: &Reference) -> Result<bool> {
        if self.ino == Ino::ROOT_DIR {
            return Ok(false);
        }
        let key = Key::new(reference.parent.0, ItemType::DIR_INDEX, reference.index.0);
        let Some(item) = names.tree().get(&key)? else { return Ok(false) };
        let entry = dir_entries(&item).next().transpose()?;
        Ok(entry.is_some_and(|entry| entry.transid >= self.generation))
    }
}
