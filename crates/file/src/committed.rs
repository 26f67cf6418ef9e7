//! The map of a file in a committed tree.

use std::ops::Range;
use std::sync::Arc;

use ubtrfs_format::items::{Compression, FileExtent, FileExtentKind};
use ubtrfs_format::{Ino, ItemType, Key};
use ubtrfs_tree::{Item, Reader, Tree};

use crate::error::{DataError, ExtentProblem, Result};
use crate::piece::{ExtentPiece, InlinePiece, MAX_PACKED, Mapped, Piece};

/// The lowest layer of a file's map.
pub trait PieceSource {
    /// Returns the pieces of the file in `range`, in order and without gaps (a gap in the items is
    /// a hole). Ends after an error.
    fn pieces_in(&self, range: Range<u64>) -> Box<dyn Iterator<Item = Result<Mapped>> + '_>;
}

/// The source of a file that is in no tree yet: all of it is a hole.
#[derive(Clone, Copy, Debug)]
pub struct Unborn;

impl PieceSource for Unborn {
    fn pieces_in(&self, range: Range<u64>) -> Box<dyn Iterator<Item = Result<Mapped>> + '_> {
        let hole = Mapped { start: range.start, len: range.end.saturating_sub(range.start), piece: Piece::Hole };
        Box::new((hole.len > 0).then_some(Ok(hole)).into_iter())
    }
}

/// The file extent items of one inode in a tree.
#[derive(Clone, Debug)]
pub struct CommittedExtents<R> {
    tree: Tree<R>,
    ino: Ino,
    sector_size: u32,
}

impl<R: Reader + Clone> CommittedExtents<R> {
    /// The file extent items of inode `ino` in `tree`.
    pub fn new(tree: Tree<R>, ino: Ino, sector_size: u32) -> Self {
        Self { tree, ino, sector_size }
    }

    /// Returns the pieces in `range`, in order and without gaps.
    #[cfg(test)]
    pub(crate) fn pieces(&self, range: Range<u64>) -> Result<Vec<Mapped>> {
        self.pieces_in(range).collect()
    }

    fn key(&self, offset: u64) -> Key {
        Key::new(self.ino.0, ItemType::EXTENT_DATA, offset)
    }

    /// Returns the whole pieces of the items that start in `range`, preceded by that of the last
    /// item that starts earlier, which may reach into it.
    pub fn items(&self, range: &Range<u64>) -> impl Iterator<Item = Result<Mapped>> + use<R> {
        let this = self.clone();
        let items = self.tree.range_with_previous(self.key(range.start)..=self.key(range.end.saturating_sub(1)));
        items.filter_map(move |item| {
            let is_other = |item: &Item| item.key < this.key(0);
            match item {
                Ok(item) if is_other(&item) => None,
                Ok(item) => Some(this.mapped(&item)),
                Err(error) => Some(Err(error.into())),
            }
        })
    }

    fn problem(&self, offset: u64, problem: ExtentProblem) -> DataError {
        DataError::Extent { ino: self.ino, offset, problem }
    }

    fn mapped(&self, item: &Item) -> Result<Mapped> {
        let start = item.key.offset;
        let extent = FileExtent::parse(item).map_err(|source| DataError::Item {
            what: "file extent item",
            offset: start,
            source,
        })?;
        checked_piece(start, &extent, self.sector_size.into()).map_err(|problem| self.problem(start, problem))
    }
}

impl<R: Reader + Clone> PieceSource for CommittedExtents<R> {
    fn pieces_in(&self, range: Range<u64>) -> Box<dyn Iterator<Item = Result<Mapped>> + '_> {
        if range.is_empty() {
            return Box::new(std::iter::empty());
        }
        let mut items = self.items(&range);
        let (mut at, mut end) = (range.start, 0);
        let mut ahead: Option<Mapped> = None;
        let mut next_item = move || {
            let next = items.next()?;
            Some(next.and_then(|next| {
                let before = std::mem::replace(&mut end, next.end());
                if next.start < before { Err(self.problem(next.start, ExtentProblem::Overlap)) } else { Ok(next) }
            }))
        };
        Box::new(std::iter::from_fn(move || {
            while at < range.end {
                let next = match ahead.take().map(Ok).or_else(&mut next_item) {
                    Some(Ok(next)) => Some(next),
                    Some(Err(error)) => {
                        at = range.end;
                        return Some(Err(error));
                    }
                    None => None,
                };
                let next = match next {
                    Some(next) if next.end() <= at => continue,
                    Some(next) if next.start <= at => next,
                    later => {
                        let end = later.as_ref().map_or(range.end, |later| later.start.min(range.end));
                        ahead = later;
                        Mapped { start: at, len: end - at, piece: Piece::Hole }
                    }
                };
                let next = next.clipped(&(at..range.end))?;
                at = next.end();
                return Some(Ok(next));
            }
            None
        }))
    }
}

