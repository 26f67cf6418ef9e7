//! What can go wrong, the errno that a program sees and the sentence that a person reads.

use ubtrfs_format::{Key, TreeId};
use ubtrfs_tree::Error as TreeError;

use crate::file::error::DataError;

pub use rustix::io::Errno;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong in the file system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plain POSIX outcome: no such file, not a directory, no space …
    #[error("{0}")]
    Posix(Errno),
    /// Devices, mirrors or checksums.
    #[error(transparent)]
    Volume(#[from] ubtrfs_volume::Error),
    /// A tree can't be read or merged.
    #[error(transparent)]
    Tree(#[from] ubtrfs_tree::Error),
    /// A structure is malformed.
    #[error(transparent)]
    Format(#[from] ubtrfs_format::Error),
    /// An item that must be there is missing.
    #[error("tree {tree} lacks the item {key}")]
    MissingItem {
        /// The tree.
        tree: TreeId,
        /// The item's key.
        key: Key,
    },
    /// A leaf holds a malformed item.
    #[error("tree block {block}: {fault}")]
    MalformedItem {
        /// The leaf.
        block: ubtrfs_format::Logical,
        /// The item, and what is wrong with it.
        fault: ubtrfs_format::ItemFault,
    },
    /// Items contradict each other.
    #[error("tree {tree}, {key}: {what}")]
    Inconsistent {
        /// The tree.
        tree: TreeId,
        /// The item's key.
        key: Key,
        /// What is wrong.
        what: &'static str,
    },
    /// A file's content can't be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The volume can't be opened the way it was asked for.
    #[error("{0}")]
    Refused(Refusal),
    /// The file system has turned read-only after an error.
    #[error("the file system is read-only after an error: {0}")]
    Aborted(String),
}

/// Why a volume isn't opened the way it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Incompatible features that nobody here knows.
    #[error(
        "the volume uses features that ubtrfs does not know: {}; the kernel's btrfs can mount it from there on",
        with_kernels(.0)
    )]
    UnknownIncompat(Vec<String>),
    /// Features that allow reading only.
    #[error(
        "the volume uses features that ubtrfs can only read: {}; mount it with -o ro, or by the kernel's btrfs, which can \
         write it from there on",
        with_kernels(.0)
    )]
    ReadOnlyFeatures(Vec<String>),
    /// A log that can't be replayed.
    #[error(
        "the volume was not unmounted cleanly, and its log of what was fsynced since the last commit can't be replayed: {0}; \
         mount it with -o ro,nologreplay (or give ls, stat and cat --nologreplay) to see it as of its last commit, \
         or give the log up with 'ubtrfs rescue zero-log'"
    )]
    BadLog(String),
    /// A log of a volume whose features its replay might break.
    #[error(
        "the volume holds a log, which can't be replayed because the volume uses features that ubtrfs does not know: {}; \
         mount it with -o ro,nologreplay (or give ls, stat and cat --nologreplay) to see it as of its last commit",
        .0.join(", ")
    )]
    LogOfUnknownFeatures(Vec<String>),
    /// A log may be passed over only by those who write nothing.
    #[error("the volume holds a log: nologreplay passes over it only together with ro")]
    LogPassedOver,
    /// What is left out while reading would be lost by writing.
    #[error("a damaged volume is read as far as it goes only together with ro")]
    RescueOfWriters,
    /// A state that this version can't keep right while writing.
    #[error("{0}; ubtrfs can only read such a volume: mount it with -o ro")]
    ReadOnlyState(String),
    /// The inode that all paths of the subvolume begin at leads nowhere.
    #[error(
        "the root inode of the subvolume {0} is not a directory: the volume is damaged, and nothing in that subvolume can be reached; \
         'ubtrfs check' shows the damage, 'ubtrfs restore' copies what can be found, \
         and -o subvolid=ID mounts another subvolume"
    )]
    RootIsNoDirectory(TreeId),
    /// A subvolume that isn't there.
    #[error("there is no subvolume {0}")]
    NoSubvolume(String),
}

/// Names of features, each with the kernel that has it since when.
fn with_kernels(names: &[String]) -> String {
    let since = |name: &str| match name {
        "ZONED" => "Linux 5.12",
        "VERITY" => "Linux 5.15",
        "RAID_STRIPE_TREE" | "SIMPLE_QUOTA" => "Linux 6.7",
        "EXTENT_TREE_V2" | "REMAP_TREE" => "Linux built for experiments with btrfs",
        _ => "a Linux newer than this ubtrfs",
    };
    names.iter().map(|name| format!("{name} ({})", since(name))).collect::<Vec<_>>().join(", ")
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Posix(errno)
    }
}

impl Error {
    /// The errno that a program sees. `EAGAIN` is for threads that
    /// [must not wait](crate::nonblocking).
    pub fn errno(&self) -> Errno {
        match self {
            Self::Posix(errno) => *errno,
            Self::Tree(TreeError::WouldBlock) | Self::Data(DataError::Tree(TreeError::WouldBlock)) => Errno::AGAIN,
            Self::Aborted(_) | Self::Refused(_) => Errno::ROFS,
            _ => Errno::IO,
        }
    }
}
