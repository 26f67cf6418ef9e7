//! Where the content of files is on the volume, and what they share.

use ubtrfs_file::Piece;
use ubtrfs_format::Logical;
use ubtrfs_format::items::{Compression, FileType};

use super::operations::FileOperations;
use crate::error::Result;
use crate::inode::InodeId;

/// A part of a file whose content is in one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundExtent {
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Bytes of the file.
    pub len: u64,
    /// Where on the volume it begins, a compressed extent as a whole. `None`: in the metadata.
    pub address: Option<Logical>,
    /// It is compressed.
    pub is_compressed: bool,
    /// Its space is only reserved, and reads as zeroes.
    pub is_reserved: bool,
    /// Other files, other places of the file, or snapshots have it, too.
    pub is_shared: bool,
}

impl FileOperations {
    /// The parts of a regular file from the offset `from` on that are not holes, in order, at most
    /// `most` of them: where they are, and whether they are shared. Data that was not written back
    /// has no place yet, and is left out. Other inodes have none.
    pub fn extents(&self, id: InodeId, from: u64, most: usize) -> Result<Vec<FoundExtent>> {
        let mut found = Vec::new();
        let inode = self.info.inode(id)?;
        let state = inode.read();
        if state.file_type() != FileType::Regular {
            return Ok(found);
        }
        let mut sharing = self.writeback.sharing(id);
        let map = self.info.view(id, &state).map()?;
        map.with_stack(&state, |stack| {
            for piece in stack.pieces(from..u64::MAX) {
                if found.len() == most {
                    break;
                }
                let piece = piece?;
                let (address, is_compressed, is_reserved, is_shared) = match &piece.piece {
                    Piece::Hole => continue,
                    Piece::Inline(inline) => (None, inline.compression != Compression::None, false, false),
                    Piece::Extent(extent) => (
                        Some(extent.on_disk(piece.len).0),
                        extent.compression != Compression::None,
                        extent.prealloc,
                        sharing.is_shared(piece.start, extent)?,
                    ),
                };
                let (offset, len) = (piece.start, piece.len);
                found.push(FoundExtent { offset, len, address, is_compressed, is_reserved, is_shared });
            }
            Ok(found)
        })
    }
}
