//! A piece of a file's content: a range of the file and where its bytes are.

use std::ops::Range;
use std::sync::Arc;

use ubtrfs_format::items::{Compression, FileExtent, FileExtentKind};
use ubtrfs_format::{Generation, Logical};

/// The most bytes that a packed extent can have, packed or unpacked.
pub const MAX_PACKED: u64 = 128 * 1024;

/// Where the bytes of a piece are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Nowhere: they are zero.
    Hole,
    /// In the metadata.
    Inline(InlinePiece),
    /// In an extent on disk.
    Extent(ExtentPiece),
}

/// Content inside its file extent item. It always starts at the file's first byte, so an offset in
/// the file is one in the (uncompressed) content. Zeros follow it up to the sector's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinePiece {
    /// The bytes of the item, compressed or not.
    pub data: Arc<[u8]>,
    /// Length of the content, unpacked.
    pub ram_bytes: u64,
    /// How `data` is packed.
    pub compression: Compression,
    /// The transaction that wrote it.
    pub generation: Generation,
}

/// A part of an extent on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentPiece {
    /// Start of the whole extent.
    pub disk_bytenr: Logical,
    /// Bytes of the whole extent on disk.
    pub disk_num_bytes: u64,
    /// Where in the unpacked extent the piece starts, in bytes.
    pub offset: u64,
    /// Bytes of the whole extent, unpacked.
    pub ram_bytes: u64,
    /// How the extent is packed.
    pub compression: Compression,
    /// It is reserved space, which reads as zeros.
    pub prealloc: bool,
    /// The transaction that wrote it.
    pub generation: Generation,
}

impl InlinePiece {
    /// Content as it is, not packed.
    pub fn plain(data: Arc<[u8]>, generation: Generation) -> Self {
        Self { ram_bytes: data.len() as u64, data, compression: Compression::None, generation }
    }
}

impl ExtentPiece {
    /// Returns whether both are parts of one extent that was written at once.
    pub(crate) fn same_extent(&self, other: &Self) -> bool {
        Self { offset: 0, ..*self } == Self { offset: 0, ..*other }
    }

    /// Returns address and length on disk of the first `len` bytes of the piece. For a compressed
    /// extent these are those of all of it, since no part of it can be read by itself.
    #[inline]
    pub fn on_disk(&self, len: u64) -> (Logical, u64) {
        match self.compression {
            Compression::None => (self.disk_bytenr.plus(self.offset), len),
            _ => (self.disk_bytenr, self.disk_num_bytes),
        }
    }

    /// Returns how many bytes the uncompressed extent has, in which [`Self::offset`] counts. (Some
    /// kernels left a wrong `ram_bytes` in items of uncompressed extents, where it has no meaning.)
    #[inline]
    pub fn unpacked_len(&self) -> u64 {
        if self.compression == Compression::None { self.disk_num_bytes } else { self.ram_bytes }
    }
}

impl Piece {
    /// Returns whether `SEEK_DATA` finds it. It does not find holes and reserved space.
    #[inline]
    pub fn is_data(&self) -> bool {
        match self {
            Self::Hole => false,
            Self::Inline(_) => true,
            Self::Extent(extent) => !extent.prealloc,
        }
    }

    /// Returns the piece without its first `by` bytes.
    #[must_use]
    #[inline]
    pub(crate) fn advanced(self, by: u64) -> Self {
        match self {
            Self::Extent(extent) => Self::Extent(ExtentPiece { offset: extent.offset.saturating_add(by), ..extent }),
            other => other,
        }
    }

    /// Returns whether `next` continues where this piece of `len` bytes ends, so that both are one.
    pub(crate) fn joins(&self, len: u64, next: &Self) -> bool {
        match (self, next) {
            (Self::Hole, Self::Hole) => true,
            (Self::Extent(this), Self::Extent(next)) => {
                this.same_extent(next) && this.offset.checked_add(len) == Some(next.offset)
            }
            _ => false,
        }
    }

    /// Returns the content of the file extent item for `len` bytes of the file.
    #[inline]
    pub fn to_item(&self, len: u64, generation: Generation) -> Vec<u8> {
        match self {
            Self::Hole => FileExtent {
                generation,
                ram_bytes: len,
                compression: Compression::None,
                kind: FileExtentKind::Regular {
                    disk_bytenr: Logical(0),
                    disk_num_bytes: 0,
                    offset: 0,
                    num_bytes: len,
                    prealloc: false,
                },
            }
            .to_bytes(),
            Self::Inline(inline) => FileExtent {
                generation: inline.generation,
                ram_bytes: inline.ram_bytes,
                compression: inline.compression,
                kind: FileExtentKind::Inline(&inline.data),
            }
            .to_bytes(),
            Self::Extent(extent) => FileExtent {
                generation: extent.generation,
                ram_bytes: extent.ram_bytes,
                compression: extent.compression,
                kind: FileExtentKind::Regular {
                    disk_bytenr: extent.disk_bytenr,
                    disk_num_bytes: extent.disk_num_bytes,
                    offset: extent.offset,
                    num_bytes: len,
                    prealloc: extent.prealloc,
                },
            }
            .to_bytes(),
        }
    }
}

