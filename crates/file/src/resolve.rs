//! The whole map of a file: pending layouts stacked over the committed tree.

use std::ops::Range;

use crate::committed::PieceSource;
use crate::error::Result;
use crate::layout::Layout;
use crate::piece::{Mapped, Piece};

/// The layers of a file's map.
#[derive(Clone, Copy)]
pub struct Stack<'a> {
    /// The changes of transactions, newest first.
    layers: &'a [&'a Layout],
    /// The state before them.
    bottom: &'a dyn PieceSource,
}

impl<'a> Stack<'a> {
    /// `layers`, newest first, over `bottom`.
    pub fn new(layers: &'a [&'a Layout], bottom: &'a dyn PieceSource) -> Self {
        Self { layers, bottom }
    }

    /// Returns the pieces of `range` in order and without gaps. Neighbours that are one piece are
    /// joined.
    pub fn resolve(&self, range: Range<u64>) -> Result<Vec<Mapped>> {
        let mut pieces: Vec<Mapped> = Vec::new();
        for piece in self.pieces(range) {
            let piece = piece?;
            let apart = match pieces.last_mut() {
                Some(last) => last.join(piece),
                None => Err(piece),
            };
            pieces.extend(apart.err());
        }
        Ok(pieces)
    }

    /// Returns the pieces of `range` in order and without gaps, looked up lazily. Ends after an
    /// error.
    pub fn pieces(&self, range: Range<u64>) -> Pieces<'a> {
        Pieces { stack: *self, at: range.start, end: range.end, below: None, ahead: None }
    }
}

/// The iterator of [`Stack::pieces`].
pub struct Pieces<'a> {
    stack: Stack<'a>,
    at: u64,
    end: u64,
    /// The pieces of the lowest layer from some place before `at` to the end, once they were
    /// needed.
    below: Option<Box<dyn Iterator<Item = Result<Mapped>> + 'a>>,
    /// The last piece of the lowest layer that was read.
    ahead: Option<Mapped>,
}

impl Pieces<'_> {
    fn piece(&mut self) -> Result<Mapped> {
        let start = self.at;
        let mut end = self.end;
        for layer in self.stack.layers {
            let (stop, piece) = layer.at(start);
            end = end.min(stop);
            if let Some(piece) = piece {
                return Ok(Mapped { start, len: end - start, piece });
            }
        }
        Ok(self.look_below(start..end)?.unwrap_or(Mapped { start, len: end - start, piece: Piece::Hole }))
    }

    /// Returns the piece of the lowest layer at the start of `range`.
    fn look_below(&mut self, range: Range<u64>) -> Result<Option<Mapped>> {
        let here = |piece: &Mapped| piece.start <= range.start && range.start < piece.end();
        if !self.ahead.as_ref().is_some_and(here) {
            self.ahead = self.below.as_mut().and_then(Iterator::next).transpose()?;
        }
        if !self.ahead.as_ref().is_some_and(here) {
            // The upper layers may hide many pieces. Instead of walking over them, the offset is
            // looked up again.
            let mut below = self.stack.bottom.pieces_in(range.start..self.end);
            self.ahead = below.next().transpose()?;
            self.below = Some(below);
        }
        Ok(self.ahead.clone().and_then(|piece| piece.clipped(&range)))
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<Mapped>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let piece = self.piece();
        self.at = piece.as_ref().map_or(self.end, Mapped::end);
        Some(piece)
    }
}

#[cfg(test)]
pub(crate) mod test_support {
    use super::*;

    /// A lowest layer in memory: a layout whose gaps are holes.
    pub struct Below(pub(crate) Layout);

    impl PieceSource for Below {
        fn pieces_in(&self, range: Range<u64>) -> Box<dyn Iterator<Item = Result<Mapped>> + '_> {
            Box::new(
                self.0
                    .get(range)
                    .map(|(start, len, piece)| Ok(Mapped { start, len, piece: piece.unwrap_or(Piece::Hole) })),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::test_support::Below;
    use super::*;
    use crate::committed::Unborn;
    use crate::piece::test_support::extent;

    const SECTOR: u64 = 4096;

    #[test]
    fn a_hole_above_hides_what_is_below() {
        let mut below = Layout::default();
        below.replace(0, 8 * SECTOR, Piece::Extent(extent(1 << 20, 0)));
        let mut middle = Layout::default();
        middle.truncate(4 * SECTOR);
        let mut top = Layout::default();
        top.replace(6 * SECTOR, SECTOR, Piece::Extent(extent(2 << 20, 0)));
        let below = Below(below);
        let layers = [&top, &middle];
        let pieces = Stack::new(&layers, &below).resolve(0..u64::MAX).unwrap();
        let map: Vec<_> = pieces.iter().map(|piece| (piece.start, piece.len, piece.piece.is_data())).collect();
        assert_eq!(
            map,
            [
                (0, 4 * SECTOR, true),
                (4 * SECTOR, 2 * SECTOR, false),
                (6 * SECTOR, SECTOR, true),
                (7 * SECTOR, u64::MAX - 7 * SECTOR, false)
            ]
        );
    }

    #[test]
    fn nothing_is_a_hole() {
        let pieces = Stack::new(&[], &Unborn).resolve(0..100).unwrap();
        assert_eq!(pieces, [Mapped { start: 0, len: 100, piece: Piece::Hole }]);
        assert_eq!(Stack::new(&[], &Unborn).resolve(5..5).unwrap(), []);
    }

    type Steps = Vec<(u64, u64, Option<u64>)>;

    fn layout(steps: &Steps, model: &mut [Piece]) -> Layout {
        let mut layout = Layout::default();
        for &(start, len, which) in steps {
            let piece = which.map_or(Piece::Hole, |which| Piece::Extent(extent((which + 1) << 20, start * SECTOR)));
            layout.replace(start * SECTOR, len * SECTOR, piece.clone());
            for sector in start..start + len {
                model[sector as usize] = piece.clone().advanced((sector - start) * SECTOR);
            }
        }
        layout
    }

    fn steps() -> impl Strategy<Value = Steps> {
        prop::collection::vec((0_u64..50, 1_u64..14, prop::option::of(0_u64..4)), 0..12)
    }

    proptest! {
        #[test]
        fn three_layers_read_as_one(
            bottom in steps(), middle in steps(), top in steps(), from in 0_u64..64, len in 0_u64..64
        ) {
            let mut model = vec![Piece::Hole; 64];
            let bottom = Below(layout(&bottom, &mut model));
            let middle = layout(&middle, &mut model);
            let top = layout(&top, &mut model);
            let layers = [&top, &middle];
            let to = (from + len).min(64);
            let pieces = Stack::new(&layers, &bottom).resolve(from * SECTOR..to * SECTOR).unwrap();
            let mut at = from * SECTOR;
            let mut seen = Vec::new();
            for piece in &pieces {
                prop_assert_eq!(piece.start, at);
                for position in (at..piece.end()).step_by(SECTOR as usize) {
                    seen.push(piece.piece.clone().advanced(position - at));
                }
                at = piece.end();
            }
            prop_assert_eq!(&seen[..], &model[from as usize..to as usize]);
            for pair in pieces.windows(2) {
                prop_assert!(!pair[0].piece.joins(pair[0].len, &pair[1].piece));
            }
        }
    }
}
