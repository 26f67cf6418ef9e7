//! Ownership override (`uid=`, `gid=`, `umask=`, `fakeroot`): files are shown with other owners
//! than the volume has, for volumes from elsewhere, whose owners mean nothing here.

use ubtrfs_fuse::request::SetAttr;
use ubtrfs_fuse::{Attributes, Caller, Errno};

/// Ownership override: the owners and modes that a mount shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnershipOverride {
    /// All files show as this user's. What is made is stored as its maker's.
    pub uid: Option<u32>,
    /// All files show this group.
    pub gid: Option<u32>,
    /// Permissions that don't show, and so don't count.
    pub umask: u32,
    /// Every user of the mount is root on it: nothing checks permissions, and what is made is
    /// stored as root's.
    pub fakeroot: bool,
}

impl OwnershipOverride {
    /// Overrides attributes.
    pub(crate) fn show(&self, attributes: &mut Attributes) {
        attributes.uid = self.uid.unwrap_or(attributes.uid);
        attributes.gid = self.gid.unwrap_or(attributes.gid);
        attributes.mode &= !(self.umask & 0o777);
    }

    /// The owner for the kernel's own checks, which it makes even without `default_permissions`:
    /// for setting an ACL or a flag, and removing from a sticky directory. That is the mounting
    /// user, unless it is root, for whom there are no checks.
    ///
    /// Answers to LOOKUP and SETATTR, after which such a check may come, report this owner and are
    /// not to be cached; an answer to GETATTR, which is what stat(2) shows, reports the owner on
    /// the volume.
    pub(crate) fn known_owner(&self) -> Option<u32> {
        let mounter = rustix::process::geteuid();
        (self.fakeroot && !mounter.is_root()).then(|| mounter.as_raw())
    }

    /// Owner and group of a new inode.
    pub(crate) fn maker(&self, caller: &Caller<'_>) -> (u32, u32) {
        if self.fakeroot { (0, 0) } else { (caller.uid, caller.gid) }
    }

    /// What of a change reaches the volume: an owner that is only shown can't be changed, but may
    /// be set to what it shows as.
    pub(crate) fn wanted(&self, change: &SetAttr) -> Result<SetAttr, Errno> {
        let mut wanted = *change;
        for (wanted, shown) in [(&mut wanted.uid, self.uid), (&mut wanted.gid, self.gid)] {
            if shown.is_some() && wanted.take().is_some_and(|asked| Some(asked) != shown) {
                return Err(Errno::PERM);
            }
        }
        Ok(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_that_are_shown_stay_as_they_are() {
        let ownership = OwnershipOverride { uid: Some(7), ..OwnershipOverride::default() };
        let change = |uid, gid| SetAttr { uid, gid, ..SetAttr::default() };
        assert_eq!(ownership.wanted(&change(Some(7), Some(8))), Ok(change(None, Some(8))));
        assert_eq!(ownership.wanted(&change(Some(8), None)), Err(Errno::PERM));
        assert_eq!(OwnershipOverride::default().wanted(&change(Some(8), Some(9))), Ok(change(Some(8), Some(9))));
    }
}
