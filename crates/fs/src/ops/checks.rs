//! Checks of names and inodes at the beginning of an operation.

use ubtrfs_format::items::{InodeFlags, MAX_NAME_LEN};

use super::write_at::WriteAt;
use crate::error::{Errno, Result};
use crate::inode::{EMPTY_SUBVOLUME_INO, Inode, InodeId, InodeState};

/// Fails with `EPERM` if the inode is only the placeholder of a subvolume that is elsewhere: it has
/// no items that could change.
pub(crate) fn check_real(id: InodeId) -> Result<()> {
    if id.ino == EMPTY_SUBVOLUME_INO { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// Fails if `name` can't be the name of a new entry.
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

/// Fails if the inode is immutable.
pub(crate) fn check_mutable(state: &InodeState) -> Result<()> {
    if state.item.flags & InodeFlags::IMMUTABLE != 0 { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// Fails if the inode is immutable or append-only.
pub(crate) fn check_unrestricted(state: &InodeState) -> Result<()> {
    let restricted = state.item.flags & InodeFlags::PROTECTING != 0;
    if restricted { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// Fails if the content may not be changed, since fs-verity protects it (invariant 42).
pub(crate) fn check_no_verity(state: &InodeState) -> Result<()> {
    if has_verity(state) { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// Whether fs-verity protects the content.
pub(crate) fn has_verity(state: &InodeState) -> bool {
    state.item.flags & InodeFlags::RO_VERITY != 0
}

/// Fails if flags of the inode forbid a write.
pub(crate) fn check_may_write(state: &InodeState, at: WriteAt) -> Result<()> {
    check_no_verity(state)?;
    match at {
        WriteAt::End => check_mutable(state),
        WriteAt::Appending(offset) if offset >= state.item.size => check_mutable(state),
        WriteAt::Appending(_) | WriteAt::Offset(_) => check_unrestricted(state),
    }
}

/// Fails if the flags of the directory or of the inode forbid to remove this inode's name.
pub(crate) fn check_removable_from(dir: &Inode, inode: &Inode) -> Result<()> {
    check_unrestricted(&dir.read())?;
    check_unrestricted(&inode.read())
}
