//! The edits of a frozen inode to its subvolume's tree.

use std::ops::Range;

use ubtrfs_file::{CommittedExtents, Mapped, Piece};
use ubtrfs_format::items::{DIR_ENTRY_HEADER, DataRef, DirEntry, FileType, InodeFlags, InodeItem, encode_dir_entry};
use ubtrfs_format::{Generation, Incompat, Ino, ItemType, Key, name_hash, objectid};
use ubtrfs_tree::{EditBatch, Patch, Snapshot};

use super::data_refs::DataRefDeltas;
use super::extent_refs::User;
use crate::backrefs::NameItems;
use crate::committed::Committed;
use crate::error::Result;
use crate::inode::{Frozen, InodeBatch, InodeId, OrphanEdit};
use crate::used_features::UsedFeatures;

/// Builds the edits of one subvolume.
pub(super) struct Builder<'a> {
    pub(super) features: &'a UsedFeatures,
    pub(super) committed: &'a Committed,
    pub(super) tree: &'a Snapshot,
    pub(super) generation: Generation,
    pub(super) edits: &'a mut EditBatch,
    pub(super) refs: &'a mut DataRefDeltas,
}

impl Builder<'_> {
    /// Adds the edits of one inode; `known` says that the tree has the inode. Returns the bytes
    /// that its content takes.
    pub(super) fn inode(&mut self, id: InodeId, frozen: &Frozen, known: bool) -> Result<u64> {
        let ino = id.ino;
        let batch = &frozen.batch;
        let orphan = Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, ino.0);
        if batch.gone {
            if known {
                self.edits.delete_range(Key::new(ino.0, ItemType(0), 0)..=Key::new(ino.0, ItemType(u8::MAX), u64::MAX));
                self.edits.delete(orphan);
            }
            return Ok(0);
        }
        match batch.orphan {
            OrphanEdit::None => {}
            OrphanEdit::Add => self.edits.put(orphan, Vec::new()),
            OrphanEdit::Remove => {
                self.edits.delete(orphan);
                if known && frozen.item.flags & InodeFlags::RO_VERITY == 0 {
                    // Items of an attempt to enable fs-verity that a crash has interrupted.
                    let (first, last) = (ItemType::VERITY_DESC_ITEM, ItemType::VERITY_MERKLE_ITEM);
                    self.edits.delete_range(Key::new(ino.0, first, 0)..=Key::new(ino.0, last, u64::MAX));
                }
            }
        }
        let nbytes = if batch.layout.is_empty() {
            if known { self.committed_nbytes(ino)? } else { 0 }
        } else {
            self.content(id, frozen, known)?
        };
        let item = InodeItem { nbytes, transid: self.generation, ..frozen.item };
        self.edits.put(Key::new(ino.0, ItemType::INODE_ITEM, 0), item.to_bytes().to_vec());
        self.names(ino, batch, known)?;
        self.entries(ino, batch)?;
        self.xattrs(ino, batch)?;
        for (key, item) in batch.verity.iter().flat_map(|items| items.of(ino)) {
            self.edits.put(key, item.clone());
        }
        Ok(nbytes)
    }

    fn committed_nbytes(&self, ino: Ino) -> Result<u64> {
        let item = self.tree.get(&Key::new(ino.0, ItemType::INODE_ITEM, 0))?;
        Ok(item.map(|item| InodeItem::parse(&item)).transpose()?.map_or(0, |item| item.nbytes))
    }

    /// The items of the inode's names.
    fn names(&mut self, ino: Ino, batch: &InodeBatch, known: bool) -> Result<()> {
        let superblock = &self.committed.superblock;
        let extended = superblock.incompat.contains(Incompat::EXTENDED_IREF);
        let tree = known.then_some(self.tree);
        for (key, item) in NameItems::after(ino, tree, &batch.refs, extended, superblock.node_size as usize)?.iter() {
            match item {
                Some(item) => self.edits.put(key, item),
                None if known => self.edits.delete(key),
                None => {}
            }
        }
        Ok(())
    }

    /// Adds entries of a directory, by hash and by index.
    fn entries(&mut self, ino: Ino, batch: &InodeBatch) -> Result<()> {
        for (name, change) in &batch.entries.by_name {
            let key = Key::new(ino.0, ItemType::DIR_ITEM, name_hash(name));
            let patch = match change.now {
                Some((_, target)) => Patch::PutEntry {
                    location: target.location,
                    transid: self.generation,
                    file_type: target.file_type,
                    name: name.to_vec(),
                    value: Vec::new(),
                },
                None => Patch::RemoveEntry { name: name.to_vec() },
            };
            self.edits.patch(key, patch)?;
        }
        for (index, entry) in &batch.entries.by_number {
            let key = Key::new(ino.0, ItemType::DIR_INDEX, index.0);
            match entry {
                Some((name, target)) => {
                    let mut item = Vec::with_capacity(DIR_ENTRY_HEADER + name.len());
                    let entry = DirEntry {
                        location: target.location,
                        transid: self.generation,
                        file_type: target.file_type,
                        name,
                        value: b"",
                    };
                    encode_dir_entry(&mut item, &entry);
                    self.edits.put(key, item);
                }
                None => self.edits.delete(key),
            }
        }
        Ok(())
    }

    fn xattrs(&mut self, ino: Ino, batch: &InodeBatch) -> Result<()> {
        for (name, value) in batch.xattrs.iter() {
            let key = Key::new(ino.0, ItemType::XATTR_ITEM, name_hash(name));
            let patch = match value {
                Some(value) => Patch::PutEntry {
                    location: Key::MIN,
                    transid: self.generation,
                    file_type: FileType::Xattr,
                    name: name.to_vec(),
                    value: value.to_vec(),
                },
                None => Patch::RemoveEntry { name: name.to_vec() },
            };
            self.edits.patch(key, patch)?;
        }
        Ok(())
    }

    /// Writes the file extent items. Items in changed ranges are deleted; pieces that extend into
    /// such a range from outside are written again, trimmed. Each put adds a reference, and each
    /// item that the merge reports as removed drops one.
    fn content(&mut self, id: InodeId, frozen: &Frozen, known: bool) -> Result<u64> {
        let no_holes = self.committed.superblock.incompat.contains(Incompat::NO_HOLES);
        let sector = u64::from(self.committed.superblock.sector_size);
        let end_of_file = frozen.item.size.next_multiple_of(sector);
        let mut nbytes = if known { self.committed_nbytes(id.ino)? } else { 0 };
        let layout = &frozen.batch.layout;
        let runs = covered_runs(layout.iter().map(|(start, len, _)| (start, len)));
        let mut untouched_from = 0;
        for (number, (from, to)) in runs.iter().copied().enumerate() {
            let untouched_to = runs.get(number + 1).map_or(u64::MAX, |(next, _)| *next);
            if known {
                nbytes = nbytes.saturating_sub(self.clear(id, from..to, untouched_from..untouched_to)?);
            }
            untouched_from = to;
        }
        for (start, len, piece) in layout.iter() {
            self.features.assert_has(piece, self.generation);
            let mapped = match piece {
                Piece::Hole if no_holes || start >= end_of_file => continue,
                Piece::Hole => Mapped { start, len: len.min(end_of_file - start), piece: piece.clone() },
                _ => Mapped { start, len, piece: piece.clone() },
            };
            nbytes = nbytes.saturating_add(mapped.allocated());
            self.put_piece(id, &mapped);
        }
        Ok(nbytes)
    }

    /// Deletes the committed items in `run` and returns the bytes that they took. Within
    /// `untouched`, from the end of the run before to the start of the next, nothing else changes.
    fn clear(&mut self, id: InodeId, run: Range<u64>, untouched: Range<u64>) -> Result<u64> {
        let key = |offset| Key::new(id.ino.0, ItemType::EXTENT_DATA, offset);
        let extents = CommittedExtents::new(self.tree.clone(), id.ino, self.committed.superblock.sector_size);
        let mut cleared = 0;
        // The item that contains the first byte may start before the run, and the item that
        // contains the last byte may end behind it.
        for item in extents.items(&(run.start.saturating_sub(1)..run.end)) {
            let item = item?;
            let Some(within) = item.clone().clipped(&run) else { continue };
            cleared += within.allocated();
            if matches!(item.piece, Piece::Inline(_)) {
                continue;
            }
            // If the item starts before `untouched`, the rest at the left is the rest at the right
            // of the run before, which is written already.
            if item.start < run.start && item.start >= untouched.start {
                self.put_piece(id, &Mapped { len: run.start - item.start, ..item.clone() });
            }
            let end = item.end().min(untouched.end);
            if let Some(keep) = item.clipped(&(run.end..end)) {
                self.put_piece(id, &keep);
            }
        }
        self.edits.delete_range(key(run.start)..=key(run.end - 1));
        Ok(cleared)
    }

    fn put_piece(&mut self, id: InodeId, mapped: &Mapped) {
        let item = mapped.piece.to_item(mapped.len, self.generation);
        self.edits.put(Key::new(id.ino.0, ItemType::EXTENT_DATA, mapped.start), item);
        if let Piece::Extent(extent) = &mapped.piece {
            let data = DataRef { root: id.subvolume, ino: id.ino, offset: mapped.start.wrapping_sub(extent.offset) };
            self.refs.add(extent.disk_bytenr, extent.disk_num_bytes, User::File(data), 1);
        }
    }
}

/// Joins adjacent ranges.
fn covered_runs(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (start, len) in ranges {
        let end = start.saturating_add(len);
        match runs.last_mut() {
            Some((_, to)) if *to == start => *to = end,
            _ => runs.push((start, end)),
        }
    }
    runs
}
