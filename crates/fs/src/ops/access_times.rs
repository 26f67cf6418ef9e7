//! Access times.

use std::sync::Arc;

use ubtrfs_format::items::{InodeFlags, InodeItem, Timespec};
use ubtrfs_format::posix::SECONDS_PER_DAY;

use crate::error::Result;
use crate::fs_info::FsInfo;
use crate::inode::Inode;
use crate::item_sizes::INODE_ITEM;
use crate::reserve::Reserver;
use ubtrfs_space::Demand;

/// Records when inodes were last read.
pub(crate) struct AccessTimes {
    pub(super) info: Arc<FsInfo>,
    pub(super) reserver: Arc<Reserver>,
}

impl AccessTimes {
    /// Records an access as `relatime` does: if the recorded access is not later than the last
    /// change, or a day old. In non-blocking mode this fails, and has changed nothing, if others
    /// hold the lock of the inode.
    pub(crate) fn touch(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.info.options.no_atime || self.info.check_writable(inode.id.subvolume).is_err() {
            return Ok(());
        }
        if inode.read().item.flags & InodeFlags::NOATIME != 0 {
            return Ok(());
        }
        let time = self.info.now();
        let is_strict = self.info.options.strict_atime;
        let stale = |item: &InodeItem| {
            let before = |a: Timespec, b: Timespec| (a.sec as i64, a.nsec) <= (b.sec as i64, b.nsec);
            is_strict && (item.atime.sec, item.atime.nsec) != (time.sec, time.nsec)
                || before(item.atime, item.mtime)
                || before(item.atime, item.ctime)
                || (item.atime.sec as i64).saturating_add(SECONDS_PER_DAY) <= time.sec as i64
        };
        if !stale(&inode.read().item) {
            return Ok(());
        }
        let demand = Demand { edits: 1, item_bytes: INODE_ITEM, ..Demand::default() };
        // A read must not wait for a commit: if there is no space, the access is not recorded.
        let reservation = self.reserver.reserve_at_once(demand);
        let mut state = if let Some(state) = inode.try_write() {
            state
        } else {
            ubtrfs_tree::ensure_may_block()?;
            inode.write()
        };
        if state.dead {
            return Ok(());
        }
        let transaction = self.info.gate.enter();
        // The item of an inode that has changed in the open transaction is written anyway.
        if reservation.is_some() || state.pending.generation == transaction.generation {
            state.join(inode, &transaction);
            state.item.atime = time;
        }
        Ok(())
    }
}
