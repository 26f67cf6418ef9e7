//! Data that a read leaves for its caller to read (invariant 11).
//!
//! A read fills in what is in memory and records what is not, with checksums. The caller reads that
//! part without holding a lock of the inode, so the extents may be freed meanwhile. The commit that
//! contains them stays pinned, so that their space is not reused. Data that is in no commit may be
//! overwritten; then the checksums differ, and the read has to begin again. So only data with
//! checksums is left to callers.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_format::Logical;
use ubtrfs_volume::{ALIGNMENT, DirectRead, Volume};

use crate::committed::Committed;

/// The most parts that are left to a caller: its thread has other requests to serve, too.
const MAX_PARTS: usize = 12;
/// The most bytes of a part. If a device splits a read into pieces (a loop device takes 128 pages
/// in one request), the kernel does not begin it at once but leaves it to a thread. Besides, the
/// mirrors of a volume read parts of one request at the same time.
const PART: usize = 256 << 10;
/// Checksums of at least this many bytes take long to compute.
const LONG_SUM: usize = 16;
/// The most bytes that are left to a caller if checksums take long to compute.
const MAX_WITH_LONG_SUMS: usize = 16 << 10;

/// Sectors that the caller of a read has to read, and to verify.
#[derive(Debug)]
pub struct DeferredRead {
    /// The place on a device that they are read from.
    pub from: DirectRead,
    /// The bytes of the read's buffer that they belong to.
    pub range: Range<usize>,
    /// Their checksums, one after the other.
    sums: Vec<u8>,
}

impl DeferredRead {
    /// Whether `sectors` is the wanted data. If not, the read has to be repeated in a thread that
    /// may block, which also finds and repairs damage.
    pub fn is_right(&self, volume: &Volume, sectors: &[u8]) -> bool {
        sectors.len() == self.range.len() && volume.reader().is_right_data(sectors, &self.sums)
    }
}

/// The result of a read: which part of its buffer it has filled, and which part it has left to its
/// caller.
pub struct BegunRead {
    /// Number of the requested bytes that the file has.
    pub len: usize,
    missing: Vec<DeferredRead>,
    /// Keeps the space of its extents from being reused, as long as this value lives. So the
    /// missing parts are private, and can't be moved out without it.
    _committed: Arc<Committed>,
}

impl BegunRead {
    /// The missing parts.
    pub fn missing(&self) -> &[DeferredRead] {
        &self.missing
    }

    /// Whether the buffer contains the right data for all missing parts: [`DeferredRead::is_right`]
    /// of each.
    pub fn is_right(&self, volume: &Volume, buffer: &[u8]) -> bool {
        let is_right =
            |part: &DeferredRead| buffer.get(part.range.clone()).is_some_and(|sectors| part.is_right(volume, sectors));
        self.missing.iter().all(is_right)
    }
}

/// Collects the parts that a read leaves to its caller.
pub(crate) struct Deferrals {
    /// The address range of the read's buffer, from which the position of a part is computed.
    buffer: Range<usize>,
    missing: RefCell<Vec<DeferredRead>>,
}

impl Deferrals {
    /// Creates an empty collection for a read into `buf`.
    pub(crate) fn of(buf: &[u8]) -> Self {
        Self { buffer: addresses(buf), missing: RefCell::default() }
    }

    /// Leaves the sectors at the logical address `at`, which belong into `part` of the buffer, to
    /// the caller. Returns `false` if that is impossible.
    pub(crate) fn defer(&self, volume: &Volume, at: Logical, part: &[u8], sums: Option<&[u8]>) -> bool {
        let Some(sums) = sums else { return false };
        if sums.len() != part.len() / volume.sector_size() as usize * volume.checksum().size() {
            return false;
        }
        // Sectors that are not aligned like this, and compressed ones, are read into another
        // buffer.
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
            let Some(from) = volume.reader().direct_read(at.plus(offset as u64), bytes.len()) else {
                missing.truncate(before);
                return false;
            };
            let first = start - self.buffer.start + offset;
            missing.push(DeferredRead { from, range: first..first + bytes.len(), sums: sums.to_vec() });
        }
        true
    }

    /// Whether nothing has been left so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.missing.borrow().is_empty()
    }

    /// Returns what has been read of the `len` bytes of the file, and what was left.
    pub(crate) fn into_begun(self, len: usize, committed: Arc<Committed>) -> BegunRead {
        BegunRead { len, missing: self.missing.into_inner(), _committed: committed }
    }
}

fn addresses(memory: &[u8]) -> Range<usize> {
    let Range { start, end } = memory.as_ptr_range();
    start.addr()..end.addr()
}
