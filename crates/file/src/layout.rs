//! The pending map of one file: the new locations of content that a transaction wrote.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::change_memory::PIECE;
use crate::moved::MovedExtents;
use crate::piece::{Mapped, Piece};

/// The memory of a range that is to be reported again, in bytes.
const CHANGED: usize = 32;

/// The locations of a file's content, as far as a transaction changed them. For other ranges the
/// next lower layer counts.
///
/// Pieces never overlap, and neighbours that are one piece are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Length and place of each piece, by its offset in the file.
    pieces: BTreeMap<u64, (u64, Piece)>,
    /// Ranges (start and end) in which pieces have changed since the last call of
    /// [`Self::take_changed`]; `None` before the first call.
    changed: Option<BTreeMap<u64, u64>>,
}

impl Layout {
    /// Returns whether nothing changed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Returns how many bytes of memory it takes, with that of its commit. Only a piece at the
    /// start of a file can contain the content itself.
    #[inline]
    pub fn bytes(&self) -> usize {
        let inline = match self.pieces.first_key_value() {
            Some((_, (_, Piece::Inline(inline)))) => inline.data.len(),
            _ => 0,
        };
        let changed = self.changed.as_ref().map_or(0, BTreeMap::len);
        self.pieces.len() * PIECE + inline + changed * CHANGED
    }

    /// Returns the number of pieces.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Puts `piece` at `start` for `len` bytes. Returns the (parts of) pieces that it replaced, in
    /// order, so that the caller can free the space of new extents.
    pub fn replace(&mut self, start: u64, len: u64, piece: Piece) -> Vec<Mapped> {
        let end = start.saturating_add(len);
        if start == end {
            return Vec::new();
        }
        let displaced = self.remove_range(&(start..end));
        self.insert(Mapped { start, len: end - start, piece });
        displaced
    }

    /// Makes everything from `from` on a hole. Returns the replaced pieces, as [`Self::replace`]
    /// does.
    pub fn truncate(&mut self, from: u64) -> Vec<Mapped> {
        self.replace(from, u64::MAX - from, Piece::Hole)
    }

