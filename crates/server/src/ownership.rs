//! Ownership override (`uid=`, `gid=`, `umask=`, `fakeroot`): the mount shows files with other
//! owners than the volume has. This serves volumes from other machines, whose owners have no
//! meaning here.

use ubtrfs_fuse::request::SetAttr;
use ubtrfs_fuse::{Attributes, Caller, Errno};

/// Ownership override: the owners and modes that a mount shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnershipOverride {
    /// The user that all files show. A new file is stored with the user that makes it.
    pub uid: Option<u32>,
    /// The group that all files show.
    pub gid: Option<u32>,
    /// Permissions that files don't show, and which therefore don't apply.
    pub umask: u32,
    /// Every user of the mount is root on it: nothing checks permissions, and new files are stored
    /// as root's.
    pub fakeroot: bool,
}

impl OwnershipOverride {
    /// Overrides attributes.
    pub(crate) fn show(&self, attributes: &mut Attributes) {
        attributes.uid = self.uid.unwrap_or(attributes.uid);
        attributes.gid = self.gid.unwrap_or(attributes.gid);
        attributes.mode &= !(self.umask & 0o777);
    }

    /// The owner for checks that the kernel makes even without `default_permissions`: for setting
    /// an ACL or a flag, and for removing from a sticky directory. It is the mounting user, or
    /// `None` if that is root, for whom there are no checks.
    ///
    /// Answers to LOOKUP and SETATTR, after which such a check may come, report this owner and are
    /// not to be cached; an answer to GETATTR, which is what stat(2) shows, reports the owner on
    /// the volume.
    pub(crate) fn known_owner(&self) -> Option<u32> {
        let mounter = rustix::process::geteuid();
        (self.fakeroot && !mounter.is_root()).then(|| mounter.as_raw())
    }

    /// The owner and group of a new inode.
    pub(crate) fn maker(&self, caller: &Caller<'_>) -> (u32, u32) {
        if self.fakeroot { (0, 0) } else { (caller.uid, caller.gid) }
    }

    /// The part of a change that reaches the volume. An overridden owner can't be changed
    /// (`EPERM`), but may be set to the value that is shown.
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
