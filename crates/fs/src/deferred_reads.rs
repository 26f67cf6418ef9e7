//! Data that a read leaves to its caller (invariant 11).
//!
//! A read fills what is in memory and notes what is not, with checksums. The caller holds no lock
//! of the inode meanwhile, so the extents may be freed; the commit that has them stays pinned, so
//! that their space is not used again. What no commit has had may be overwritten. Then the
//! checksums differ, and the read has to begin again: so only data that has checksums is left to
//! callers.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_format::Logical;
use ubtrfs_volume::{ALIGNMENT, DirectRead, Volume};

use crate::committed::Committed;

/// Parts that are left to a caller, at the most: its thread has others to serve, too.
const MAX_PARTS: usize = 12;
/// Bytes of a part, at the most. A read that a device takes in pieces (a loop device takes 128
/// pages in one request) is not begun at once by the kernel, which leaves it to a thread; and the
/// mirrors of a volume read parts of one request at the same time.
const PART: usize = 256 << 10;
/// Bytes of a checksum from which on it takes long to compute.
const LONG_SUM: usize = 16;
/// Bytes that are left to a caller where that is so.
const MAX_WITH_LONG_SUMS: usize = 16 << 10;

/// Sectors that the caller of a read has to read, and to verify.
#[derive(Debug)]
pub struct DeferredRead {
    /// Where they are read from.
    pub from: DirectRead,
    /// Where they belong in the buffer of the read, in bytes.
    pub range: Range<usize>,
    /// Their checksums, one after the other.
    sums: Vec<u8>,
}

impl DeferredRead {
    /// Whether these are the sectors that were to be read. If not, the read has to be done again,
    /// in a thread that may block: that also finds and mends what is damaged.
    pub fn is_right(&self, volume: &Volume, sectors: &[u8]) -> bool {
        sectors.len() == self.range.len() && volume.is_right_data(sectors, &self.sums)
    }
}

/// What a read has filled of its buffer, and what it has left to its caller.
pub struct BegunRead {
    /// Bytes that the file has of what was asked for.
    pub len: usize,
    missing: Vec<DeferredRead>,
    /// Keeps the space of its extents from being used again, as long as this value lives: so what
    /// is missing is private, and no closure takes that alone.
    _committed: Arc<Committed>,
}

impl BegunRead {
    /// What is missing.
    pub fn missing(&self) -> &[DeferredRead] {
        &self.missing
    }

    /// Whether the buffer has the sectors that were missing: [`DeferredRead::is_right`] of each.
    pub fn is_right(&self, volume: &Volume, buffer: &[u8]) -> bool {
        let is_right =
            |part: &DeferredRead| buffer.get(part.range.clone()).is_some_and(|sectors| part.is_right(volume, sectors));
        self.missing.iter().all(is_right)
    }
}

/// Collects what a read leaves.
pub(crate) struct Deferrals {
    /// The addresses of the read's buffer, to tell where in it a part is.
    buffer: Range<usize>,
    missing: RefCell<Vec<DeferredRead>>,
}

impl Deferrals {
    /// Of a read into `buf`.
    pub(crate) fn of(buf: &[u8]) -> Self {
        Self { buffer: addresses(buf), missing: RefCell::default() }
    }

    /// Leaves sectors, at `at`, that belong into `part` of the buffer. False: that is impossible.
    pub(crate) fn defer(&self, volume: &Volume, at: Logical, part: &[u8], sums: Option<&[u8]>) -> bool {
        let Some(sums) = sums else { return false };
        if sums.len() != part.len() / volume.sector_size() as usize * volume.checksum().size() {
            return false;
        }
        // Sectors at no such bounds, and packed ones, are read into a buffer of their own.
        let Range { start, end } = addresses(part);
        if start < self.buffer.start || end > self.buffer.end || !start.is_multiple_of(ALIGNMENT) {
            return false;
        }
        let mut missing = self.missing.borrow_mut();
        let before = missing.len();
        if before + part.len().div_ceil(PART) > MAX_PARTS
            || volume.checksum().size() >= LONG_SUM && self.buffer.len() > MAX_WITH_LONG_SUMS
        {
            return false;
        }
        let sums_of_part = PART / volume.sector_size() as usize * volume.checksum().size();
        for ((offset, bytes), sums) in (0..).step_by(PART).zip(part.chunks(PART)).zip(sums.chunks(sums_of_part)) {
            let Some(from) = volume.direct_read(at.plus(offset as u64), bytes.len()) else {
                missing.truncate(before);
                return false;
            };
            let first = start - self.buffer.start + offset;
            missing.push(DeferredRead { from, range: first..first + bytes.len(), sums: sums.to_vec() });
        }
        true
    }

    /// Whether nothing was left so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.missing.borrow().is_empty()
    }

    /// What has been read of the `len` bytes of the file, and what was left.
    pub(crate) fn into_begun(self, len: usize, committed: Arc<Committed>) -> BegunRead {
        BegunRead { len, missing: self.missing.into_inner(), _committed: committed }
    }
}

fn addresses(memory: &[u8]) -> Range<usize> {
    let Range { start, end } = memory.as_ptr_range();
    start.addr()..end.addr()
}
