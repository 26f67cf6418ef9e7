//! The table of ioctls that the server answers: for each its number, which encodes the size of its
//! argument, who may call it, what the VFS would have taken for it, and where it is served.
//!
//! A row makes a [`Command`], and the match that reads requests has an arm for each of these.

use ubtrfs_format::ioctl;

use crate::btrfs_ioctls::resets_errors;
use crate::long_ioctls::Kind;
use crate::{merge_ioctl, scrub};

/// Who may call an ioctl. This is checked before its argument is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Right {
    /// Every process that has a file of the mount open.
    Anyone,
    /// A process that owns an inode or may change it. The code that serves the ioctl checks this
    /// once it has found the inode (invariant 27).
    OfInode,
    /// A process that administers the volume.
    Administrator,
    /// The same if this function returns true for the argument; else anyone.
    AdministratorIf(fn(&[u8]) -> bool),
    /// A process with the capability `CAP_SYS_ADMIN` on this mount. Having mounted it is not
    /// enough.
    SysAdmin,
}

/// What the VFS or the kernel's driver takes for an ioctl, and FUSE does not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taken {
    /// Nothing, or the kernel has taken it for FUSE, too.
    Nothing,
    /// Only the ids that the mount shows.
    Ids,
    /// These ids, and write access to the mount.
    Write,
    /// The same, after a check that the caller owns the inode.
    WriteOfOwner,
    /// The same, after a check that the caller may write to the file.
    WriteOfWriter,
    /// The same, after a check that the caller administers the volume.
    WriteOfAdministrator,
    /// The same, but nothing if this function returns true for the argument.
    WriteOfAdministratorUnless(fn(&[u8]) -> bool),
}

/// Where an ioctl is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// In the thread that reads the request, since it waits for nothing.
    Here,
    /// In the pool for work that waits only for the engine.
    Slow,
    /// In the caller's share of the threads for work that takes long. If it has a kind, a signal
    /// can end it.
    Long(Option<Kind>),
    /// In the caller's share of the threads that wait for pages of files.
    Notifying,
    /// In a thread of its own, of this name.
    Thread(&'static str),
    /// In a thread of its own, until a signal or another ioctl ends it.
    Interruptible(Kind),
}

/// An ioctl.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) command: Command,
    pub(crate) number: u32,
    pub(crate) right: Right,
    pub(crate) taken: Taken,
    pub(crate) runs: Runs,
}

macro_rules! ioctls {
    ($($command:ident = $number:ident, $right:expr, $taken:expr, $runs:expr;)*) => {
        /// The ioctls of the table.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Command {
            $($command,)*
        }

        pub(crate) static TABLE: &[Row] = &[
            $(Row { command: Command::$command, number: ioctl::$number, right: $right, taken: $taken, runs: $runs },)*
        ];
    };
}

use Right::{Administrator, AdministratorIf, Anyone, OfInode, SysAdmin};
use Runs::{Here, Interruptible, Long, Notifying, Slow, Thread};
use Taken::{Ids, Nothing, Write, WriteOfAdministrator, WriteOfAdministratorUnless, WriteOfOwner, WriteOfWriter};

