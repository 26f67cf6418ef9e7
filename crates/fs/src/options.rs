//! Options of a mount.

use std::sync::Arc;
use std::time::Duration;

use ubtrfs_file::CompressionMode;
use ubtrfs_format::Uuid;
#[cfg(doc)]
use ubtrfs_format::items::InodeFlags;
use ubtrfs_format::items::Timespec;
use ubtrfs_tree::Damage;

use crate::faults::Faults;

/// How much unreferenced content is freed at a time.
#[derive(Clone, Copy, Debug)]
pub struct FreeingLimits {
    /// An inode whose content takes no more bytes than this is freed at once.
    pub at_once: u64,
    /// The most extents of larger inodes that one transaction frees. The commit takes some 3 µs for
    /// each, for which an fsync may have to wait.
    pub per_transaction: u64,
    /// The most extents that the last transaction of a mount frees, when no fsync waits any more.
    pub at_the_end: u64,
    /// Inodes that may wait to be freed before unlinks are throttled.
    pub queue: usize,
}

impl Default for FreeingLimits {
    fn default() -> Self {
        Self { at_once: 1 << 20, per_transaction: 2000, at_the_end: 20_000, queue: 4096 }
    }
}

/// How to read a damaged volume; for read-only mounts.
#[derive(Clone, Debug, Default)]
pub struct Rescue {
    /// Skip parts of trees that can't be read, and read data whose checksums are lost, instead of
    /// failing. Both are recorded here.
    pub pass_over: Option<Arc<Damage>>,
    /// Return data even if its checksums are wrong.
    pub ignore_data_checksums: bool,
    /// Read tree blocks whose checksums are wrong, if everything else in them is right. This does
    /// not include the chunk tree, which has been read before.
    pub ignore_metadata_checksums: bool,
}

impl Rescue {
    /// Whether data is read although nothing verifies it.
    pub(crate) fn reads_unproved(&self) -> bool {
        self.pass_over.is_some() || self.ignore_data_checksums
    }

    /// Whether to leave out parts that fail with this error. The error is recorded then.
    pub(crate) fn passes_over(&self, error: &dyn std::error::Error) -> bool {
        self.pass_over.as_ref().is_some_and(|damage| {
            damage.note(error);
            true
        })
    }
}

/// Replaces what a volume contains besides the results of operations. With it, the same operations
/// in the same order make the same volume, byte for byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reproducible {
    /// The time of every change.
    pub time: Timespec,
    /// The seed from which the UUIDs of new subvolumes are derived; otherwise they are random.
    pub seed: Uuid,
}

/// Options of a mount.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Options {
    /// Change nothing, not even one byte of the devices.
    pub read_only: bool,
    /// Open the devices for writing, but change nothing until [`Durability::write_again`]. Opening
    /// fails if a writable mount would have to begin with unfinished work: a log to be replayed, a
    /// device that is being replaced or lags, or leftovers of a balance.
    ///
    /// [`Durability::write_again`]: crate::Durability::write_again
    pub begins_at_rest: bool,
    /// Bring lagging devices up to date before the volume is used; opening fails if this is
    /// impossible. This is for programs that use a volume for a short time: without it the
    /// [`Filesystem`](crate::Filesystem) does so in the background, if it lives long enough.
    pub catches_up_first: bool,
    /// Show the last commit of a volume with a log, without the log.
    pub no_log_replay: bool,
    /// Longest time from a change to the start of the commit that makes it durable.
    pub commit_interval: Duration,
    /// Memory for caches and dirty data, in bytes.
    pub memory: usize,
    /// The subvolume to mount, by path below the top level.
    pub subvolume: Option<String>,
    /// The subvolume to mount, by id. If a path is given, too, it must lead to the same subvolume.
    pub subvolume_id: Option<u64>,
    /// Never change access times. The default follows the rules of `relatime`.
    pub no_atime: bool,
    /// Change access times with each access that is known of.
    pub strict_atime: bool,
    /// The flags that new regular files get, out of [`InodeFlags::NODATACOW`] and
    /// [`InodeFlags::NODATASUM`].
    pub new_file_flags: u64,
    /// Resume a balance that an earlier mount left, in the background.
    pub resume_balance: bool,
    /// Commit in the background, and when the [`Filesystem`](crate::Filesystem) is dropped. Off for
    /// callers that decide themselves when a commit happens.
    pub background_commits: bool,
    /// Make fsyncs durable through the log. Without it each fsync is a commit.
    pub tree_log: bool,
    /// The most bytes of a file whose content is inline.
    pub max_inline: u64,
    /// How much unreferenced content is freed at a time.
    pub freeing: FreeingLimits,
    /// Discard the space that a commit has freed, some time after it.
    pub discard: bool,
    /// How data is compressed as it is written. Without it, only the data of files whose flags or
    /// properties ask for it is compressed.
    pub compression: Option<CompressionMode>,
    /// The most threads that compress data of one file at a time.
    pub compression_threads: usize,
    /// The time of all changes, and the seed of new UUIDs.
    pub reproducible: Option<Reproducible>,
    /// The most bytes of a new chunk, without its copies. `None` derives it from the size of the
    /// devices.
    pub largest_chunk: Option<u64>,
    /// How to read a damaged volume: only together with `read_only`.
    pub rescue: Rescue,
    /// The injected faults.
    #[cfg(feature = "testing")]
    pub faults: Faults,
}

impl Options {
    /// Returns the injected faults.
    #[cfg(feature = "testing")]
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the absence of faults.
    #[cfg(not(feature = "testing"))]
    #[allow(clippy::unused_self, reason = "with the feature `testing` these are options")]
    pub(crate) fn faults(&self) -> Faults {
        Faults
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_only: false,
            begins_at_rest: false,
            catches_up_first: false,
            no_log_replay: false,
            commit_interval: Duration::from_secs(5),
            memory: 256 << 20,
            subvolume: None,
            subvolume_id: None,
            no_atime: false,
            strict_atime: false,
            new_file_flags: 0,
            resume_balance: false,
            background_commits: true,
            tree_log: true,
            max_inline: 2048,
            freeing: FreeingLimits::default(),
            discard: false,
            compression: None,
            compression_threads: std::thread::available_parallelism().map_or(1, usize::from),
            reproducible: None,
            largest_chunk: None,
            rescue: Rescue::default(),
            #[cfg(feature = "testing")]
            faults: Faults::default(),
        }
    }
}