/// Checks the file extent item at `start`, and returns its piece.
#[inline]
pub fn checked_piece(start: u64, extent: &FileExtent<'_>, sector: u64) -> std::result::Result<Mapped, ExtentProblem> {
    if !start.is_multiple_of(sector) {
        return Err(ExtentProblem::Misaligned);
    }
    match extent.kind {
        FileExtentKind::Inline(data) => {
            if start != 0 {
                return Err(ExtentProblem::InlineNotFirst);
            }
            let plain = extent.compression == Compression::None;
            if extent.ram_bytes > sector || data.is_empty() || (plain && data.len() as u64 != extent.ram_bytes) {
                return Err(ExtentProblem::InlineLength);
            }
            let inline = InlinePiece {
                data: Arc::from(data),
                ram_bytes: extent.ram_bytes,
                compression: extent.compression,
                generation: extent.generation,
            };
            Ok(Mapped { start, len: sector, piece: Piece::Inline(inline) })
        }
        FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, num_bytes, prealloc } => {
            if num_bytes == 0 {
                return Err(ExtentProblem::Empty);
            }
            if !num_bytes.is_multiple_of(sector) {
                return Err(ExtentProblem::Misaligned);
            }
            if start.checked_add(num_bytes).is_none() {
                return Err(ExtentProblem::Overflow);
            }
            if disk_bytenr.0 == 0 {
                return Ok(Mapped { start, len: num_bytes, piece: Piece::Hole });
            }
            let piece = ExtentPiece {
                disk_bytenr,
                disk_num_bytes,
                offset,
                ram_bytes: extent.ram_bytes,
                compression: extent.compression,
                prealloc,
                generation: extent.generation,
            };
            check_extent(&piece, num_bytes, sector)?;
            Ok(Mapped { start, len: num_bytes, piece: Piece::Extent(piece) })
        }
    }
}

