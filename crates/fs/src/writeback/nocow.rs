//! Decides which data overwrites existing extents: preallocated ones, and those of nodatacow files.
//!
//! Preallocated space reads as zeroes in every durable state, so writing to it changes none of
//! them; the item that makes it data becomes durable only after the data. Existing data is
//! overwritten only for files without copy-on-write. Neither is allowed if the extent is shared:
//! with another file, another offset of the file, or a snapshot.
//!
//! The inode's flags in the data's own transaction apply. For data that a commit has yet to write,
//! these are the flags that were frozen with it (invariant 2).

use std::ops::Range;

use ubtrfs_file::{ExtentPiece, Layout, Mapped, Piece, Stack};
use ubtrfs_format::Generation;
use ubtrfs_format::items::{Compression, InodeFlags};

use super::owner::Writeback;
use crate::error::Result;
use crate::inode::{InodeId, InodeState};

/// A part of the range to be written.
pub(crate) struct Part {
    pub(crate) len: u64,
    /// The existing extent that it overwrites; `None` if it needs a new one.
    pub(crate) place: Option<ExtentPiece>,
}

/// Whether data of a file with these inode flags may be written in place at all.
pub(crate) fn may_be_nocow(flags: u64) -> bool {
    flags & (InodeFlags::PREALLOC | InodeFlags::NODATACOW) != 0
}

/// Whether data of a file with these inode flags overwrites its older data.
pub(crate) fn is_nodatacow(flags: u64) -> bool {
    flags & InodeFlags::NODATACOW != 0
}

impl Writeback {
    /// Divides a range of a file into parts that overwrite their extent and parts that need a new
    /// one. `flags` are the inode's flags in the transaction of this generation, whose data is
    /// written. `layout` is that of a transaction that is being committed, above the trees; `None`
    /// stands for all layers.
    pub(crate) fn parts_to_write(
        &self,
        id: InodeId,
        state: &InodeState,
        flags: u64,
        (generation, layout): (Generation, Option<&Layout>),
        range: Range<u64>,
    ) -> Result<Vec<Part>> {
        let len = range.end - range.start;
        if !may_be_nocow(flags) {
            return Ok(vec![Part { len, place: None }]);
        }
        let map = self.info.view(id, state).map()?;
        let pieces = match layout {
            Some(layout) => Stack::new(&[layout], map.bottom()).resolve(range)?,
            None => map.with_stack(state, |stack| stack.resolve(range))?,
        };
        let mut parts: Vec<Part> = Vec::new();
        for Mapped { start, len, piece } in pieces {
            let place = match piece {
                Piece::Extent(extent) if self.can_overwrite_extent(id, (flags, generation), start, len, &extent)? => {
                    Some(extent)
                }
                _ => None,
            };
            match parts.last_mut() {
                Some(Part { len: before, place: None }) if place.is_none() => *before += len,
                _ => parts.push(Part { len, place }),
            }
        }
        Ok(parts)
    }

    /// Whether a write of a range only overwrites existing extents, so that it takes no space.
    pub(crate) fn has_nocow_extents(&self, id: InodeId, state: &InodeState, range: Range<u64>) -> Result<bool> {
        if !is_nodatacow(state.item.flags) && state.frozen.as_ref().is_some_and(|frozen| !frozen.dirty.is_empty()) {
            // Data that the commit in flight has yet to write may replace the extent.
            return Ok(false);
        }
        let mut at = range.start;
        let generation = self.info.gate.current().generation;
        for part in self.parts_to_write(id, state, state.item.flags, (generation, None), range)? {
            // Space for dirty data is reserved already.
            if part.place.is_none() && !state.dirty.covers(at..at + part.len) {
                return Ok(false);
            }
            at += part.len;
        }
        Ok(true)
    }

    /// Whether `len` bytes at `start` of a file may be overwritten in place.
    fn can_overwrite_extent(
        &self,
        id: InodeId,
        (flags, generation): (u64, Generation),
        start: u64,
        len: u64,
        extent: &ExtentPiece,
    ) -> Result<bool> {
        if extent.compression != Compression::None || !(extent.prealloc || is_nodatacow(flags)) {
            return Ok(false);
        }
        // A damaged item may reach beyond its extent, whose neighbour belongs to another file.
        if extent.offset.checked_add(len).is_none_or(|end| end > extent.disk_num_bytes) {
            return Ok(false);
        }
        if !self.info.space.may_be_overwritten(extent.disk_bytenr) {
            return Ok(false);
        }
        let is_in_snapshot = extent.generation <= self.info.last_snapshot(id.subvolume, generation);
        Ok(!is_in_snapshot && !self.has_other_references(id, start, extent)?)
    }
}
