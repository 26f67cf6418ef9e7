//! Checks access to files and directories where the kernel leaves that to the server.

use ubtrfs::InodeId;
use ubtrfs::acl::{self, Acl};
use ubtrfs_fuse::Errno;

use crate::privileges::{Capability, Powers};
use crate::shared::{Shared, errno};

/// Permission to read a file, or to list a directory.
pub(crate) const READ: u16 = 4;
/// Permission to write to a file, or to change the entries of a directory.
pub(crate) const WRITE: u16 = 2;
/// Permission to search a directory.
pub(crate) const SEARCH: u16 = 1;

const GROUP_BITS: u32 = 0o070;
const S_ISVTX: u32 = 0o1000;

impl Shared {
    /// Returns `EACCES` unless a process has all these permissions for a file or directory
    /// (invariant 27).
    pub(crate) fn check_access(&self, powers: &Powers, id: InodeId, wanted: u16) -> Result<(), Errno> {
        let attributes = self.engine.inodes().attributes(id).map_err(|error| errno(&error))?;
        let is = self.shown(&attributes);
        let only_reads = wanted & WRITE == 0;
        if self.facts().unchecked {
            return Ok(());
        }
        if !only_reads && !powers.sees(is.uid, is.gid) {
            // Nobody may write to an inode whose ids the mount can't show, whatever its mode.
            return Err(Errno::ACCESS);
        }
        if powers.has_for(Capability::Override, is.uid, is.gid)
            || only_reads && powers.has_for(Capability::ReadSearch, is.uid, is.gid)
        {
            return Ok(());
        }
        let bits = |shift: u32| (is.mode >> shift & 7) as u16 & wanted == wanted;
        let may = if powers.is_user(is.uid) {
            bits(6)
        } else if is.mode & GROUP_BITS != 0
            && let Some(value) = self.xattr(id, acl::ACCESS)?
            && let Some(list) = Acl::parse(&value).map_err(|_| Errno::IO)?
        {
            let owning = powers.is_in_group(is.gid);
            list.allows(wanted, |user| powers.is_user(user), owning, |group| powers.is_in_group(group))
        } else if powers.is_in_group(is.gid) {
            bits(3)
        } else {
            bits(0)
        };
        if may { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Returns `EPERM` unless a process owns an inode, or may do what only the owner may.
    pub(crate) fn check_owner(&self, powers: &Powers, id: InodeId) -> Result<(), Errno> {
        if self.facts().unchecked {
            return Ok(());
        }
        let attributes = self.engine.inodes().attributes(id).map_err(|error| errno(&error))?;
        if powers.owns(self.shown(&attributes).uid) { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Returns `EPERM` if the directory has the sticky bit, and the process owns neither the
    /// directory nor the inode that is removed from it.
    pub(crate) fn check_sticky(&self, powers: &Powers, dir: InodeId, removed: InodeId) -> Result<(), Errno> {
        let shown = |id| self.engine.inodes().attributes(id).map(|is| self.shown(&is)).map_err(|error| errno(&error));
        let is = shown(dir)?;
        if self.facts().unchecked || is.mode & S_ISVTX == 0 || powers.is_user(is.uid) {
            return Ok(());
        }
        let removed = shown(removed)?;
        let may = powers.is_user(removed.uid) || powers.has_for(Capability::FileOwner, removed.uid, removed.gid);
        if may { Ok(()) } else { Err(Errno::PERM) }
    }
}