/// A range of a file and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Offset in the file.
    pub start: u64,
    /// Bytes of the file; not 0.
    pub len: u64,
    /// Where they are.
    pub piece: Piece,
}

impl Mapped {
    /// Returns how many bytes on disk the piece counts in its inode.
    #[inline]
    pub fn allocated(&self) -> u64 {
        match &self.piece {
            Piece::Hole => 0,
            Piece::Inline(inline) => inline.ram_bytes,
            Piece::Extent(_) => self.len,
        }
    }

    /// Returns the offset after the last byte (saturating).
    #[inline]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Returns the part in `range`, if there is one.
    #[inline]
    pub fn clipped(self, range: &Range<u64>) -> Option<Self> {
        let start = self.start.max(range.start);
        let end = self.end().min(range.end);
        (start < end).then(|| Self { start, len: end - start, piece: self.piece.advanced(start - self.start) })
    }

    /// Joins `next` if it continues where this piece ends; otherwise returns it.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        if self.end() == next.start && self.piece.joins(self.len, &next.piece) {
            self.len += next.len;
            Ok(())
        } else {
            Err(next)
        }
    }
}

/// Returns how many extents the pieces of a file refer to.
pub fn extents_of(pieces: &[Mapped]) -> usize {
    pieces.iter().filter(|mapped| matches!(mapped.piece, Piece::Extent(_))).count()
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::*;

    /// Returns a piece of an invented extent of 1 MiB at `bytenr`, from `offset` in it.
    pub(crate) fn extent(bytenr: u64, offset: u64) -> ExtentPiece {
        ExtentPiece {
            disk_bytenr: Logical(bytenr),
            disk_num_bytes: 1 << 20,
            offset,
            ram_bytes: 1 << 20,
            compression: Compression::None,
            prealloc: false,
            generation: Generation(7),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::test_support::extent;
    use super::*;

    #[test]
    fn clipping_moves_the_offset_in_the_extent() {
        let mapped = Mapped { start: 8192, len: 16384, piece: Piece::Extent(extent(1 << 20, 4096)) };
        let clipped = mapped.clone().clipped(&(12288..16384)).unwrap();
        assert_eq!(clipped, Mapped { start: 12288, len: 4096, piece: Piece::Extent(extent(1 << 20, 8192)) });
        assert_eq!(mapped.clone().clipped(&(0..8192)), None);
        assert_eq!(mapped.clipped(&(24576..u64::MAX)), None);
    }

    #[test]
    fn only_pieces_that_continue_in_the_same_extent_are_joined() {
        let mut first = Mapped { start: 0, len: 4096, piece: Piece::Extent(extent(1 << 20, 0)) };
        let other = Mapped { start: 4096, len: 4096, piece: Piece::Extent(extent(2 << 20, 4096)) };
        assert_eq!(first.join(other.clone()), Err(other));
        let skips = Mapped { start: 4096, len: 4096, piece: Piece::Extent(extent(1 << 20, 8192)) };
        assert_eq!(first.join(skips.clone()), Err(skips));
        assert_eq!(first.join(Mapped { start: 4096, len: 4096, piece: Piece::Extent(extent(1 << 20, 4096)) }), Ok(()));
        assert_eq!(first.len, 8192);
    }

    #[test]
    fn items_have_the_fields_of_the_piece() {
        let item = Piece::Extent(extent(1 << 20, 4096)).to_item(8192, Generation(9));
        let parsed = FileExtent::parse(&item).unwrap();
        assert_eq!((parsed.len(), parsed.generation), (8192, Generation(7)));
        let inline = InlinePiece::plain(Arc::from(&b"hello"[..]), Generation(8));
        let item = Piece::Inline(inline).to_item(4096, Generation(9));
        assert_eq!(FileExtent::parse(&item).unwrap().kind, FileExtentKind::Inline(b"hello"));
        let item = Piece::Hole.to_item(4096, Generation(9));
        assert!(matches!(
            FileExtent::parse(&item).unwrap().kind,
            FileExtentKind::Regular { disk_bytenr: Logical(0), num_bytes: 4096, .. }
        ));
    }
}
