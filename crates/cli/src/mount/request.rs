//! What a mount is to be like.

use std::path::PathBuf;
use std::time::Duration;

use ubtrfs::CompressionMode;
use ubtrfs_format::items::InodeFlags;
use ubtrfs_fuse::Transport;
use ubtrfs_server::{CheckOpen, OwnershipOverride};

/// The settings of the options; `None` where the command decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "mount options are independent switches")]
pub struct MountRequest {
    pub read_only: bool,
    pub allow_other: Option<bool>,
    pub no_atime: bool,
    /// Each access that the server hears of changes the time of access.
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
    /// How long requests wait for a server of the device that is away.
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
    /// Devices of which nothing counts, by their numbers or paths. No option says so: in an fstab
    /// it would be done again and again.
    pub given_up: Vec<String>,
    /// Where on its device the volume begins.
    pub offset: u64,
    /// Bytes of it, if less than all that follows.
    pub size_limit: Option<u64>,
    /// The partition that it is in instead.
    pub partition: Option<u32>,
    /// The commit that is shown.
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

/// What the options nodatacow and nodatasum give new regular files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewFiles {
    pub no_copy_on_write: bool,
    pub no_checksums: bool,
}

impl NewFiles {
    /// As flags of inodes.
    pub fn flags(self) -> u64 {
        let flags = [(self.no_copy_on_write, InodeFlags::NODATACOW), (self.no_checksums, InodeFlags::NODATASUM)];
        flags.into_iter().filter(|(is_on, _)| *is_on).map(|(_, flag)| flag).sum()
    }
}

/// How to mount a volume that is damaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "ways that are chosen one by one")]
pub struct Rescue {
    /// By any superblock or backup root that leads anywhere.
    pub use_backup_root: bool,
    /// What can't be read of trees is left out.
    pub ignore_bad_roots: bool,
    /// Data is shown whatever its checksums say.
    pub ignore_data_checksums: bool,
    /// Tree blocks are, too.
    pub ignore_metadata_checksums: bool,
    /// Flags of the superblock don't count: they never do for a volume that is only read.
    pub ignore_superblock_flags: bool,
}

impl Rescue {
    /// Whether any of these is.
    pub fn is_wanted(self) -> bool {
        self != Self::default()
    }
}

impl MountRequest {
    /// Whether the kernel is to check permissions. Without that only names that it has not cached
    /// would cause a check of directories, so every process that reaches the mount may do
    /// everything.
    pub fn checks_permissions(&self) -> bool {
        !(self.ownership.fakeroot || self.single_user)
    }

    /// Sets how data is compressed. Of this and of options about new files the last one counts.
    pub fn compress(&mut self, mode: Option<CompressionMode>) {
        self.compression = mode;
        if mode.is_some() {
            self.new_files = NewFiles::default();
        }
    }
}
