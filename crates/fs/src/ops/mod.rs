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
mod rename;
mod resize;
mod room;
mod salvage;
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
pub(crate) use resize::{MAX_FILE_SIZE, NewSize};

use ubtrfs_format::items::{MAX_NAME_LEN, Timespec};

use crate::error::{Errno, Result};
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId};

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
