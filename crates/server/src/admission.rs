//! Decides whether an ioctl is served, as the table of ioctls says. This checks the right of the
//! caller, and what the VFS would have taken before a driver changes anything (invariant 40): write
//! access to the mount of the caller's descriptor, and the ids that this mount shows.
//!
//! FUSE does not know most ioctls, so the kernel takes nothing for them. The checks follow the
//! kernel's order: for some ioctls it refuses a caller without the right before it checks whether
//! the mount is read-only. Among the ioctls for which nothing is taken,
//!
//! - `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR` are the VFS's own, which checks both itself;
//! - `ADD_DEV`, `DEV_REPLACE`, `FITRIM`, `GET_DEV_STATS` and ioctls that cancel something take no
//!   write access to the mount in the kernel's driver either.
//!
//! Freezing (FIFREEZE) needs no check, since the kernel refuses it for FUSE. Security modules see
//! an ioctl before FUSE does.

use ubtrfs_fuse::caller_file::{Asked, CallerMount, IdMaps, mount_of};
use ubtrfs_fuse::request::Ioctl;
use ubtrfs_fuse::{Caller, Errno};

use crate::ioctl_table::{Right, Row, Taken};
use crate::permissions::WRITE;
use crate::privileges::{Capability, Powers};
use crate::shared::Shared;

/// A caller whose ioctl may be served.
pub(crate) struct Admitted<'a> {
    pub(crate) caller: &'a Caller<'a>,
    ids: IdMaps,
}

impl Admitted<'_> {
    /// What the caller may do to inodes as its mount shows them.
    pub(crate) fn powers(&self) -> Powers {
        Powers::on(self.caller, self.ids.clone())
    }

    /// Returns `EPERM` if the caller has no right to this ioctl.
    fn check_right(&self, row: &Row, data: &[u8]) -> Result<(), Errno> {
        let may = match row.right {
            Right::SysAdmin => self.powers().has(Capability::Administrator),
            _ => !row.needs_administrator(data) || self.powers().administers(),
        };
        if may { Ok(()) } else { Err(Errno::PERM) }
    }
}

impl Shared {
    /// Takes for an ioctl what the VFS would have taken, and checks that the caller has the right
    /// to it. Returns `EROFS` if the caller's mount is read-only or may be, and `EPERM` if the
    /// caller has no right, or if it is unknown how the mount shows ids.
    pub(crate) fn admit<'a>(
        &self,
        caller: &'a Caller<'a>,
        node: u64,
        what: &Ioctl<'_>,
        row: &Row,
    ) -> Result<Admitted<'a>, Errno> {
        let taken = row.taken(what.data);
        if let Taken::Nothing = taken {
            let admitted = Admitted { caller, ids: IdMaps::default() };
            admitted.check_right(row, what.data)?;
            return Ok(admitted);
        }
        let is_only_ids = matches!(taken, Taken::Ids);
        let Some(CallerMount { read_only, ids }) = self.mount_of(caller, node, what.command) else {
            // This is no warning, since any user can cause it by a mount of his own.
            tracing::debug!(pid = caller.pid, "an ioctl is refused: through which mount it came can't be found out");
            return Err(if is_only_ids { Errno::PERM } else { Errno::ROFS });
        };
        let admitted = Admitted { caller, ids };
        match taken {
            Taken::WriteOfOwner if read_only => self.check_owner(&admitted.powers(), self.inode(node)?)?,
            Taken::WriteOfWriter if read_only => self.check_access(&admitted.powers(), self.inode(node)?, WRITE)?,
            _ => {}
        }
        admitted.check_right(row, what.data)?;
        if !is_only_ids && read_only {
            return Err(Errno::ROFS); // invariant 40
        }
        Ok(admitted)
    }

    /// The mount of the descriptor on which an ioctl is called.
    fn mount_of(&self, caller: &Caller<'_>, node: u64, command: u32) -> Option<CallerMount> {
        let id = self.inode(node).ok()?;
        let is_file = |number| self.numbers.shown_as(number) == Ok(id);
        let device = self.facts().device_number?;
        mount_of(&Asked { pid: caller.pid, command, device, is_file: &is_file })
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::DeviceId;
    use ubtrfs_format::ioctl::{SCRUB, SYNC};

    use super::*;
    use crate::ioctl_table::row_of;
    use crate::scrub::Request;

    /// Invariant 40.
    #[test]
    fn what_changes_something_takes_write_access() {
        let taken = |command, data: &[u8]| row_of(command).map(|row| row.taken(data));
        let scrub = |read_only| {
            let (device, start, end) = (DeviceId(1), 0, 1);
            Request { device, start, end, read_only, resume: false, bytes_per_second: 0 }.encode()
        };
        assert!(matches!(taken(SCRUB, &scrub(false)), Some(Taken::WriteOfAdministrator)));
        assert!(matches!(taken(SCRUB, &scrub(true)), Some(Taken::Nothing)));
        assert!(matches!(taken(SYNC, &[]), Some(Taken::Nothing)));
    }
}
