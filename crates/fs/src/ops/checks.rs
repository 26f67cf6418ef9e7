//! Checks of names and inodes at the beginning of an operation.

use ubtrfs_format::items::MAX_NAME_LEN;

use crate::error::{Errno, Result};
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId};

/// An error if the inode is only the placeholder of a subvolume that is elsewhere: it has no items
/// that could change.
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
