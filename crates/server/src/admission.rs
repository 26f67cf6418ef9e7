//! What the VFS would have taken for an ioctl before a driver changes anything by it
//! (invariant 54): write access to the mount of the caller's descriptor, and the ids that this
//! mount shows.
//!
//! To FUSE most ioctls are unknown, so the kernel takes nothing for them. The table has all that
//! change something, in the kernel's order: some are refused to who may not do them before it
//! counts whether the mount is read-only. Of the others that FUSE passes on,
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

use crate::balance::BALANCE;
use crate::btrfs_ioctls::SET_LABEL;
use crate::control::RESET_SUBVOLUME;
use crate::defragment::{DEFRAG, DEFRAG_RANGE};
use crate::merge_ioctl::{self, MERGE};
use crate::permissions::WRITE;
use crate::privileges::Powers;
use crate::scrub::{self, SCRUB};
use crate::shared::Shared;
use crate::subvolume_ioctls::{
    DEFAULT_SUBVOL, INO_LOOKUP_USER, SET_RECEIVED_SUBVOL, SNAP_CREATE, SNAP_CREATE_V2, SNAP_DESTROY, SNAP_DESTROY_V2,
    SUBVOL_CREATE, SUBVOL_CREATE_V2, SUBVOL_SETFLAGS,
};
use crate::vacate_ioctls::{REMOVE_DEVICE, REMOVE_DEVICE_V2, RESIZE};
use crate::verity::ENABLE as ENABLE_VERITY;

/// What is taken for an ioctl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Taken {
    /// Only how the mount shows ids.
    Ids,
    /// Write access to the mount, too.
    Write,
    /// The same, from who owns the inode.
    WriteOfOwner,
    /// The same, from who may write to the file.
    WriteOfWriter,
    /// The same, from who may do what concerns the whole volume.
    WriteOfAdministrator,
}

const TABLE: [(u32, Taken); 20] = [
    (SNAP_CREATE, Taken::Write),
    (SNAP_CREATE_V2, Taken::Write),
    (SUBVOL_CREATE, Taken::Write),
    (SUBVOL_CREATE_V2, Taken::Write),
    (SNAP_DESTROY, Taken::Write),
    (SNAP_DESTROY_V2, Taken::Write),
    (RESET_SUBVOLUME, Taken::Write),
    (DEFRAG, Taken::Write),
    (DEFRAG_RANGE, Taken::Write),
    (ENABLE_VERITY, Taken::WriteOfWriter),
    (SUBVOL_SETFLAGS, Taken::WriteOfOwner),
    (SET_RECEIVED_SUBVOL, Taken::WriteOfOwner),
    (DEFAULT_SUBVOL, Taken::WriteOfAdministrator),
    (SET_LABEL, Taken::WriteOfAdministrator),
    (BALANCE, Taken::WriteOfAdministrator),
    (RESIZE, Taken::WriteOfAdministrator),
    (REMOVE_DEVICE, Taken::WriteOfAdministrator),
    (REMOVE_DEVICE_V2, Taken::WriteOfAdministrator),
    (SCRUB, Taken::WriteOfAdministrator),
    (MERGE, Taken::WriteOfAdministrator),
];

fn taken_for(what: &Ioctl<'_>) -> Option<Taken> {
    match what.command {
        INO_LOOKUP_USER => Some(Taken::Ids),
        SCRUB if scrub::writes_nothing(what.data) => None,
        MERGE if merge_ioctl::writes_nothing(what.data) => None,
        command => TABLE.iter().find(|(known, _)| *known == command).map(|(_, taken)| *taken),
    }
}

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
}

impl Shared {
    /// Takes for an ioctl what the VFS would have taken. `EROFS` where the caller's mount is
    /// read-only, or may be; `EPERM` where it can't be known how it shows ids.
    pub(crate) fn admit<'a>(&self, caller: &'a Caller<'a>, node: u64, what: &Ioctl<'_>) -> Result<Admitted<'a>, Errno> {
        let Some(taken) = taken_for(what) else { return Ok(Admitted { caller, ids: IdMaps::default() }) };
        let Some(CallerMount { read_only, ids }) = self.mount_of(caller, node, what.command) else {
            // Not a warning: any user can cause it, by a mount of his own making.
            tracing::debug!(pid = caller.pid, "an ioctl is refused: through which mount it came can't be found out");
            return Err(if taken == Taken::Ids { Errno::PERM } else { Errno::ROFS });
        };
        let admitted = Admitted { caller, ids };
        match taken {
            Taken::WriteOfOwner if read_only => self.check_owner(&admitted.powers(), self.inode(node)?)?,
            Taken::WriteOfWriter if read_only => self.check_access(&admitted.powers(), self.inode(node)?, WRITE)?,
            Taken::WriteOfAdministrator if read_only && !admitted.powers().administers() => return Err(Errno::PERM),
            _ => {}
        }
        if taken != Taken::Ids && read_only {
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
    use super::*;
    use crate::scrub::Request;
    use ubtrfs_format::DeviceId;

    fn taken(command: u32, data: &[u8]) -> Option<Taken> {
        let flags = ubtrfs_fuse::abi::flags::IoctlFlags::empty();
        taken_for(&Ioctl { handle: 0, flags, command, argument: 0, data, reply_size: 0 })
    }

    /// Invariant 54.
    #[test]
    fn what_changes_something_takes_write_access() {
        for (command, wanted) in TABLE {
            assert_ne!(wanted, Taken::Ids, "{command:x}");
            assert_eq!(taken(command, &[]), Some(wanted));
        }
        let scrub = |read_only| {
            let (device, start, end) = (DeviceId(1), 0, 1);
            Request { device, start, end, read_only, resume: false, bytes_per_second: 0 }.encode()
        };
        assert_eq!(taken(SCRUB, &scrub(false)), Some(Taken::WriteOfAdministrator));
        assert_eq!(taken(SCRUB, &scrub(true)), None);
        assert_eq!(taken(crate::subvolume_ioctls::SYNC, &[]), None);
    }
}
