//! Fragments of a file, each contiguous on disk, and the choice of those that are worth rewriting,
//! for the file to have fewer.

use std::ops::Range;

use ubtrfs_format::Logical;
use ubtrfs_format::items::Compression;

use crate::piece::ExtentPiece;

/// Pieces that are adjacent on disk do not count as one fragment if both are smaller than this many
/// bytes, since each takes items in trees.
const SMALL: u64 = 256 << 10;

/// Which fragments are rewritten.
#[derive(Clone, Copy, Debug)]
pub struct DefragmentPolicy {
    /// Fragments of at least this many bytes stay where they are.
    pub extent_threshold: u64,
    /// How rewritten data is compressed.
    pub compression: Recompression,
}

/// How rewritten data is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompression {
    /// Compressed data stays compressed by its algorithm. Other data is treated as any data that is
    /// written.
    #[default]
    Keep,
    /// Not at all. Compressed data is rewritten for that reason alone.
    Remove,
    /// All of it by this algorithm. Data that is not compressed so is rewritten for that reason
    /// alone, and if a level is given all data is.
    With {
        /// The algorithm; not [`Compression::None`].
        algorithm: Compression,
        /// The level; the default one if none is given.
        level: Option<i32>,
    },
}

/// A part of a file that is contiguous on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fragment {
    range: Range<u64>,
    compression: Compression,
    /// It is rewritten regardless of its neighbours.
    forced: bool,
    /// Its last piece: the length, and the address on disk where it ends.
    last: (u64, Logical),
}

impl Fragment {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A range to rewrite, all of which has the same compression now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefragmentRun {
    /// Offsets in the file.
    pub range: Range<u64>,
    /// How its extents are compressed.
    pub compression: Compression,
}

/// The fragments of a file in order, as far as they may be moved.
#[derive(Debug)]
pub struct Fragments {
    policy: DefragmentPolicy,
    list: Vec<Fragment>,
    movable: u64,
}

impl Fragments {
    /// An empty list; the policy says which of the fragments that are added are rewritten.
    pub fn new(policy: DefragmentPolicy) -> Self {
        Self { policy, list: Vec::new(), movable: 0 }
    }

    /// Adds `len` bytes at `start` of the file, which may be moved. Parts that stay where they are,
    /// and holes, are not added.
    pub fn add(&mut self, start: u64, len: u64, extent: &ExtentPiece) {
        let (forced, compression) = match self.policy.compression {
            Recompression::Keep => (false, extent.compression),
            Recompression::Remove => (extent.compression != Compression::None, extent.compression),
            // The new pieces are compressed alike, whatever the old ones were.
            Recompression::With { algorithm, level } => {
                (level.is_some() || extent.compression != algorithm, Compression::None)
            }
        };
        let (place, bytes) = extent.on_disk(len);
        let last = (len, place.plus(bytes));
        self.movable += len;
        if let Some(before) = self.list.last_mut()
            && before.range.end == start
            && (before.compression, before.forced) == (compression, forced)
            && before.last.1 == place
            && !(extent.compression == Compression::None && before.last.0 < SMALL && len < SMALL)
        {
            before.range.end += len;
            before.last = last;
            return;
        }
        self.list.push(Fragment { range: start..start + len, compression, forced, last });
    }

    /// Returns how many bytes were added.
    pub fn movable(&self) -> u64 {
        self.movable
    }

    /// Returns the range of the last fragment that was added.
    pub fn last(&self) -> Option<Range<u64>> {
        self.list.last().map(|fragment| fragment.range.clone())
    }

    /// Returns how many fragments were added.
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Returns whether [`first_run`](Self::first_run) returns a range, and the same one whatever is
    /// added.
    pub fn is_settled(&self, before: Option<&DefragmentRun>, most: u64) -> bool {
        // That holds if the last fragment of the range comes before the last but one: later
        // additions change neither it nor an earlier one.
        let last_but_one = self.list.len().checked_sub(2).and_then(|index| self.list.get(index));
        let is_behind = |run: DefragmentRun| last_but_one.is_some_and(|fragment| fragment.range.start >= run.range.end);
        self.first_run(before, most).is_some_and(is_behind)
    }

