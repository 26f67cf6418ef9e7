//! Discards of unused space, either while the volume is used (`discard`), or of all of it (FITRIM).
//!
//! Only space that may be allocated is discarded. No durable superblock refers to such space, so
//! its content does not matter in any state that a crash may leave. While a part is being discarded
//! it is excluded from allocation, but never so much that reserved data or metadata would find no
//! place (invariant 19). If the device, which is a server, has not answered, the part stays
//! excluded for the rest of the mount: the server may carry out the discard at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ubtrfs_format::{DeviceId, Logical, Physical, SUPERBLOCK_COPIES};
use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};

use crate::error::{Errno, Error, Result, Step};
use crate::fs_info::FsInfo;

/// Bytes that are excluded from allocation at a time.
const AT_ONCE: u64 = 256 << 20;
/// Freed space waits this long for more, since adjacent ranges are discarded as one.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Bytes of unallocated space that are discarded by one request. If the device does not answer,
/// they are not used any more in the mount.
const PIECE: u64 = 1 << 30;
/// Shorter ranges are not worth a discard while the volume is used.
const WORTH_IT: u64 = 64 << 10;
/// Bytes at each copy of the superblock that are never discarded.
const AROUND_SUPERBLOCK: u64 = 64 << 10;

/// Discards free space of a mount.
pub struct Discarder {
    info: Arc<FsInfo>,
    /// Held while space is excluded. An allocation that finds too little space waits for it.
    turn: Mutex<()>,
    stop: Mutex<bool>,
    work: Condvar,
    /// Bytes discarded so far.
    bytes: AtomicU64,
}

impl Discarder {
    pub(crate) fn new(info: Arc<FsInfo>) -> Self {
        Self {
            info,
            turn: Mutex::with_default(Rank::DiscardTurn),
            stop: Mutex::with_default(Rank::DiscardStop),
            work: Condvar::new(),
            bytes: AtomicU64::new(0),
        }
    }

    /// Returns the bytes discarded so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Waits until no space is excluded, and prevents more exclusions while the result lives.
    pub(crate) fn hold_off(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Announces that something was freed.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }
}

