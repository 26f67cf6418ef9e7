//! The settings of a mount.

use std::path::PathBuf;
use std::time::Duration;

use ubtrfs::CompressionMode;
use ubtrfs_format::items::InodeFlags;
use ubtrfs_fuse::Transport;
use ubtrfs_server::{CheckOpen, OwnershipOverride};

/// The settings that the options make. `None` means that the command decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "mount options are independent switches")]
pub struct MountRequest {
    pub read_only: bool,
    pub allow_other: Option<bool>,
    pub no_atime: bool,
    /// The access time changes with each access that the server sees.
    pub strict_atime: bool,
    /// Flags of new files.
    pub new_files: NewFiles,
    /// Options of the kernel's security modules, as they were given.
    pub security: Vec<String>,
    /// A balance that an earlier mount left stays paused.
    pub skip_balance: bool,
    pub dev: bool,
    pub suid: bool,
    pub no_exec: bool,
    pub name: Option<String>,
    pub subvolume: Option<String>,
    pub subvolume_id: Option<u64>,
    pub commit: Option<Duration>,
    /// How long requests wait for the server of a device that is away.
    pub timeout: Option<Duration>,
    pub memory: Option<usize>,
    pub no_log_replay: bool,
    pub no_tree_log: bool,
    pub discard: bool,
    pub max_inline: Option<u64>,
    pub compression: Option<CompressionMode>,
    pub compression_threads: Option<usize>,
    pub threads: Option<usize>,
    pub transport: Transport,
    /// More devices of the volume.
    pub devices: Vec<PathBuf>,
    /// Devices whose contents are discarded, by their numbers or paths. There is no option for it,
    /// since with an option in fstab it would be done with each mount.
    pub given_up: Vec<String>,
    /// The offset in bytes at which the volume begins on its device.
    pub offset: u64,
    /// The size of the volume's part in bytes, if that is not the whole rest of the device.
    pub size_limit: Option<u64>,
    /// The partition that the volume is in, instead of an offset.
    pub partition: Option<u32>,
    /// The generation of the commit that is shown.
    pub generation: Option<u64>,
    pub rescue: Rescue,
    /// Devices may be missing.
    pub degraded: bool,
    pub ownership: OwnershipOverride,
    /// The mount is for one user, without permission checks.
    pub single_user: bool,
    /// Ordinary users may delete subvolumes that they could empty.
    pub user_subvol_rm_allowed: bool,
    pub check_open: CheckOpen,
}

/// The flags that the options nodatacow and nodatasum give new regular files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewFiles {
    pub no_copy_on_write: bool,
    pub no_checksums: bool,
}

impl NewFiles {
    /// Returns them as flags of inodes.
    pub fn flags(self) -> u64 {
        let flags = [(self.no_copy_on_write, InodeFlags::NODATACOW), (self.no_checksums, InodeFlags::NODATASUM)];
        flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, flag)| flag).sum()
    }
}

/// How a damaged volume is mounted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "ways that are chosen one by one")]
pub struct Rescue {
    /// Use any superblock or backup root from which the volume can be opened.
    pub use_backup_root: bool,
    /// Leave out the parts of trees that can't be read.
    pub ignore_bad_roots: bool,
    /// Return data without a check of its checksums.
    pub ignore_data_checksums: bool,
    /// Read tree blocks without a check of their checksums.
    pub ignore_metadata_checksums: bool,
    /// Ignore the flags of the superblock, which is always done for a volume that is only read.
    pub ignore_superblock_flags: bool,
}

impl Rescue {
    /// Whether any of these is set.
    pub fn is_wanted(self) -> bool {
        self != Self::default()
    }
}

impl MountRequest {
    /// Whether the kernel is to check permissions. Otherwise directories would be checked only for
    /// names that the kernel has not cached; so any process that reaches the mount may do
    /// everything.
    pub fn checks_permissions(&self) -> bool {
        !(self.ownership.fakeroot || self.single_user)
    }

    /// Sets the compression of data. The last one of this and of options about new files counts.
    pub fn compress(&mut self, mode: Option<CompressionMode>) {
        self.compression = mode;
        if mode.is_some() {
            self.new_files = NewFiles::default();
        }
    }
}