    /// Returns the first range that is worth rewriting, of at most `most` bytes. It may continue
    /// `before`, the range that was rewritten just now.
    pub fn first_run(&self, before: Option<&DefragmentRun>, most: u64) -> Option<DefragmentRun> {
        let continues_before = |fragment: &Fragment| {
            let continues =
                |run: &DefragmentRun| run.range.end == fragment.range.start && run.compression == fragment.compression;
            self.is_candidate(fragment) && before.is_some_and(continues)
        };
        let joins_next = |index: usize| self.list.get(index..index + 2).is_some_and(|pair| self.are_joined(pair));
        let is_worth = |index: usize| {
            let fragment = &self.list[index];
            fragment.forced
                || joins_next(index)
                || index.checked_sub(1).is_some_and(joins_next)
                || (index == 0 && continues_before(fragment))
        };
        let first = (0..self.list.len()).find(|index| is_worth(*index))?;
        let start = self.list[first].range.start;
        let mut last = first;
        while last + 1 < self.list.len()
            && self.list[last].range.end - start < most
            && is_worth(last + 1)
            && are_neighbours(&self.list[last..last + 2])
        {
            last += 1;
        }
        let end = self.list[last].range.end.min(start + most);
        Some(DefragmentRun { range: start..end, compression: self.list[first].compression })
    }

    fn is_candidate(&self, fragment: &Fragment) -> bool {
        fragment.forced || fragment.len() < self.policy.extent_threshold
    }

