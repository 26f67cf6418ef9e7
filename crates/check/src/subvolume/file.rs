//! Checks the content of an inode: its extents in order.

use ubtrfs_format::items::{Compression, FileExtent, FileExtentKind, InodeFlags, InodeItem};
use ubtrfs_format::posix::{S_IFLNK, S_IFMT, S_IFREG};

use crate::fault::{FaultKind, Location};
use crate::ranges::RangeSet;
use crate::report::Faults;

/// The properties of the volume that checks of files need.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) sector_size: u64,
    /// Whether holes need no item.
    pub(crate) no_holes: bool,
    /// The addresses that have csums; `None` if not all of the csum tree could be read.
    pub(crate) covered: Option<&'a RangeSet>,
    /// Data extents that are shared. What one file has of them as data, another may have as
    /// preallocated space.
    pub(crate) shared: &'a RangeSet,
}

/// The type bits of a mode.
pub(super) fn file_type(item: &InodeItem) -> u32 {
    item.mode & S_IFMT
}

/// The extents of an inode so far.
#[derive(Debug, Default)]
pub(super) struct Content {
    /// The offset at which the next extent is expected.
    next: u64,
    nbytes: u64,
    extents: u64,
    first_gap: Option<u64>,
    /// The length of the content of an inline extent.
    inline: Option<u64>,
    /// Whether that content ends with a zero byte.
    ends_with_zero: bool,
}

impl Content {
    /// Adds the extent at `offset`.
    pub(super) fn extent(
        &mut self,
        offset: u64,
        extent: &FileExtent<'_>,
        inode: Option<&InodeItem>,
        rules: &Rules<'_>,
        place: &Location,
        faults: &mut Faults,
    ) {
        self.extents += 1;
        if offset < self.next && self.extents > 1 {
            faults.add(FaultKind::FileExtentsOverlap { offset }, place.clone());
        } else if offset > self.next {
            self.first_gap.get_or_insert(self.next);
        }
        let mut broken = |rule| faults.add(FaultKind::FileExtentRule { offset, rule }, place.clone());
        let compressed = extent.compression != Compression::None;
        let end = match extent.kind {
            FileExtentKind::Inline(data) => {
                if offset != 0 {
                    broken("inline, but not at the start");
                }
                if compressed && extent.ram_bytes > rules.sector_size {
                    broken("inline and longer than a sector");
                }
                if !compressed && data.len() as u64 != extent.ram_bytes {
                    broken("inline, but of another length than its data");
                }
                self.inline = Some(extent.ram_bytes);
                self.ends_with_zero = !compressed && data.last() == Some(&0);
                self.nbytes = self.nbytes.saturating_add(extent.ram_bytes);
                offset.saturating_add(extent.ram_bytes).checked_next_multiple_of(rules.sector_size)
            }
            FileExtentKind::Regular { disk_bytenr, offset: inside, num_bytes, prealloc, .. } => {
                if num_bytes == 0 {
                    broken("covers nothing");
                }
                if disk_bytenr.0 != 0 {
                    self.nbytes = self.nbytes.saturating_add(num_bytes);
                    if inside.checked_add(num_bytes).is_none_or(|end| end > extent.ram_bytes) {
                        broken("reaches beyond its data");
                    }
                    if compressed && prealloc {
                        broken("preallocated, but compressed");
                    }
                    if compressed && inode.is_some_and(|item| item.flags & InodeFlags::NODATASUM != 0) {
                        broken("compressed in a file without checksums");
                    }
                    judge_checksums(extent, inode, rules, place, faults);
                }
                offset.checked_add(num_bytes)
            }
        };
        self.next = self.next.max(end.unwrap_or(u64::MAX));
    }

    /// Checks the content as a whole at the end of the inode's items.
    pub(super) fn finish(self, item: &InodeItem, rules: &Rules<'_>, place: &Location, faults: &mut Faults) {
        if file_type(item) == S_IFLNK && item.nlink != 0 {
            let mut broken = |rule| faults.add(FaultKind::SymlinkRule { rule }, place.clone());
            match self.inline {
                Some(length) if self.extents == 1 => {
                    // btrfs-convert writes targets with a terminating zero, which does not count.
                    let target = length.saturating_sub(u64::from(self.ends_with_zero));
                    if target != item.size {
                        broken("its size is not the length of its target");
                    }
                }
                _ => broken("its target is not one inline extent"),
            }
        } else if self.extents != 0 && ![S_IFREG, S_IFLNK].contains(&file_type(item)) {
            faults.add(FaultKind::UnexpectedContent { what: "extents" }, place.clone());
        }
        if file_type(item) != S_IFREG && file_type(item) != S_IFLNK {
            return;
        }
        // The next mount removes an inode without names; a part of it may be gone already.
        if item.nbytes != self.nbytes && item.nlink != 0 {
            faults.add(FaultKind::Nbytes { found: item.nbytes, expected: self.nbytes }, place.clone());
        }
        let gap = self.first_gap.or((self.next < item.size).then_some(self.next));
        if let Some(offset) = gap.filter(|gap| *gap < item.size && !rules.no_holes && item.nlink != 0) {
            faults.add(FaultKind::FileGap { offset }, place.clone());
        }
    }
}

/// Checks that written data has csums, unless the file has none, and that preallocated space has
/// none.
fn judge_checksums(
    extent: &FileExtent<'_>,
    inode: Option<&InodeItem>,
    rules: &Rules<'_>,
    place: &Location,
    faults: &mut Faults,
) {
    let (Some(covered), Some(inode)) = (rules.covered, inode) else { return };
    let FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, num_bytes, prealloc } = extent.kind else {
        return;
    };
    let (start, length) = if extent.compression == Compression::None {
        (disk_bytenr.plus(offset), num_bytes)
    } else {
        (disk_bytenr, disk_num_bytes)
    };
    let found = covered.len_within(start.0, start.plus(length).0);
    let place = || place.clone().in_block(start);
    if prealloc || inode.flags & InodeFlags::NODATASUM != 0 {
        if found != 0 && rules.shared.len_within(start.0, start.plus(length).0) == 0 {
            let of = if prealloc { "reserved space" } else { "a file that has none" };
            faults.add(FaultKind::OddChecksum { length: found, of }, place());
        }
    } else if found < length {
        faults.add(FaultKind::MissingChecksum { length: length - found }, place());
    }
}
