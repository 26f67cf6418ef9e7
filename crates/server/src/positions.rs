//! Positions in listings of directories: the offsets that the kernel sends, and that telldir(3)
//! returns.
//!
//! A listing shows no entry that was added after it began, or a program that renames what it reads
//! would never end. So every position carries where its listing ends. Directories are not opened
//! (OPENDIR is answered ENOSYS), and an open handle could not carry it: the kernel caches listings
//! of an inode, not of a handle, and serves a program in the middle of one from what others have
//! read, without a request. It looks for the reader's position there. So listings that end at
//! different entries have no position in common but the beginning, and none is continued with
//! entries of another.
//!
//! All have their end in common, too: behind its last entry each one is [`AT_THE_END`]. A program
//! that breaks off there, having seen what it wanted, leaves the kernel with a listing that lacks
//! nothing but the end. Any later reader brings that, and only then does the kernel begin to keep
//! a new listing in place of the old one.

use ubtrfs_format::DirIndex;

/// Positions behind `.` and `..`. Entries have numbers from 2 on.
pub(crate) const AFTER_DOT: u64 = 1;
pub(crate) const AFTER_DOTS: u64 = 2;
/// The offset behind the last entry of every listing.
pub(crate) const AT_THE_END: u64 = 0x7fff_ffff;

/// A listing that ends below this has positions that are positive in 31 bits: programs of 32 bits
/// that are built without support for large files can't take others. The position is in the lower
/// 16 bits, the end above.
const PAIRS_OF_31_BITS: u64 = 1 << 15;
/// One that ends below this has the position in the lower 31 bits, the end in the next 31, and
/// [`IS_PAIR`].
const PAIRS: u64 = (1 << 31) - 1;
const IS_PAIR: u64 = 1 << 62;
/// Any other has no end in its positions. Positions below this have [`IS_BARE`]; others, which
/// damage makes, have [`IS_HIGH`] and are counted from here.
const BARE: u64 = 1 << 61;
const IS_BARE: u64 = 1 << 61;
const IS_HIGH: u64 = 1 << 63;

/// A position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// What follows: `.`, `..`, or the entry of this number, or the next one that there is.
    pub(crate) next: u64,
    /// Where the listing ends.
    pub(crate) end: End,
}

/// Where a listing ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At this entry.
    At(DirIndex),
    /// Where that one ends that was begun last in the directory: there is no room for the number.
    AsTheLast,
    /// The position is of no listing: it is the beginning of one, or a program has made it up.
    Begins,
}

impl End {
    /// Of a listing that is to end at this entry.
    pub(crate) fn at(last: DirIndex) -> Self {
        if last.0 < PAIRS { Self::At(last) } else { Self::AsTheLast }
    }
}

impl Position {
    /// The position that an offset means.
    pub(crate) fn of(offset: u64) -> Self {
        let made_up = Self { next: offset, end: End::Begins };
        let bare = |next| Self { next, end: End::AsTheLast };
        let pair = |next, end| Self { next, end: End::At(DirIndex(end)) };
        // A program may have made up the others, by lseek(2) from the end for instance.
        let checked = |next, end| if (AFTER_DOT..=end + 1).contains(&next) { pair(next, end) } else { made_up };
        match offset {
            AT_THE_END => pair(offset & 0xffff, offset >> 16),
            0x1_0000..=0x7fff_ffff => checked(offset & 0xffff, offset >> 16),
            _ if offset & IS_HIGH != 0 => bare((offset ^ IS_HIGH) + BARE),
            _ if offset & IS_PAIR != 0 => checked(offset & 0x7fff_ffff, offset >> 31 & 0x7fff_ffff),
            _ if offset & IS_BARE != 0 => bare(offset ^ IS_BARE),
            _ => made_up,
        }
    }

    /// The offset that means this position. The listing ends before the very highest numbers, which
    /// only damage makes.
    pub(crate) fn offset(self) -> u64 {
        match self.end {
            End::At(end) if end.0 < PAIRS_OF_31_BITS => end.0 << 16 | self.next,
            End::At(end) => IS_PAIR | end.0 << 31 | self.next,
            End::AsTheLast | End::Begins if self.next < BARE => IS_BARE | self.next,
            End::AsTheLast | End::Begins if self.next - BARE < IS_HIGH => IS_HIGH | (self.next - BARE),
            End::AsTheLast | End::Begins => AT_THE_END,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends at and beside each limit.
    const ENDS: [u64; 10] = [1, 2, 9, 32_766, 32_767, 32_768, 70_000, PAIRS - 1, PAIRS, BARE];

    #[test]
    fn an_offset_means_the_position_that_it_was_made_of_and_no_other() {
        let mut seen = std::collections::HashMap::new();
        seen.insert(AT_THE_END, Position::of(AT_THE_END));
        for last in ENDS.map(DirIndex) {
            let end = End::at(last);
            let numbers = ENDS.iter().flat_map(|number| [*number, number + 1, number + 2]);
            for next in numbers.filter(|next| *next <= last.0 + 1).chain([AFTER_DOT, AFTER_DOTS]) {
                let position = Position { next, end };
                assert_eq!(Position::of(position.offset()), position);
                let other = seen.insert(position.offset(), position);
                assert!(other.is_none_or(|other| other == position), "{position:?} and {other:?}");
                assert!(i64::try_from(position.offset()).is_ok_and(|offset| offset > 0) || next >= BARE);
            }
        }
    }

    #[test]
    fn directories_of_a_few_names_have_positions_of_31_bits() {
        for last in [1, 100, 32_767] {
            for next in [AFTER_DOT, AFTER_DOTS, last + 1] {
                let position = Position { next, end: End::at(DirIndex(last)) };
                assert!(i32::try_from(position.offset()).is_ok());
            }
        }
    }

    #[test]
    fn numbers_that_a_program_makes_up_are_where_the_entries_are() {
        let far = [1 << 31, 1 << 60, 1 << 62, (1 << 62) + 70, 3 << 61];
        for next in [0, AFTER_DOT, AFTER_DOTS, 3, 0xffff, 4 << 20, (4 << 20) + 70].into_iter().chain(far) {
            assert_eq!(Position::of(next), Position { next, end: End::Begins });
        }
    }

    #[test]
    fn nothing_follows_the_end_and_the_highest_numbers() {
        let position = Position::of(AT_THE_END);
        let End::At(end) = position.end else { panic!("{position:?}") };
        assert!(position.next > end.0 + 1);
        let at = |next| Position { next, end: End::AsTheLast };
        for next in [BARE, 1 << 63, (1 << 63) + BARE - 1] {
            assert_eq!(Position::of(at(next).offset()), at(next));
        }
        for next in [(1 << 63) + BARE, u64::MAX - 1, u64::MAX] {
            assert_eq!(at(next).offset(), AT_THE_END);
        }
    }
}
