//! `SEEK_DATA` and `SEEK_HOLE`.
//!
//! This follows the kernel's btrfs: content counts as data by whole pieces (inline content by its
//! sector). Reserved space that was never written is a hole, and so is everything from the end of
//! the file on.

use crate::dirty::DirtyData;
use crate::error::Result;
use crate::resolve::Stack;

/// The sources that tell where data and holes of a file are.
#[derive(Clone, Copy)]
pub struct Seek<'a> {
    /// Dirty data, in any order.
    pub dirty: &'a [&'a DirtyData],
    /// The map of the rest.
    pub stack: Stack<'a>,
    /// The file's size in bytes.
    pub size: u64,
}

impl Seek<'_> {
    /// Returns the first offset from `from` on that holds data, or `None` if only a hole follows
    /// (`ENXIO`).
    pub fn next_data(&self, from: u64) -> Result<Option<u64>> {
        let mut end = self.size;
        let dirty = self.dirty.iter().filter_map(|dirty| dirty.next_run(from, 1));
        if let Some(first) = dirty.map(|(offset, _)| offset).filter(|offset| *offset < end).min() {
            end = first;
        }
        for piece in self.stack.pieces(from..end) {
            let piece = piece?;
            if piece.piece.is_data() {
                return Ok(Some(piece.start));
            }
        }
        Ok((end < self.size && from < self.size).then_some(end))
    }

    /// Returns the first offset from `from` on that holds no data, at the latest the file's size.
    /// Returns `None` at and beyond the file's end (`ENXIO`).
    pub fn next_hole(&self, from: u64) -> Result<Option<u64>> {
        if from >= self.size {
            return Ok(None);
        }
        let mut at = self.dirty_end(from);
        for piece in self.stack.pieces(from..self.size) {
            let piece = piece?;
            if piece.end() <= at {
                continue;
            }
            if !piece.piece.is_data() {
                break;
            }
            at = self.dirty_end(piece.end());
        }
        Ok(Some(at.min(self.size)))
    }

    /// Returns the end of the dirty data at `at`, or `at` if there is none.
    fn dirty_end(&self, mut at: u64) -> u64 {
        while at < self.size {
            let here = self.dirty.iter().filter_map(|dirty| dirty.next_run(at, u64::MAX));
            match here.filter(|(offset, _)| *offset == at).map(|(offset, len)| offset + len).max() {
                Some(end) => at = end,
                None => break,
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::committed::Unborn;
    use crate::layout::Layout;
    use crate::piece::test_support::extent;
    use crate::piece::{ExtentPiece, Piece};
    use crate::resolve::test_support::Below;

    const SECTOR: u64 = 4096;

    #[test]
    fn a_sparse_file_of_many_tebibytes_is_a_few_steps() {
        let mut layout = Layout::default();
        let far = 1 << 60;
        layout.replace(far, SECTOR, Piece::Extent(extent(1 << 20, 0)));
        let mut dirty = DirtyData::new(4096);
        dirty.write(far + SECTOR + 5, b"x");
        let layers = [&layout];
        let seek = Seek { dirty: &[&dirty], stack: Stack::new(&layers, &Unborn), size: 1 << 61 };
        assert_eq!(seek.next_data(0).unwrap(), Some(far));
        assert_eq!(seek.next_data(far + 1).unwrap(), Some(far + 1));
        assert_eq!(seek.next_hole(0).unwrap(), Some(0));
        assert_eq!(seek.next_hole(far + 1).unwrap(), Some(far + 2 * SECTOR));
        assert_eq!(seek.next_data(far + 2 * SECTOR).unwrap(), None);
        assert_eq!(seek.next_hole(1 << 61).unwrap(), None);
        assert_eq!(seek.next_data(1 << 61).unwrap(), None);
    }

    #[test]
    fn reserved_space_is_a_hole() {
        let mut layout = Layout::default();
        layout.replace(0, SECTOR, Piece::Extent(ExtentPiece { prealloc: true, ..extent(1 << 20, 0) }));
        let layers = [&layout];
        let seek = Seek { dirty: &[], stack: Stack::new(&layers, &Unborn), size: 100 };
        assert_eq!((seek.next_data(0).unwrap(), seek.next_hole(0).unwrap()), (None, Some(0)));
    }

    proptest! {
        #[test]
        fn agrees_with_a_map_of_sectors(
            below in prop::collection::vec((0_u64..32, 1_u64..6, any::<bool>()), 0..8),
            above in prop::collection::vec((0_u64..32, 1_u64..6, any::<bool>()), 0..8),
            written in prop::collection::vec((0_u64..32, 1_u64..4), 0..6),
            frozen in prop::collection::vec((0_u64..32, 1_u64..4), 0..6),
            size in 1_u64..40 * SECTOR,
        ) {
            let mut model = [false; 48];
            let mut layouts = [Layout::default(), Layout::default()];
            for (layout, steps) in layouts.iter_mut().zip([&below, &above]) {
                for &(start, len, data) in steps {
                    let piece = if data { Piece::Extent(extent(1 << 20, start * SECTOR)) } else { Piece::Hole };
                    layout.replace(start * SECTOR, len * SECTOR, piece);
                    model[start as usize..(start + len) as usize].fill(data);
                }
            }
            let mut dirty = [DirtyData::new(4096), DirtyData::new(4096)];
            for (dirty, steps) in dirty.iter_mut().zip([&written, &frozen]) {
                for &(start, len) in steps {
                    dirty.write(start * SECTOR, &vec![1; (len * SECTOR) as usize]);
                    model[start as usize..(start + len) as usize].fill(true);
                }
            }
            let [below, above] = layouts;
            let below = Below(below);
            let layers = [&above];
            let seek = Seek {
                dirty: &[&dirty[0], &dirty[1]],
                stack: Stack::new(&layers, &below),
                size,
            };
            for from in (0..size).step_by(1000) {
                let is_data = |at: &u64| model[(*at / SECTOR) as usize];
                // Candidates: the offset itself, and every start of a sector after it.
                let places = || std::iter::once(from).chain((from / SECTOR + 1..).map(|n| n * SECTOR)).take_while(|at| *at < size);
                prop_assert_eq!(seek.next_data(from).unwrap(), places().find(is_data));
                prop_assert_eq!(seek.next_hole(from).unwrap(), Some(places().find(|at| !is_data(at)).unwrap_or(size)));
            }
        }
    }
}