    /// Returns the pieces of `range`, in order and without gaps, as offset, length and piece. The
    /// piece is `None` where the next lower layer counts.
    pub fn get(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64, Option<Piece>)> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (end, piece) = self.at(at);
            let (start, end) = (at, end.min(range.end));
            at = end;
            Some((start, end - start, piece))
        })
    }

    /// Returns the end of the piece or gap at offset `at`, and the piece, clipped to start at `at`,
    /// or `None` in a gap.
    pub fn at(&self, at: u64) -> (u64, Option<Piece>) {
        if let Some((&start, (len, piece))) = self.pieces.range(..=at).next_back() {
            let end = start.saturating_add(*len);
            if at < end {
                return (end, Some(piece.clone().advanced(at - start)));
            }
        }
        let next = self.pieces.range(at..).next();
        (next.map_or(u64::MAX, |(&start, _)| start), None)
    }

    /// Returns the piece that ends at offset `end`, whole.
    pub fn ending_at(&self, end: u64) -> Option<Mapped> {
        let (&start, (len, piece)) = self.pieces.range(..end).next_back()?;
        (start.saturating_add(*len) == end).then(|| Mapped { start, len: *len, piece: piece.clone() })
    }

    /// Returns all pieces in order, as offset, length and piece.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &Piece)> {
        self.pieces.iter().map(|(&start, (len, piece))| (start, *len, piece))
    }

    /// Sets the new addresses in pieces of moved extents.
    pub fn follow(&mut self, moved: &MovedExtents) {
        let of_moved: Vec<_> =
            self.iter().filter_map(|(start, len, piece)| Some((start, len, moved.followed(piece)?))).collect();
        for (start, len, piece) in of_moved {
            self.note_changed(start, start.saturating_add(len));
            self.pieces.insert(start, (len, piece));
        }
    }

    /// Removes the pieces in `range` and returns them.
    fn remove_range(&mut self, range: &Range<u64>) -> Vec<Mapped> {
        let reaches_in =
            |(&start, (len, _)): (&u64, &(u64, Piece))| (start.saturating_add(*len) > range.start).then_some(start);
        let before = self.pieces.range(..range.start).next_back().and_then(reaches_in);
        let inside = self.pieces.range(range.clone()).map(|(&start, _)| start);
        let touched: Vec<u64> = before.into_iter().chain(inside).collect();
        let mut displaced = Vec::with_capacity(touched.len());
        for start in touched {
            let Some((len, piece)) = self.pieces.remove(&start) else { continue };
            let whole = Mapped { start, len, piece };
            self.note_changed(whole.start, whole.end());
            for outside in [0..range.start, range.end..u64::MAX] {
                if let Some(kept) = whole.clone().clipped(&outside) {
                    self.pieces.insert(kept.start, (kept.len, kept.piece));
                }
            }
            displaced.extend(whole.clipped(range));
        }
        displaced
    }

    /// Adds a piece where there is none, and joins it with its neighbours.
    fn insert(&mut self, mut new: Mapped) {
        if let Some((&start, (len, piece))) = self.pieces.range(..new.start).next_back() {
            let mut before = Mapped { start, len: *len, piece: piece.clone() };
            new = match before.join(new) {
                Ok(()) => before,
                Err(new) => new,
            };
        }
        if let Some((len, piece)) = self.pieces.get(&new.end()) {
            let next = Mapped { start: new.end(), len: *len, piece: piece.clone() };
            let at = next.start;
            if new.join(next).is_ok() {
                self.pieces.remove(&at);
            }
        }
        self.note_changed(new.start, new.end());
        self.pieces.insert(new.start, (new.len, new.piece));
    }

    /// Notes that the pieces in a range have to be reported again.
    pub fn note_changed(&mut self, start: u64, end: u64) {
        let Some(changed) = &mut self.changed else { return };
        if start >= end {
            return;
        }
        let (mut from, mut to) = (start, end);
        while let Some((&before, &stop)) = changed.range(..=to).next_back()
            && stop >= from
        {
            changed.remove(&before);
            (from, to) = (from.min(before), to.max(stop));
        }
        changed.insert(from, to);
    }

    /// Returns the ranges (start and end) in which pieces have changed since the last call,
    /// extended to whole pieces; at the first call, those of all pieces.
    pub fn take_changed(&mut self) -> Vec<(u64, u64)> {
        match self.changed.replace(BTreeMap::new()) {
            Some(changed) => changed.into_iter().map(|(start, end)| self.whole_pieces(start, end)).collect(),
            None => self.iter().map(|(start, len, _)| (start, start.saturating_add(len))).collect(),
        }
    }

    /// Returns whether [`Self::take_changed`] would return nothing new.
    pub fn is_unchanged(&self) -> bool {
        self.changed.as_ref().map_or(self.pieces.is_empty(), BTreeMap::is_empty)
    }

    /// Resets the changes: the next [`Self::take_changed`] returns all pieces.
    pub fn forget_changed(&mut self) {
        self.changed = None;
    }

    /// Returns the pieces that start in a range, in order.
    pub fn pieces_in(&self, start: u64, end: u64) -> impl Iterator<Item = Mapped> + '_ {
        let pieces = self.pieces.range(start..end);
        pieces.map(|(&start, (len, piece))| Mapped { start, len: *len, piece: piece.clone() })
    }

    /// Returns a range extended to the bounds of the pieces that reach out of it.
    fn whole_pieces(&self, start: u64, end: u64) -> (u64, u64) {
        let reaching = |at: u64| {
            let (&from, (len, _)) = self.pieces.range(..at).next_back()?;
            let to = from.saturating_add(*len);
            (to > at).then_some((from, to))
        };
        let from = reaching(start).map_or(start, |(from, _)| from);
        let to = reaching(end).map_or(end, |(_, to)| to);
        (from, to)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::piece::test_support::extent;

    const SECTOR: u64 = 4096;

    fn at(bytenr: u64, offset: u64) -> Piece {
        Piece::Extent(extent(bytenr, offset))
    }

    #[test]
    fn overwriting_the_middle_leaves_both_ends() {
        let mut layout = Layout::default();
        layout.replace(0, 10 * SECTOR, at(1 << 20, 0));
        let displaced = layout.replace(4 * SECTOR, SECTOR, at(2 << 20, 0));
        assert_eq!(displaced, [Mapped { start: 4 * SECTOR, len: SECTOR, piece: at(1 << 20, 4 * SECTOR) }]);
        let pieces: Vec<_> = layout.iter().map(|(start, len, piece)| (start, len, piece.clone())).collect();
        assert_eq!(
            pieces,
            [
                (0, 4 * SECTOR, at(1 << 20, 0)),
                (4 * SECTOR, SECTOR, at(2 << 20, 0)),
                (5 * SECTOR, 5 * SECTOR, at(1 << 20, 5 * SECTOR)),
            ]
        );
    }

    #[test]
    fn what_changed_covers_whole_pieces_old_and_new() {
        let mut layout = Layout::default();
        layout.replace(0, 10 * SECTOR, at(1 << 20, 0));
        assert_eq!(layout.take_changed(), [(0, 10 * SECTOR)]);
        assert!(layout.is_unchanged() && layout.take_changed().is_empty());
        // The piece around the change was reported as one.
        layout.replace(4 * SECTOR, SECTOR, at(2 << 20, 0));
        assert_eq!(layout.take_changed(), [(0, 10 * SECTOR)]);
        layout.replace(4 * SECTOR, SECTOR, at(3 << 20, 0));
        layout.replace(20 * SECTOR, SECTOR, at(4 << 20, 0));
        assert_eq!(layout.take_changed(), [(4 * SECTOR, 5 * SECTOR), (20 * SECTOR, 21 * SECTOR)]);
        // A piece that continues where another one ends is joined with it.
        layout.replace(21 * SECTOR, SECTOR, at(4 << 20, SECTOR));
        assert_eq!(layout.take_changed(), [(20 * SECTOR, 22 * SECTOR)]);
        layout.note_changed(21 * SECTOR, 30 * SECTOR);
        assert_eq!(layout.take_changed(), [(20 * SECTOR, 30 * SECTOR)]);
        layout.forget_changed();
        assert_eq!(layout.take_changed().len(), 4);
    }

    #[test]
    fn split_pieces_are_joined_when_the_gap_is_filled() {
        let mut layout = Layout::default();
        layout.replace(0, 4 * SECTOR, at(1 << 20, 0));
        layout.replace(SECTOR, SECTOR, Piece::Hole);
        layout.replace(SECTOR, SECTOR, at(1 << 20, SECTOR));
        assert_eq!(layout.len(), 1);
    }

    #[test]
    fn a_truncation_is_one_entry_whatever_its_length() {
        let mut layout = Layout::default();
        for index in 0..100 {
            layout.replace(index * 2 * SECTOR, SECTOR, at((index + 1) << 20, 0));
        }
        let displaced = layout.truncate(SECTOR);
        assert_eq!(displaced.len(), 99);
        assert_eq!(layout.len(), 2);
        assert_eq!(layout.at(1 << 60), (u64::MAX, Some(Piece::Hole)));
        assert_eq!(layout.truncate(u64::MAX), []);
    }

    #[test]
    fn gaps_are_distinguished_from_holes() {
        let mut layout = Layout::default();
        layout.replace(SECTOR, SECTOR, Piece::Hole);
        let all: Vec<_> = layout.get(0..4 * SECTOR).collect();
        assert_eq!(all, [(0, SECTOR, None), (SECTOR, SECTOR, Some(Piece::Hole)), (2 * SECTOR, 2 * SECTOR, None)]);
    }

    proptest! {
        /// Compares with a model that has for each sector the extent and the sector in it.
        #[test]
        fn behaves_as_a_map_of_sectors(
            steps in prop::collection::vec((0_u64..40, 1_u64..12, 0_u64..4, any::<bool>(), any::<bool>()), 1..40)
        ) {
            let mut layout = Layout::default();
            let mut model: Vec<Option<Piece>> = vec![None; 64];
            for (start, len, which, hole, truncate) in steps {
                let (offset, piece) = (start * SECTOR, if hole { Piece::Hole } else { at((which + 1) << 20, start * SECTOR) });
                let displaced = if truncate && hole {
                    layout.truncate(offset)
                } else {
                    layout.replace(offset, len * SECTOR, piece.clone())
                };
                let end = if truncate && hole { 64 } else { start + len };
                let mut expected = Vec::new();
                for sector in start..end {
                    let slot = &mut model[sector as usize];
                    if let Some(old) = slot.take() {
                        expected.push((sector * SECTOR, old));
                    }
                    *slot = Some(piece.clone().advanced((sector - start) * SECTOR));
                }
                let mut sectors = Vec::new();
                for mapped in displaced {
                    let end = mapped.end().min(64 * SECTOR);
                    for position in (mapped.start..end).step_by(SECTOR as usize) {
                        sectors.push((position, mapped.piece.clone().advanced(position - mapped.start)));
                    }
                }
                prop_assert_eq!(sectors, expected);
                let mut seen = Vec::new();
                for (start, len, piece) in layout.get(0..64 * SECTOR) {
                    for position in (start..start + len).step_by(SECTOR as usize) {
                        seen.push(piece.clone().map(|piece| piece.advanced(position - start)));
                    }
                }
                prop_assert_eq!(&seen, &model);
                let pieces: Vec<_> = layout.iter().collect();
                for pair in pieces.windows(2) {
                    prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
                    prop_assert!(pair[0].0 + pair[0].1 < pair[1].0 || !pair[0].2.joins(pair[0].1, pair[1].2));
                }
            }
        }
    }
}
