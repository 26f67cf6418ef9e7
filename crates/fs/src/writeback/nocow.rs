//! Which data is written where it already has its place: into reserved space, and over the data of
//! nodatacow files.
//!
//! Reserved space reads as zeroes in every durable state, so writing there changes none of them;
//! what says that it is data becomes durable only after the data. Over data itself only files
//! without copy-on-write are written, which ask for that. Neither may be done where somebody else
//! has a share in the extent: another file, another place of the file, a snapshot.
//!
//! What counts are the inode's flags in the transaction whose data it is: what a commit has yet to
//! write was dirtied under the flags that were frozen with it (invariant 2).

use std::ops::Range;

use ubtrfs_format::items::{Compression, DataRef, ExtentItem, InlineRef, InodeFlags};
use ubtrfs_format::{ItemType, Key, TreeId};

use super::owner::Writeback;
use crate::error::Result;
use crate::file::layout::Layout;
use crate::file::piece::{ExtentPiece, Mapped, Piece};
use crate::file::resolve::Stack;
use crate::file_reader::FileMap;
use crate::inode::{InodeId, InodeState};

/// A part of what is to be written.
pub(crate) struct Part {
    pub(crate) len: u64,
    /// The place that it has; `None` if it needs one.
    pub(crate) place: Option<ExtentPiece>,
}

/// Whether data of a file with these inode flags may be written in place at all.
pub(crate) fn may_be_nocow(flags: u64) -> bool {
    flags & (InodeFlags::PREALLOC | InodeFlags::NODATACOW) != 0
}

/// Whether data of a file with these inode flags is written over its older data.
pub(crate) fn is_nodatacow(flags: u64) -> bool {
    flags & InodeFlags::NODATACOW != 0
}

impl Writeback {
    /// Divides a range of a file into parts that have a place to be written to and parts that need
    /// one, by the flags that the inode has in the transaction whose data is written. `layout`:
    /// what a transaction says that is being committed, above the trees; `None` stands for all that
    /// is known.
    pub(crate) fn parts_to_write(
        &self,
        id: InodeId,
        state: &InodeState,
        flags: u64,
        layout: Option<&Layout>,
        range: Range<u64>,
    ) -> Result<Vec<Part>> {
        let len = range.end - range.start;
        if !may_be_nocow(flags) {
            return Ok(vec![Part { len, place: None }]);
        }
        let committed = self.info.committed();
        let map = FileMap::new(&committed, id, state)?;
        let pieces = match layout {
            Some(layout) => Stack::new(&[layout], map.bottom()).resolve(range)?,
            None => map.with_stack(state, |stack| stack.resolve(range))?,
        };
        let mut parts: Vec<Part> = Vec::new();
        for Mapped { start, len, piece } in pieces {
            let place = match piece {
                Piece::Extent(extent) if self.can_overwrite_extent(id, flags, start, len, &extent)? => Some(extent),
                _ => None,
            };
            match parts.last_mut() {
                Some(Part { len: before, place: None }) if place.is_none() => *before += len,
                _ => parts.push(Part { len, place }),
            }
        }
        Ok(parts)
    }

    /// Whether all of a range has a place that it will be written to, so that writing it takes no
    /// space.
    pub(crate) fn has_nocow_extents(&self, id: InodeId, state: &InodeState, range: Range<u64>) -> Result<bool> {
        if !is_nodatacow(state.item.flags) && state.frozen.as_ref().is_some_and(|frozen| !frozen.dirty.is_empty()) {
            // What the commit in flight has yet to write may take the place.
            return Ok(false);
        }
        let mut at = range.start;
        for part in self.parts_to_write(id, state, state.item.flags, None, range)? {
            // What is dirty has been reserved.
            if part.place.is_none() && !state.dirty.covers(at..at + part.len) {
                return Ok(false);
            }
            at += part.len;
        }
        Ok(true)
    }

    /// Whether what stands at `start` of a file for `len` bytes may be written over where it is.
    fn can_overwrite_extent(
        &self,
        id: InodeId,
        flags: u64,
        start: u64,
        len: u64,
        extent: &ExtentPiece,
    ) -> Result<bool> {
        if extent.compression != Compression::None || !(extent.prealloc || is_nodatacow(flags)) {
            return Ok(false);
        }
        // An item may say anything; what lies behind the extent is another's.
        if extent.offset.checked_add(len).is_none_or(|end| end > extent.disk_num_bytes) {
            return Ok(false);
        }
        // Before the commit is asked for: a transaction that is no longer here is in it.
        let transactions = self.info.open_transactions();
        if transactions.iter().any(|transaction| transaction.is_shared(extent.disk_bytenr)) {
            return Ok(false);
        }
        let committed = self.info.committed();
        let last_snapshot = committed.trees.get(&id.subvolume).map(|tree| tree.item.last_snapshot);
        if last_snapshot.is_some_and(|snapshot| extent.generation <= snapshot) {
            return Ok(false);
        }
        let key = Key::new(extent.disk_bytenr.0, ItemType::EXTENT_ITEM, extent.disk_num_bytes);
        let Some(item) = committed.tree(TreeId::EXTENT)?.get(&key)? else {
            return Ok(transactions.iter().any(|transaction| transaction.extents().contains_key(&extent.disk_bytenr)));
        };
        let item = ExtentItem::parse(&key, &item)?;
        let ours = DataRef { root: id.subvolume, ino: id.ino, offset: start.wrapping_sub(extent.offset) };
        let mut others = item.refs;
        for reference in &item.inline_refs {
            match reference {
                InlineRef::Data { data, count } if *data == ours => others = others.saturating_sub(u64::from(*count)),
                _ => {}
            }
        }
        Ok(others == 0)
    }
}
