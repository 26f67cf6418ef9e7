//! Positions in listings of directories: the offsets that the kernel sends, and that telldir(3)
//! returns.
//!
//! A listing shows no entry that was added after it began; otherwise a program that renames what it
//! reads would never end. So every position also encodes where its listing ends. A handle could not
//! carry that: directories are not opened (OPENDIR is answered ENOSYS), and the kernel caches
//! listings by inode, not by handle. It serves a program in the middle of a listing from what
//! others have read, without a request, by looking for the reader's position there. So listings
//! that end at different entries have only the beginning in common as a position, and none is
//! continued with entries of another.
//!
//! All listings also have the end in common: the position behind the last entry is always
//! [`AT_THE_END`]. A program that stops there, since it has seen what it wanted, leaves the kernel
//! with a listing that lacks only the end. Any later reader completes it, and only then does the
//! kernel begin to cache a new listing in place of the old one.

use ubtrfs_format::DirIndex;

/// The positions behind `.` and `..`. Entries have numbers from 2 on.
pub(crate) const AFTER_DOT: u64 = 1;
pub(crate) const AFTER_DOTS: u64 = 2;
/// The offset behind the last entry of every listing.
pub(crate) const AT_THE_END: u64 = 0x7fff_ffff;

/// The positions of a listing that ends below this fit into 31 bits, since programs of 32 bits that
/// are built without support for large files can't take others. The position is in the lower 16
/// bits, the end above.
const PAIRS_OF_31_BITS: u64 = 1 << 15;
/// The offsets of a listing that ends below this have the position in the lower 31 bits, the end in
/// the next 31, and [`IS_PAIR`].
const PAIRS: u64 = (1 << 31) - 1;
const IS_PAIR: u64 = 1 << 62;
/// The offsets of all other listings do not have the end. Positions below this have [`IS_BARE`];
/// higher ones, which only damage makes, have [`IS_HIGH`] and are counted from this number.
const BARE: u64 = 1 << 61;
const IS_BARE: u64 = 1 << 61;
const IS_HIGH: u64 = 1 << 63;

/// A position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// What follows: `.`, `..`, or the first entry with this number or a higher one.
    pub(crate) next: u64,
    /// Where the listing ends.
    pub(crate) end: End,
}

/// Where a listing ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// At this entry.
    At(DirIndex),
    /// Where the listing ends that was begun last in the directory, since the offset has no room
    /// for the number.
    AsTheLast,
    /// The position belongs to no listing: it is the beginning of one, or a program has made it up.
    Begins,
}

impl End {
    /// The end of a listing that is to end at this entry.
    pub(crate) fn at(last: DirIndex) -> Self {
        if last.0 < PAIRS { Self::At(last) } else { Self::AsTheLast }
    }
}

impl Position {
    /// Decodes the position from an offset.
    pub(crate) fn of(offset: u64) -> Self {
        let made_up = Self { next: offset, end: End::Begins };
        let bare = |next| Self { next, end: End::AsTheLast };
        let pair = |next, end| Self { next, end: End::At(DirIndex(end)) };
        // A program may have made up such an offset, for instance by lseek(2) from the end.
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

    /// Encodes the position as an offset. The listing ends before the very highest numbers, which
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

    /// Ends at each limit and beside it.
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
