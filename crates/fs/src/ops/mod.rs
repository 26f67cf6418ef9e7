//! The operations of a file system: what programs ask for.

mod attr;
mod clone;
mod create;
mod fallocate;
mod flags;
mod fsync;
mod link;
mod lock;
mod lookup;
mod punch;
mod read;
mod remount;
mod rename;
mod resize;
mod room;
mod salvage;
mod search;
mod statfs;
mod write;
mod xattr;

pub use attr::{Attributes, ModeAndXattr, Plan, SetAttributes, TimeChange};
pub use create::NewInode;
pub use flags::{Flagged, FlagsAndXattrPlan, FlagsPlan, SETTABLE_FLAGS};
pub use fsync::FsyncLeader;
pub use rename::RenameFlags;
pub use salvage::{FoundInode, FoundSubvolume};
pub use statfs::FilesystemStats;
pub use xattr::XattrMode;

pub use write::WriteAt;

pub(crate) use create::inode_target;
pub(crate) use lock::LockedInodes;
pub(crate) use resize::MAX_FILE_SIZE;

pub use search::FoundItem;

use std::sync::Arc;

use parking_lot::Mutex;
use ubtrfs_format::items::{MAX_NAME_LEN, Timespec};

use crate::commit::Committer;
use crate::error::{Errno, Result};
use crate::file_reader::FileReader;
use crate::fs_info::FsInfo;
use crate::inactivate::Inactivator;
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId};
use crate::log::Log;
use crate::names::Names;
use crate::reserve::Reserver;
use crate::writeback::Writeback;

/// The operations of a mount, and the owners that they work with.
pub(crate) struct Operations {
    pub(crate) info: Arc<FsInfo>,
    pub(crate) names: Arc<Names>,
    pub(crate) reader: Arc<FileReader>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) log: Arc<Log>,
    pub(crate) committer: Arc<Committer>,
    pub(crate) inactivator: Arc<Inactivator>,
    pub(crate) reserver: Arc<Reserver>,
    /// Held by a rename that moves a directory to another one: no cycle may come about.
    pub(crate) rename_lock: Mutex<()>,
}

/// The time that changes are stamped with.
pub(crate) fn now() -> Timespec {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timespec { sec: time.tv_sec as u64, nsec: time.tv_nsec as u32 }
}

/// An error if the inode only stands in for a subvolume that is elsewhere: it has no items that
/// could change.
pub(crate) fn check_real(id: InodeId) -> Result<()> {
    if id.ino == EMPTY_SUBVOLUME_INO { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// An error unless `name` can be a new entry's.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." {
        return Err(Errno::EXIST.into());
    }
    if name.len() > MAX_NAME_LEN {
        return Err(Errno::NAMETOOLONG.into());
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    Ok(())
}
