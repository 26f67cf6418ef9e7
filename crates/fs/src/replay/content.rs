//! Replays the content of files.

use std::sync::Arc;

use ubtrfs_file::{DataError, Mapped, Piece, checked_piece};
use ubtrfs_format::items::{Compression, CsumItem, FileExtent, FileExtentKind};
use ubtrfs_format::{Ino, ItemType, Key, Logical, objectid};
use ubtrfs_tree::Item;

use super::subvolume::Replay;
use crate::error::Result;
use crate::file_map::FileMap;
use crate::inode::Inode;

/// Returns the piece of a file that an item of a log describes.
pub(super) fn mapped(key: &Key, extent: &FileExtent<'_>, sector: u64) -> Result<Mapped> {
    let ino = Ino(key.objectid);
    Ok(checked_piece(key.offset, extent, sector).map_err(|problem| DataError::Extent {
        ino,
        offset: key.offset,
        problem,
    })?)
}

impl Replay<'_> {
    /// Drops extents beyond the end of a file. Those that are still preallocated there are in the
    /// log.
    pub(super) fn truncate_content(&mut self, inode: &Arc<Inode>) {
        let sector = self.sector();
        self.change(inode, |state| drop(state.pending.layout.truncate(state.item.size.next_multiple_of(sector))));
        self.files.insert(inode.id.ino);
    }

    /// Replays a file extent item: it replaces everything in its range.
    pub(super) fn replay_extent(&mut self, item: &Item) -> Result<()> {
        let inode = self.owner(&item.key)?;
        let extent = FileExtent::parse(item)?;
        let Mapped { start, len, piece } = mapped(&item.key, &extent, self.sector())?;
        // A kernel's log may contain compressed data before its superblock names the feature.
        self.fs.info.features.note_compressed(extent.compression);
        self.change(&inode, |state| drop(state.pending.layout.replace(start, len, piece)));
        self.files.insert(inode.id.ino);
        match extent.kind {
            FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, num_bytes, prealloc: false }
                if disk_bytenr.0 != 0 =>
            {
                if extent.compression == Compression::None {
                    self.take_sums(disk_bytenr.plus(offset), num_bytes)
                } else {
                    self.take_sums(disk_bytenr, disk_num_bytes)
                }
            }
            _ => Ok(()),
        }
    }

    /// Copies the log's checksums of `len` bytes from `at` on. Old logs may have a sector twice;
    /// then the later item is valid.
    fn take_sums(&mut self, at: Logical, len: u64) -> Result<()> {
        let superblock = &self.committed.superblock;
        let (sector, end) = (self.sector(), at.plus(len));
        let key = |at: Logical| Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at.0);
        for item in self.log.range_with_previous(key(at)..=key(Logical(end.0.saturating_sub(1)))) {
            let item = item?;
            if item.key < key(Logical(0)) {
                continue;
            }
            let start = Logical(item.key.offset);
            let run = CsumItem::parse(start, &item, superblock.checksum, superblock.sector_size)?;
            let (from, to) = (at.max(start), end.min(run.end()));
            if from >= to {
                continue;
            }
            let position = |at: Logical| ((at.0 - start.0) / sector) as usize * superblock.checksum.size();
            if let Some(sums) = item.get(position(from)..position(to)) {
                self.sums.put(from, sums);
            }
        }
        Ok(())
    }

    /// Counts the bytes that the content of the replayed files takes.
    pub(super) fn count_bytes(&mut self) -> Result<()> {
        for ino in std::mem::take(&mut self.files) {
            let Some(inode) = self.inode(ino)? else { continue };
            let mut state = inode.write();
            let map = FileMap::new(self.committed, inode.id, &state)?;
            let mut bytes = state.item.nbytes;
            let mut added = 0_u64;
            for (start, len, piece) in state.pending.layout.iter() {
                for below in map.committed().pieces(start..start.saturating_add(len)) {
                    bytes = bytes.saturating_sub(below?.allocated());
                }
                if !matches!(piece, Piece::Hole) {
                    added = added.saturating_add(Mapped { start, len, piece: piece.clone() }.allocated());
                }
            }
            state.item.nbytes = bytes.saturating_add(added);
        }
        Ok(())
    }
}
