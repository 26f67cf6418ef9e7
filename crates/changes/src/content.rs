//! Finds the ranges of a file that changed, by the extents on either side, regardless of how these
//! are divided into items.

use std::ops::Range;

use ubtrfs_format::Logical;
use ubtrfs_format::items::{Compression, FileExtent, FileExtentKind};
use ubtrfs_fs::Result;
use ubtrfs_tree::Item;

use crate::file::{ChangedContent, Content};

/// The source of the content of a range. Ranges with equal sources have equal content.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// An extent: its logical address, and the offset in the (decompressed) extent at which the
    /// file's first byte would be.
    Extent { bytenr: Logical, origin: u64, compression: Compression, prealloc: bool },
    /// The item itself.
    Inline { bytes: Vec<u8>, compression: Compression },
}

impl Source {
    fn content(&self) -> Content {
        match self {
            Self::Extent { prealloc: true, .. } => Content::Prealloc,
            _ => Content::Data,
        }
    }
}

/// A range of a file other than a hole.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    range: Range<u64>,
    source: Source,
}

impl Piece {
    /// The piece in an item; `None` for a hole.
    pub(crate) fn of(item: &Item) -> Result<Option<Self>> {
        let extent = FileExtent::parse(item)?;
        let start = item.key.offset;
        let source = match extent.kind {
            FileExtentKind::Inline(bytes) => Source::Inline { bytes: bytes.to_vec(), compression: extent.compression },
            FileExtentKind::Regular { disk_bytenr: Logical(0), .. } => return Ok(None),
            FileExtentKind::Regular { disk_bytenr: bytenr, offset, prealloc, .. } => {
                let origin = offset.wrapping_sub(start);
                Source::Extent { bytenr, origin, compression: extent.compression, prealloc }
            }
        };
        let end = start.saturating_add(extent.len());
        Ok((start < end).then_some(Self { range: start..end, source }))
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    pub(crate) fn content(&self) -> Content {
        self.source.content()
    }
}

/// Compares the extents of a file. Items that are the same on both sides need not be added, since
/// nothing else covers their ranges on either side.
pub(crate) struct ContentChanges {
    old: Side,
    new: Side,
    /// The offset up to which all has been compared.
    settled: u64,
    changes: Vec<ChangedContent>,
}

/// The file in one of the subvolumes.
struct Side {
    /// The size of the file. Extents end at whole sectors, and what is behind the file's end is no
    /// content.
    size: u64,
    piece: Option<Piece>,
}

impl Side {
    /// The source of the content at an offset, and the offset at which it may end.
    fn at(&self, offset: u64) -> (Option<&Source>, u64) {
        let (source, end) = match self.piece.as_ref().filter(|piece| piece.range.end > offset) {
            None => (None, u64::MAX),
            Some(piece) if piece.range.start > offset => (None, piece.range.start),
            Some(piece) => (Some(&piece.source), piece.range.end),
        };
        (source, if offset < self.size { end.min(self.size) } else { end })
    }

    fn content(&self, source: Option<&Source>, offset: u64) -> Content {
        match source.map(Source::content) {
            Some(Content::Data) if offset >= self.size => Content::Hole,
            content => content.unwrap_or(Content::Hole),
        }
    }
}

impl ContentChanges {
    /// Begins the comparison of two files of these sizes.
    pub(crate) fn new(old_size: u64, new_size: u64) -> Self {
        let side = |size| Side { size, piece: None };
        Self { old: side(old_size), new: side(new_size), settled: 0, changes: Vec::new() }
    }

    /// Adds the pieces of items at `offset`, which must not be below that of an earlier call.
    pub(crate) fn add(&mut self, offset: u64, old: Option<Piece>, new: Option<Piece>) {
        self.settle(offset);
        // Pieces overlap only in damaged volumes; then the later one applies.
        self.old.piece = old.or_else(|| self.old.piece.take());
        self.new.piece = new.or_else(|| self.new.piece.take());
    }

    /// The bytes of memory that the changes take.
    pub(crate) fn memory(&self) -> usize {
        self.changes.len() * size_of::<ChangedContent>()
    }