impl Discarder {
    /// Discards free space: that of block groups in the logical range `start..start + len`
    /// (`u64::MAX` as `len` stands for all that follows), in pieces of at least `least` bytes; and,
    /// whatever the range, unallocated space of the devices. Returns the number of discarded bytes
    /// of the devices. `EINVAL` for a range that is invalid or less than a sector, `EOPNOTSUPP` if
    /// the device can't discard.
    pub fn trim(&self, start: u64, len: u64, least: u64) -> Result<u64> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        ubtrfs_tree::ensure_may_block()?;
        let sector = u64::from(self.info.volume.sector_size());
        let end = if len == u64::MAX { Some(u64::MAX) } else { start.checked_add(len) };
        let end = end.filter(|_| len >= sector && start != u64::MAX).ok_or(Errno::INVAL)?;
        let least = least.max(sector);
        // Space is allocated and freed in sectors.
        let (start, end) = (start.checked_next_multiple_of(sector).unwrap_or(end), end - end % sector);
        // Pinned space may be free by now. Free space that waits for its discard is discarded here.
        self.info.space.unpin();
        self.info.space.lock().take_freed();
        let mut bytes = self.discard_groups(start, end, least)?;
        let devices: Vec<_> = self.info.volume.devices().items().iter().map(|item| item.devid).collect();
        for devid in devices {
            bytes += self.discard_unallocated(devid, 0, u64::MAX, least)?;
        }
        Ok(bytes)
    }

    /// Discards what commits have freed since the last call.
    pub(crate) fn discard_freed(&self) -> Result<()> {
        let freed = self.info.space.lock().take_freed();
        for (start, len) in freed.extents.into_iter().filter(|(_, len)| *len >= WORTH_IT) {
            self.discard_groups(start, start + len, WORTH_IT)?;
        }
        for (devid, start, len) in freed.vacated {
            self.discard_unallocated(devid, start, start + len, WORTH_IT)?;
        }
        Ok(())
    }

    fn discard_groups(&self, start: u64, end: u64, least: u64) -> Result<u64> {
        let mut bytes = 0;
        let mut at = start;
        while at < end && !self.info.is_read_only() {
            let _turn = self.turn.lock();
            let (ranges, next) = self.info.space.lock().exclude_free(at, end, least, AT_ONCE);
            let mut discarded = Ok(0);
            for (start, len) in ranges {
                if let Ok(sum) = discarded {
                    let result = self.info.volume.writer().discard(Logical(start), len);
                    let is_open = result.as_ref().is_err_and(ubtrfs_volume::Error::is_unanswered_discard);
                    discarded = supported(result).map(|bytes| sum + bytes);
                    if is_open {
                        self.info.space.lock().exclude_for_good(Logical(start), len);
                        continue;
                    }
                }
                self.info.space.lock().make_available(Logical(start), len);
            }
            bytes += self.count(discarded)?;
            let Some(next) = next else { break };
            at = next;
        }
        Ok(bytes)
    }

    fn discard_unallocated(&self, devid: DeviceId, start: u64, end: u64, least: u64) -> Result<u64> {
        let mut bytes = 0;
        let mut at = start;
        while at < end && !self.info.is_read_only() {
            let _turn = self.turn.lock();
            let Some((start, len)) = self.info.space.lock().devices_mut().exclude(devid, at, end) else { break };
            at = start + len;
            let (mut discarded, mut kept) = (Ok(0), start);
            let ranges = around_superblocks(start, at).into_iter().filter(|(_, len)| *len >= least);
            for (start, len) in ranges.flat_map(pieces) {
                let Ok(sum) = discarded else { break };
                let result = self.info.volume.writer().discard_unallocated(devid, Physical(start), len);
                if result.as_ref().is_err_and(ubtrfs_volume::Error::is_unanswered_discard) {
                    // The chunk allocator does not use this part in this mount.
                    self.info.space.lock().devices_mut().release(devid, kept, start - kept);
                    kept = start + len;
                }
                discarded = supported(result).map(|bytes| sum + bytes);
            }
            self.info.space.lock().devices_mut().release(devid, kept, at - kept);
            bytes += self.count(discarded)?;
        }
        Ok(bytes)
    }

    fn count(&self, discarded: Result<u64>) -> Result<u64> {
        self.bytes.fetch_add(*discarded.as_ref().unwrap_or(&0), Ordering::Relaxed);
        discarded
    }

    /// Starts the thread that discards freed space.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let discarder = self.clone();
        ubtrfs_threads::thread::Builder::new().name("discard".into()).spawn(move || discarder.discard_in_background())
    }

    /// Stops this thread after its current range.
    pub(crate) fn stop(&self) {
        *self.stop.lock() = true;
        self.work.notify_all();
    }

    fn discard_in_background(&self) {
        loop {
            {
                let mut stop = self.stop.lock();
                if !*stop {
                    self.work.wait(&mut stop);
                }
                if !*stop {
                    self.work.wait_for(&mut stop, MAX_WAIT);
                }
                if *stop {
                    return;
                }
            }
            if let Err(error) = self.discard_freed() {
                // This loses nothing but space on the device.
                tracing::warn!("freed space is no longer discarded");
                self.info.writability.note_error(&error.at(Step::Discard));
                self.info.space.lock().stop_discards();
                return;
            }
        }
    }
}

fn supported(discarded: ubtrfs_volume::Result<Option<u64>>) -> Result<u64> {
    discarded?.ok_or(Error::Posix(Errno::OPNOTSUPP))
}

/// Divides a range of a device into pieces for one request each.
fn pieces((start, len): (u64, u64)) -> impl Iterator<Item = (u64, u64)> {
    (start..start + len).step_by(PIECE as usize).map(move |at| (at, PIECE.min(start + len - at)))
}

/// Returns the parts of `start..end` of a device without the copies of its superblock.
fn around_superblocks(start: u64, end: u64) -> Vec<(u64, u64)> {
    let mut pieces = Vec::new();
    let mut at = start;
    for copy in SUPERBLOCK_COPIES.iter().map(|copy| copy.0) {
        if copy < end && copy + AROUND_SUPERBLOCK > at {
            pieces.push((at, copy.saturating_sub(at)));
            at = copy + AROUND_SUPERBLOCK;
        }
    }
    pieces.push((at, end.saturating_sub(at)));
    pieces.retain(|(_, len)| *len > 0);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn superblocks_are_left_alone() {
        const MIB: u64 = 1 << 20;
        assert_eq!(around_superblocks(MIB, 10 * MIB), [(MIB, 9 * MIB)]);
        let clipped = [(MIB, 63 * MIB), (64 * MIB + AROUND_SUPERBLOCK, 36 * MIB - AROUND_SUPERBLOCK)];
        assert_eq!(around_superblocks(MIB, 100 * MIB), clipped);
        assert_eq!(around_superblocks(64 * MIB, 64 * MIB + AROUND_SUPERBLOCK), []);
        assert_eq!(
            around_superblocks(64 * MIB + 4096, 65 * MIB),
            [(64 * MIB + AROUND_SUPERBLOCK, MIB - AROUND_SUPERBLOCK)]
        );
    }
}