ioctls! {
    // Flags of inodes. The VFS itself has taken write access to the mount for setting them.
    GetFlags = GETFLAGS, Anyone, Nothing, Here;
    SetFlags = SETFLAGS, OfInode, Nothing, Notifying;
    GetFlags32 = GETFLAGS_32, Anyone, Nothing, Here;
    SetFlags32 = SETFLAGS_32, OfInode, Nothing, Notifying;
    GetExtendedFlags = FSGETXATTR, Anyone, Nothing, Here;
    SetExtendedFlags = FSSETXATTR, OfInode, Nothing, Notifying;
    GetVersion = GETVERSION, Anyone, Nothing, Here;
    // Files.
    EnableVerity = ENABLE_VERITY, OfInode, WriteOfWriter, Notifying;
    MeasureVerity = MEASURE_VERITY, Anyone, Nothing, Slow;
    Defragment = DEFRAG, OfInode, Write, Long(Some(Kind::Defragment));
    DefragmentRange = DEFRAG_RANGE, OfInode, Write, Long(Some(Kind::Defragment));
    ExtentMap = EXTENT_MAP, Anyone, Nothing, Long(None);
    // Subvolumes.
    Create = SUBVOL_CREATE, OfInode, Write, Long(None);
    CreateV2 = SUBVOL_CREATE_V2, OfInode, Write, Long(None);
    Snapshot = SNAP_CREATE, OfInode, Write, Long(None);
    SnapshotV2 = SNAP_CREATE_V2, OfInode, Write, Long(None);
    Delete = SNAP_DESTROY, OfInode, Write, Long(None);
    DeleteV2 = SNAP_DESTROY_V2, OfInode, Write, Long(None);
    Reset = RESET_SUBVOLUME, OfInode, Write, Long(None);
    GetSubvolumeFlags = SUBVOL_GETFLAGS, Anyone, Nothing, Long(None);
    SetSubvolumeFlags = SUBVOL_SETFLAGS, OfInode, WriteOfOwner, Long(None);
    SetReceived = SET_RECEIVED_SUBVOL, OfInode, WriteOfOwner, Long(None);
    SubvolumeInfo = GET_SUBVOL_INFO, Anyone, Nothing, Long(None);
    SubvolumeChildren = GET_SUBVOL_ROOTREF, OfInode, Nothing, Long(None);
    Path = INO_LOOKUP, OfInode, Nothing, Long(None);
    PathOfSubvolume = INO_LOOKUP_USER, OfInode, Ids, Long(None);
    SetDefault = DEFAULT_SUBVOL, Administrator, WriteOfAdministrator, Long(None);
    Sync = SYNC, Anyone, Nothing, Long(None);
    StartSync = START_SYNC, Anyone, Nothing, Long(None);
    WaitSync = WAIT_SYNC, Anyone, Nothing, Long(None);
    // The volume. Trees hold all files, also those that the caller may not see.
    Trim = FITRIM, Administrator, Nothing, Slow;
    TreeSearch = TREE_SEARCH, Administrator, Nothing, Slow;
    FsInfo = FS_INFO, Anyone, Nothing, Slow;
    DeviceInfo = DEV_INFO, Anyone, Nothing, Slow;
    DeviceErrors = GET_DEV_STATS, AdministratorIf(resets_errors), Nothing, Slow;
    GetFeatures = GET_FEATURES, Anyone, Nothing, Slow;
    GetLabel = GET_LABEL, Anyone, Nothing, Slow;
    SetLabel = SET_LABEL, Administrator, WriteOfAdministrator, Slow;
    // Devices and chunks.
    Scrub = SCRUB, Administrator, WriteOfAdministratorUnless(scrub::writes_nothing), Interruptible(Kind::Scrub);
    CancelScrub = SCRUB_CANCEL, Administrator, Nothing, Here;
    ScrubProgress = SCRUB_PROGRESS, Administrator, Nothing, Here;
    Balance = BALANCE, Administrator, WriteOfAdministrator, Interruptible(Kind::Balance);
    ControlBalance = BALANCE_CONTROL, Administrator, Nothing, Interruptible(Kind::Balance);
    BalanceProgress = BALANCE_PROGRESS, Administrator, Nothing, Interruptible(Kind::Balance);
    AddDevice = ADD_DEVICE, Administrator, Nothing, Thread("devices");
    ReplaceDevice = REPLACE, Administrator, Nothing, Thread("devices");
    RemoveDevice = REMOVE_DEVICE, Administrator, WriteOfAdministrator, Interruptible(Kind::Remove);
    RemoveDeviceV2 = REMOVE_DEVICE_V2, Administrator, WriteOfAdministrator, Interruptible(Kind::Remove);
    Resize = RESIZE, Administrator, WriteOfAdministrator, Interruptible(Kind::Resize);
    // Ours: long answers, and control of the server.
    Merge = MERGE, Administrator, WriteOfAdministratorUnless(merge_ioctl::writes_nothing), Here;
    Changes = CHANGES, Administrator, Nothing, Here;
    ChangesSince = CHANGES_SINCE, Administrator, Nothing, Here;
    Next = NEXT, Administrator, Nothing, Slow;
    Keep = KEEP, Administrator, Nothing, Here;
    ControlSync = CONTROL_SYNC, Anyone, Nothing, Long(None);
    Remount = REMOUNT, SysAdmin, Nothing, Slow;
    Force = FORCE, Administrator, Nothing, Here;
}

/// The ioctl with this number, if the server answers it.
pub(crate) fn row_of(number: u32) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.number == number)
}

impl Row {
    /// Returns whether only a process that administers the volume may call this ioctl.
    pub(crate) fn needs_administrator(&self, data: &[u8]) -> bool {
        match self.right {
            Administrator => true,
            AdministratorIf(applies) => applies(data),
            Anyone | OfInode | SysAdmin => false,
        }
    }

    /// What is taken for the ioctl with this argument.
    pub(crate) fn taken(&self, data: &[u8]) -> Taken {
        match self.taken {
            WriteOfAdministratorUnless(applies) if applies(data) => Nothing,
            WriteOfAdministratorUnless(_) => WriteOfAdministrator,
            taken => taken,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_number_is_in_one_row() {
        let numbers: BTreeSet<u32> = TABLE.iter().map(|row| row.number).collect();
        assert_eq!(numbers.len(), TABLE.len());
        assert!(row_of(0x9499).is_none());
    }

    /// Invariant 40: only an administrator may call ioctls that take write access after the check
    /// for an administrator.
    #[test]
    fn rights_and_what_is_taken_agree() {
        for row in TABLE {
            match row.taken {
                WriteOfAdministrator | WriteOfAdministratorUnless(_) => {
                    assert!(matches!(row.right, Administrator), "{:?}", row.command);
                }
                Write | WriteOfOwner | WriteOfWriter | Ids => {
                    assert!(matches!(row.right, OfInode), "{:?}", row.command);
                }
                Nothing => {}
            }
        }
    }

    /// Work that may take as long as a user wants occupies no thread that others wait for
    /// (invariant 49).
    #[test]
    fn what_anyone_may_ask_for_occupies_no_thread_of_its_own() {
        for row in TABLE.iter().filter(|row| !matches!(row.right, Administrator)) {
            assert!(!matches!(row.runs, Thread(_) | Interruptible(_)), "{:?}", row.command);
        }
    }
}