    /// Returns whether two fragments become one if both are rewritten.
    fn are_joined(&self, pair: &[Fragment]) -> bool {
        are_neighbours(pair) && pair.iter().all(|fragment| self.is_candidate(fragment))
    }
}

/// Returns whether two fragments belong to one run.
fn are_neighbours(pair: &[Fragment]) -> bool {
    matches!(pair, [one, next] if one.range.end == next.range.start && one.compression == next.compression)
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::Generation;

    use super::*;

    const KIB: u64 = 1 << 10;
    const POLICY: DefragmentPolicy =
        DefragmentPolicy { extent_threshold: 1024 * KIB, compression: Recompression::Keep };

    fn extent(place: u64, len: u64, compression: Compression) -> ExtentPiece {
        let disk = if compression == Compression::None { len } else { 4 * KIB };
        ExtentPiece {
            disk_bytenr: Logical(place * KIB),
            disk_num_bytes: disk,
            offset: 0,
            ram_bytes: len,
            compression,
            prealloc: false,
            generation: Generation(1),
        }
    }

    /// Returns the first run among pieces, each given by start, length and place in KiB.
    fn run(
        policy: DefragmentPolicy,
        before: Option<Range<u64>>,
        pieces: &[(u64, u64, u64, Compression)],
    ) -> Option<(u64, u64)> {
        let mut fragments = Fragments::new(policy);
        for (start, len, place, compression) in pieces {
            fragments.add(start * KIB, len * KIB, &extent(*place, len * KIB, *compression));
        }
        let before = before
            .map(|range| DefragmentRun { range: range.start * KIB..range.end * KIB, compression: Compression::None });
        let run = fragments.first_run(before.as_ref(), 2048 * KIB)?;
        Some((run.range.start / KIB, run.range.end / KIB))
    }

    #[test]
    fn what_is_settled_stays_so() {
        let recompress =
            DefragmentPolicy { compression: Recompression::With { algorithm: ZSTD, level: None }, extent_threshold: 0 };
        for policy in [POLICY, recompress] {
            for seed in 0..200_u64 {
                let mut fragments = Fragments::new(policy);
                let (mut settled, mut at) = (None, 0);
                for number in 0..12 {
                    let chance = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(number * 5);
                    at += if chance % 3 == 0 { 8 } else { 0 };
                    let place = if chance % 5 == 0 { at } else { 1000 + 100 * u64::from(number) };
                    let kind = if chance % 7 == 0 { ZSTD } else { RAW };
                    fragments.add(at * KIB, 4 * KIB, &extent(place, 4 * KIB, kind));
                    at += 4;
                    let run = fragments.first_run(None, 16 * KIB);
                    if let Some(settled) = &settled {
                        assert_eq!(run.as_ref(), Some(settled), "{policy:?}, {seed}");
                    } else if fragments.is_settled(None, 16 * KIB) {
                        settled = run;
                    }
                }
            }
        }
        // There are holes between the fragments, so none of the others is considered.
        let mut fragments = Fragments::new(recompress);
        for number in 0..3 {
            assert!(!fragments.is_settled(None, 16 * KIB));
            fragments.add(number * 8 * KIB, 4 * KIB, &extent(100 * number, 4 * KIB, RAW));
        }
        assert!(fragments.is_settled(None, 16 * KIB));
    }

    const RAW: Compression = Compression::None;
    const ZSTD: Compression = Compression::Zstd;

    #[test]
    fn fragments_with_a_neighbour_are_worth_it() {
        for (pieces, expected) in [
            (&[(0, 4, 100, RAW)][..], None),
            // A hole between them.
            (&[(0, 4, 100, RAW), (8, 4, 200, RAW)], None),
            (&[(0, 4, 100, RAW), (4, 4, 200, RAW)], Some((0, 8))),
            (&[(0, 4, 100, RAW), (8, 4, 200, RAW), (12, 4, 300, RAW), (16, 8, 400, RAW)], Some((8, 24))),
            // Contiguous on disk, but in many extents; and in few.
            (&[(0, 4, 100, RAW), (4, 4, 104, RAW)], Some((0, 8))),
            (&[(0, 256, 1000, RAW), (256, 4, 1256, RAW)], None),
            // A large one stays, and so does a single one beside it.
            (&[(0, 1024, 5000, RAW), (1024, 4, 100, RAW)], None),
            (&[(0, 1024, 5000, RAW), (1024, 4, 100, RAW), (1028, 4, 200, RAW)], Some((1024, 1032))),
            (&[(0, 512, 5000, RAW), (512, 512, 5512, RAW), (1024, 4, 100, RAW)], None),
            // Compressed in order; in disorder; beside data that is not compressed.
            (&[(0, 128, 100, ZSTD), (128, 128, 104, ZSTD), (256, 8, 108, ZSTD)], None),
            (&[(0, 128, 100, ZSTD), (128, 128, 204, ZSTD)], Some((0, 256))),
            (&[(0, 128, 100, ZSTD), (128, 128, 204, RAW)], None),
        ] {
            assert_eq!(run(POLICY, None, pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_run_goes_on_where_the_last_one_ended() {
        let pieces = [(2048, 4, 100, RAW), (3000, 4, 200, RAW)];
        assert_eq!(run(POLICY, Some(0..2048), &pieces), Some((2048, 2052)));
        assert_eq!(run(POLICY, Some(0..2040), &pieces), None);
    }

    #[test]
    fn a_run_is_no_longer_than_allowed() {
        let pieces: Vec<_> = (0..10).map(|number| (number * 500, 500, number * 900, RAW)).collect();
        assert_eq!(run(POLICY, None, &pieces), Some((0, 2048)));
    }

    #[test]
    fn what_is_compressed_otherwise_is_rewritten_in_any_case() {
        let with = |level| DefragmentPolicy {
            compression: Recompression::With { algorithm: Compression::Zstd, level },
            ..POLICY
        };
        let pieces = [(0, 1024, 5000, RAW), (1024, 128, 100, ZSTD), (1152, 128, 104, ZSTD)];
        // Beside data that is rewritten, it becomes contiguous with that.
        assert_eq!(run(with(None), None, &pieces), Some((0, 1280)));
        assert_eq!(run(with(None), None, &pieces[1..]), None);
        assert_eq!(run(with(Some(9)), None, &pieces), Some((0, 1280)));
        let remove = DefragmentPolicy { compression: Recompression::Remove, ..POLICY };
        assert_eq!(run(remove, None, &pieces), Some((1024, 1280)));
    }
}
