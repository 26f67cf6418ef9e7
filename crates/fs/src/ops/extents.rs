//! Reports where the content of files lies on the volume, and what is shared.

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
    /// The logical address at which it begins; for a compressed extent, where the whole extent
    /// begins. `None` if it is inline in the metadata.
    pub address: Option<Logical>,
    /// Whether it is compressed.
    pub is_compressed: bool,
    /// Whether it is preallocated space, which reads as zeroes.
    pub is_reserved: bool,
    /// Whether other files, other parts of this file, or snapshots refer to it, too.
    pub is_shared: bool,
}

impl FileOperations {
    /// Returns the parts of a regular file from the offset `from` on that are not holes, in order,
    /// at most `most` of them. Data that is not written back yet has no address, and is left out.
    /// For an inode that is not a regular file the result is empty.
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