    /// Returns all changes.
    pub(crate) fn finish(mut self) -> Vec<ChangedContent> {
        self.settle(u64::MAX);
        self.changes
    }

    /// Compares the ranges before `end`, where nothing more will be added.
    fn settle(&mut self, end: u64) {
        while self.settled < end {
            let at = self.settled;
            let (old, old_end) = self.old.at(at);
            let (new, new_end) = self.new.at(at);
            let stop = old_end.min(new_end).min(end);
            if old != new {
                let (old, new) = (self.old.content(old, at), self.new.content(new, at));
                if old == Content::Data || old != new {
                    extend(&mut self.changes, ChangedContent { range: at..stop, old: Some(old), new });
                }
            }
            self.settled = stop;
        }
    }
}

/// Adds a range behind the others, and joins it to the last one if it continues that.
pub(crate) fn extend(changes: &mut Vec<ChangedContent>, change: ChangedContent) {
    match changes.last_mut() {
        Some(last) if last.range.end == change.range.start && (last.old, last.new) == (change.old, change.new) => {
            last.range.end = change.range.end;
        }
        _ => changes.push(change),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = u64::MAX;

    fn piece(range: Range<u64>, bytenr: u64, offset: u64, prealloc: bool) -> Piece {
        let origin = offset.wrapping_sub(range.start);
        let source = Source::Extent { bytenr: Logical(bytenr), origin, compression: Compression::None, prealloc };
        Piece { range, source }
    }

    fn shown(changes: ContentChanges) -> Vec<(Range<u64>, Content, Content)> {
        changes.finish().into_iter().map(|change| (change.range, change.old.unwrap(), change.new)).collect()
    }

    #[test]
    fn an_extent_that_was_overwritten_in_the_middle_changed_only_there() {
        let mut changes = ContentChanges::new(SIZE, SIZE);
        changes.add(0, Some(piece(0..100, 7, 0, false)), Some(piece(0..40, 7, 0, false)));
        changes.add(40, None, Some(piece(40..60, 9, 0, false)));
        changes.add(60, None, Some(piece(60..100, 7, 60, false)));
        assert_eq!(shown(changes), [(40..60, Content::Data, Content::Data)]);
    }

    #[test]
    fn holes_and_reserved_space_are_distinguished() {
        let mut changes = ContentChanges::new(SIZE, SIZE);
        changes.add(0, Some(piece(0..100, 7, 0, true)), Some(piece(0..10, 7, 0, true)));
        changes.add(10, None, Some(piece(10..20, 7, 10, false)));
        changes.add(30, None, Some(piece(30..200, 7, 30, true)));
        let expected = [
            (10..20, Content::Prealloc, Content::Data),
            (20..30, Content::Prealloc, Content::Hole),
            (100..200, Content::Hole, Content::Prealloc),
        ];
        assert_eq!(shown(changes), expected);
    }

    #[test]
    fn a_sector_that_holds_the_end_of_both_changes_with_its_extent_only() {
        let mut changes = ContentChanges::new(50, 80);
        changes.add(0, Some(piece(0..100, 7, 0, false)), Some(piece(0..40, 7, 0, false)));
        changes.add(40, None, Some(piece(40..100, 7, 40, false)));
        assert_eq!(shown(changes), []);
        let mut changes = ContentChanges::new(50, 80);
        changes.add(0, Some(piece(0..100, 7, 0, false)), Some(piece(0..100, 8, 0, false)));
        assert_eq!(shown(changes), [(0..50, Content::Data, Content::Data), (50..80, Content::Hole, Content::Data)]);
    }

    #[test]
    fn overlapping_pieces_of_a_damaged_volume_end() {
        let mut changes = ContentChanges::new(SIZE, SIZE);
        changes.add(0, Some(piece(0..u64::MAX, 7, 0, false)), None);
        changes.add(10, Some(piece(10..20, 8, 0, false)), Some(piece(10..u64::MAX, 7, 10, false)));
        let expected = [
            (0..10, Content::Data, Content::Hole),
            (10..20, Content::Data, Content::Data),
            (20..u64::MAX, Content::Hole, Content::Data),
        ];
        assert_eq!(shown(changes), expected);
    }
}