fn check_extent(piece: &ExtentPiece, num_bytes: u64, sector: u64) -> std::result::Result<(), ExtentProblem> {
    let lengths = [piece.disk_bytenr.0, piece.disk_num_bytes, piece.offset, piece.ram_bytes];
    if lengths.iter().any(|length| !length.is_multiple_of(sector)) {
        return Err(ExtentProblem::Misaligned);
    }
    if piece.disk_bytenr.0.checked_add(piece.disk_num_bytes).is_none() {
        return Err(ExtentProblem::Overflow);
    }
    if piece.offset.checked_add(num_bytes).is_none_or(|end| end > piece.unpacked_len()) {
        return Err(ExtentProblem::BeyondExtent);
    }
    if piece.compression != Compression::None {
        if piece.prealloc {
            return Err(ExtentProblem::PackedPrealloc);
        }
        if piece.ram_bytes > MAX_PACKED || piece.disk_num_bytes > MAX_PACKED {
            return Err(ExtentProblem::PackedTooLarge);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::{Generation, Logical};

    use ubtrfs_tree::testing::tree_of;

    use super::*;
    use crate::piece::test_support::extent;

    const SECTOR: u64 = 4096;

    /// Returns inode 257 with these pieces, between items of other inodes.
    fn committed(pieces: &[(u64, u64, Piece)]) -> CommittedExtents<Arc<ubtrfs_tree::NodeCache>> {
        let key = |ino, offset| Key::new(ino, ItemType::EXTENT_DATA, offset);
        let item = |len, piece: &Piece| piece.to_item(len, Generation(7));
        let neighbour = item(1 << 20, &Piece::Extent(extent(9 << 20, 0)));
        let mut items = vec![(key(256, 0), neighbour.clone()), (Key::new(257, ItemType::INODE_ITEM, 0), vec![0; 160])];
        items.extend(pieces.iter().map(|(start, len, piece)| (key(257, *start), item(*len, piece))));
        items.push((key(258, 0), neighbour));
        CommittedExtents::new(tree_of(&items), Ino(257), 4096)
    }

    #[test]
    fn gaps_are_holes_and_a_piece_may_begin_before_the_range() {
        let file = committed(&[
            (2 * SECTOR, 4 * SECTOR, Piece::Extent(extent(1 << 20, 0))),
            (8 * SECTOR, 2 * SECTOR, Piece::Hole),
            (10 * SECTOR, SECTOR, Piece::Extent(extent(2 << 20, 0))),
        ]);
        let hole = |start: u64, len: u64| Mapped { start: start * SECTOR, len: len * SECTOR, piece: Piece::Hole };
        let data = |start: u64, len: u64, bytenr, offset| Mapped {
            start: start * SECTOR,
            len: len * SECTOR,
            piece: Piece::Extent(extent(bytenr, offset)),
        };
        let pieces = |from: u64, to: u64| file.pieces(from * SECTOR..to * SECTOR).unwrap();
        assert_eq!(pieces(0, 3), [hole(0, 2), data(2, 1, 1 << 20, 0)]);
        assert_eq!(pieces(3, 5), [data(3, 2, 1 << 20, SECTOR)]);
        assert_eq!(
            pieces(5, 20),
            [data(5, 1, 1 << 20, 3 * SECTOR), hole(6, 2), hole(8, 2), data(10, 1, 2 << 20, 0), hole(11, 9)]
        );
        assert_eq!(pieces(12, 13), [hole(12, 1)]);
        assert_eq!(pieces(7, 7), []);
        let to_the_end = file.pieces(11 * SECTOR..u64::MAX).unwrap();
        assert_eq!(to_the_end, [Mapped { start: 11 * SECTOR, len: u64::MAX - 11 * SECTOR, piece: Piece::Hole }]);
    }

    #[test]
    fn pieces_that_overlap_are_an_error_where_they_do() {
        let file = committed(&[
            (0, SECTOR, Piece::Extent(extent(1 << 20, 0))),
            (SECTOR, 2 * SECTOR, Piece::Extent(extent(2 << 20, 0))),
            (2 * SECTOR, SECTOR, Piece::Extent(extent(3 << 20, 0))),
        ]);
        assert_eq!(file.pieces(0..2 * SECTOR).unwrap().len(), 2);
        let error = file.pieces(0..4 * SECTOR).unwrap_err();
        assert!(matches!(
            error,
            DataError::Extent { ino: Ino(257), offset, problem: ExtentProblem::Overlap } if offset == 2 * SECTOR
        ));
    }

    #[test]
    fn an_item_of_rubbish_is_an_error() {
        let items = [(Key::new(257, ItemType::EXTENT_DATA, 0), vec![0xFF; 53])];
        let file = CommittedExtents::new(tree_of(&items), Ino(257), 4096);
        assert!(matches!(file.pieces(0..SECTOR), Err(DataError::Item { offset: 0, .. })));
    }

    fn regular(ram_bytes: u64, disk: [u64; 4]) -> FileExtent<'static> {
        let [disk_bytenr, disk_num_bytes, offset, num_bytes] = disk;
        FileExtent {
            generation: Generation(7),
            ram_bytes,
            compression: Compression::None,
            kind: FileExtentKind::Regular {
                disk_bytenr: Logical(disk_bytenr),
                disk_num_bytes,
                offset,
                num_bytes,
                prealloc: false,
            },
        }
    }

    fn problem(start: u64, extent: &FileExtent<'_>) -> Option<ExtentProblem> {
        checked_piece(start, extent, 4096).err()
    }

    #[test]
    fn invalid_extents_are_reported_by_kind() {
        let good = regular(8192, [1 << 20, 8192, 4096, 4096]);
        assert_eq!(problem(4096, &good), None);
        assert_eq!(problem(100, &good), Some(ExtentProblem::Misaligned));
        assert_eq!(problem(u64::MAX - 4095, &good), Some(ExtentProblem::Overflow));
        assert_eq!(problem(0, &regular(8192, [1 << 20, 8192, 4096, 8192])), Some(ExtentProblem::BeyondExtent));
        assert_eq!(
            problem(0, &regular(8192, [1 << 20, 8192, u64::MAX - 4095, 8192])),
            Some(ExtentProblem::BeyondExtent)
        );
        assert_eq!(problem(0, &regular(8192, [1 << 20, 8192, 0, 0])), Some(ExtentProblem::Empty));
        assert_eq!(problem(0, &regular(8192, [1 << 20, 8192, 0, 100])), Some(ExtentProblem::Misaligned));
        assert_eq!(problem(0, &regular(8192, [u64::MAX - 4095, 8192, 0, 4096])), Some(ExtentProblem::Overflow));
        let packed = FileExtent { compression: Compression::Zlib, ..regular(1 << 20, [1 << 20, 4096, 0, 4096]) };
        assert_eq!(problem(0, &packed), Some(ExtentProblem::PackedTooLarge));
        let packed = FileExtent { compression: Compression::Zlib, ..regular(128 << 10, [1 << 20, 4096, 0, 128 << 10]) };
        assert_eq!(problem(0, &packed), None);
    }

    #[test]
    fn a_wrong_ram_size_of_an_unpacked_extent_does_no_harm() {
        assert_eq!(problem(0, &regular(4096, [1 << 20, 8192, 4096, 4096])), None);
    }

    #[test]
    fn inline_content_covers_its_sector_and_is_at_the_start_only() {
        let inline = FileExtent {
            generation: Generation(7),
            ram_bytes: 5,
            compression: Compression::None,
            kind: FileExtentKind::Inline(b"hello"),
        };
        assert_eq!(checked_piece(0, &inline, 4096).unwrap().len, 4096);
        assert_eq!(problem(4096, &inline), Some(ExtentProblem::InlineNotFirst));
        assert_eq!(problem(0, &FileExtent { ram_bytes: 6, ..inline }), Some(ExtentProblem::InlineLength));
        let packed = FileExtent { ram_bytes: 4097, compression: Compression::Zstd, ..inline };
        assert_eq!(problem(0, &packed), Some(ExtentProblem::InlineLength));
    }

    #[test]
    fn a_file_that_is_in_no_tree_is_one_hole() {
        let pieces: Vec<_> = Unborn.pieces_in(5..10).map(Result::unwrap).collect();
        assert_eq!(pieces, [Mapped { start: 5, len: 5, piece: Piece::Hole }]);
        assert_eq!(Unborn.pieces_in(5..5).count(), 0);
    }
}
