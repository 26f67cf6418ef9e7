//! Whether an ioctl is served, as the table says: the right of the caller, and what the VFS would
//! have taken before a driver changes anything by it (invariant 54), which is write access to the
//! mount of the caller's descriptor, and the ids that this mount shows.
//!
//! To FUSE most ioctls are unknown, so the kernel takes nothing for them. What is checked follows
//! the kernel's order: some are refused to who may not do them before it counts whether the mount
//! is read-only. Of those for which nothing is taken,
//!
//! - `FS_IOC_SETFLAGS` and `FS_IOC_FSSETXATTR` are the VFS's own, which checks both itself;
//! - `ADD_DEV`, `DEV_REPLACE`, `FITRIM`, `GET_DEV_STATS` and what ends something else take no write
//!   access to the mount in the kernel's driver either.
//!
//! Freezing (FIFREEZE) needs nothing: the kernel refuses it for FUSE. Security modules have seen
//! the ioctl before FUSE has.

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

    /// `EPERM` for who may not ask for this.
    fn check_right(&self, row: &Row, data: &[u8]) -> Result<(), Errno> {
        let may = match row.right {
            Right::SysAdmin => self.powers().has(Capability::Administrator),
            _ => !row.needs_administrator(data) || self.powers().administers(),
        };
        if may { Ok(()) } else { Err(Errno::PERM) }
    }
}

impl Shared {
    /// Takes for an ioctl what the VFS would have taken, and sees that the caller has the right to
    /// it. `EROFS` where the caller's mount is read-only, or may be; `EPERM` where it can't be
    /// known how it shows ids, and without the right.
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
            // Not a warning: any user can cause it, by a mount of his own making.
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
            return Err(Errno::ROFS); // invariant 54
        }
        Ok(admitted)
    }

    /// The mount of the descriptor that an ioctl is asked of.
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

    /// Invariant 54.
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
