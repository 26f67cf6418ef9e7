//! The errors of the file system, with the errno for programs and a sentence for people.

use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_file::DataError;
use ubtrfs_format::{Key, TreeId};
use ubtrfs_tree::Error as TreeError;
use ubtrfs_volume::{DeviceFault, Error as VolumeError};

pub use crate::step::Step;
pub use rustix::io::Errno;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the file system.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A plain POSIX error: no such file, not a directory, no space …
    #[error("{0}")]
    Posix(Errno),
    /// An error of devices, mirrors or checksums.
    #[error(transparent)]
    Volume(#[from] ubtrfs_volume::Error),
    /// A tree can't be read or merged.
    #[error(transparent)]
    Tree(#[from] ubtrfs_tree::Error),
    /// A structure is malformed.
    #[error(transparent)]
    Format(#[from] ubtrfs_format::Error),
    /// A required item is missing.
    #[error("tree {tree} lacks the item {key}")]
    MissingItem {
        /// The tree.
        tree: TreeId,
        /// The item's key.
        key: Key,
    },
    /// A leaf holds a malformed item.
    #[error("tree block {block}")]
    MalformedItem {
        /// The leaf.
        block: ubtrfs_format::Logical,
        /// The item, and what is wrong with it.
        #[source]
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
    /// The volume can't be opened with the given options.
    #[error(transparent)]
    Refused(Refusal),
    /// A step failed; its own steps may follow among the causes.
    #[error("{step}")]
    Step {
        /// What was being done.
        step: Step,
        /// Why it failed.
        source: Box<Error>,
    },
    /// The error by which the file system turned read-only, shared by all operations that it
    /// affects.
    #[error(transparent)]
    Shared(Arc<Error>),
    /// Changes that an fsync or a commit was to make durable may be lost, because of an error that
    /// other operations may have got as well.
    #[error("what was changed may not be durable")]
    NotDurable(#[source] Arc<Error>),
    /// A thread has panicked while it changed what commits write. Its changes may be half done, so
    /// nothing becomes durable after that.
    #[error("a thread of the file system has panicked, and nothing is written after that")]
    Panicked,
    /// The file system has turned read-only after an error.
    #[error("the file system is read-only after an error")]
    Aborted(#[source] Arc<Error>),
}

/// Why a volume isn't opened with the given options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Incompatible features that this version does not know.
    #[error(
        "the volume uses features that ubtrfs does not know: {}; the kernel's btrfs can mount it from there on",
        with_kernels(.0)
    )]
    UnknownIncompat(Vec<String>),
    /// Features that only reading supports.
    #[error(
        "the volume uses features that ubtrfs can only read: {}; the kernel's btrfs can write it from there on",
        with_kernels(.0)
    )]
    ReadOnlyFeatures(Vec<String>),
    /// A log that can't be replayed.
    #[error(
        "the volume was not unmounted cleanly, and its log of what was fsynced since the last commit can't be replayed: {0}"
    )]
    BadLog(String),
    /// A log of a volume whose features its replay might break.
    #[error(
        "the volume holds a log, which can't be replayed because the volume uses features that ubtrfs does not know: {}",
        .0.join(", ")
    )]
    LogOfUnknownFeatures(Vec<String>),
    /// A log may be ignored only by read-only mounts.
    #[error("the volume holds a log, which is passed over only where nothing is written")]
    LogPassedOver,
    /// A writer would lose what a rescue mount leaves out while reading.
    #[error("a damaged volume is read as far as it goes only where nothing is written")]
    RescueOfWriters,
    /// A state that this version can't maintain while writing.
    #[error("{0}; ubtrfs can only read such a volume")]
    ReadOnlyState(String),
    /// The root directory of the subvolume is not usable.
    #[error(
        "the root inode of the subvolume {0} is not a directory: the volume is damaged, and nothing in that subvolume can be reached"
    )]
    RootIsNoDirectory(TreeId),
    /// The path of a subvolume was given, with the id of another one.
    #[error("the subvolume at '{path}' has the id {found}, and not {wanted}")]
    OtherSubvolume {
        /// The path that was given.
        path: String,
        /// The id of what is there.
        found: TreeId,
        /// The id that was given.
        wanted: TreeId,
    },
    /// A subvolume that does not exist.
    #[error("there is no subvolume {0}")]
    NoSubvolume(String),
}

/// Names of features, each with the first kernel that supports it.
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

impl From<ubtrfs_space::Error> for Error {
    fn from(error: ubtrfs_space::Error) -> Self {
        match error {
            ubtrfs_space::Error::Tree(error) => Self::Tree(error),
            ubtrfs_space::Error::Volume(error) => Self::Volume(error),
            ubtrfs_space::Error::Format(error) => Self::Format(error),
            ubtrfs_space::Error::MissingItem { tree, key } => Self::MissingItem { tree, key },
            ubtrfs_space::Error::Inconsistent { tree, key, what } => Self::Inconsistent { tree, key, what },
        }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Posix(errno)
    }
}

impl Error {
    /// Returns the errno that a program sees. `EAGAIN` is only for threads that [must not
    /// wait](crate::scheduling::nonblocking).
    pub fn errno(&self) -> Errno {
        match self {
            Self::Posix(errno) => *errno,
            Self::Tree(TreeError::WouldBlock) | Self::Data(DataError::Tree(TreeError::WouldBlock)) => Errno::AGAIN,
            Self::Refused(Refusal::NoSubvolume(_)) => Errno::NOENT,
            Self::Refused(Refusal::OtherSubvolume { .. }) => Errno::INVAL,
            Self::Aborted(_) | Self::Refused(_) => Errno::ROFS,
            Self::Volume(error) => errno_of_opening(error).unwrap_or(Errno::IO),
            Self::Step { source, .. } => source.errno(),
            Self::Shared(error) => error.errno(),
            _ => Errno::IO,
        }
    }

    /// Returns its message and those of its causes, in one line.
    pub fn chain(&self) -> String {
        sentence(self)
    }

    /// Returns where a device failed, if that is the cause.
    pub fn device_fault(&self) -> Option<DeviceFault> {
        self.volume_error().and_then(VolumeError::device_fault)
    }

    /// Returns the steps in which it occurred, from the operation to its part, and the error at
    /// their end.
    pub fn steps(&self) -> (Vec<Step>, &Self) {
        let (mut steps, mut error) = (Vec::new(), self);
        loop {
            error = match error {
                Self::Step { step, source } => {
                    steps.push(*step);
                    source
                }
                Self::Shared(cause) | Self::NotDurable(cause) | Self::Aborted(cause) => cause,
                Self::Tree(TreeError::Allocator(cause)) => match cause.downcast_ref::<Self>() {
                    Some(cause) => cause,
                    None => return (steps, error),
                },
                _ => return (steps, error),
            };
        }
    }

    /// Returns the volume's error, if that is the cause.
    fn volume_error(&self) -> Option<&VolumeError> {
        match self.steps().1 {
            Self::Volume(error) | Self::Data(DataError::Volume(error)) => Some(error),
            Self::Tree(error) | Self::Data(DataError::Tree(error)) => {
                std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
            }
            _ => None,
        }
    }

    /// Returns the error as the cause of a failed step. An error that others share stays as it is.
    pub(crate) fn at(self, step: Step) -> Self {
        if let Self::Shared(_) = self { self } else { Self::Step { step, source: Box::new(self) } }
    }

    /// Returns the error in a form that can be shared.
    pub(crate) fn shared(self) -> Arc<Self> {
        if let Self::Shared(error) = self { error } else { Arc::new(self) }
    }

    /// Returns the error of an operation that was to make changes durable when `error` occurred.
    pub(crate) fn not_durable(error: Arc<Self>) -> Self {
        match &*error {
            Self::NotDurable(cause) | Self::Aborted(cause) => Self::NotDurable(cause.clone()),
            _ => Self::NotDurable(error),
        }
    }

    /// Whether it only reports that another error occurred before.
    pub(crate) fn is_consequence(&self) -> bool {
        match self {
            Self::NotDurable(_) | Self::Aborted(_) => true,
            Self::Step { source, .. } => source.is_consequence(),
            _ => matches!(self.volume_error(), Some(VolumeError::ReadOnly)),
        }
    }
}

/// Returns the errno of an error that opening a volume causes, unless one of its devices merely
/// fails.
fn errno_of_opening(error: &VolumeError) -> Option<Errno> {
    match error {
        VolumeError::Open { source, .. } => Errno::from_io_error(source),
        VolumeError::Held { .. } | VolumeError::Attached { .. } => Some(Errno::BUSY),
        VolumeError::NotADevice { .. }
        | VolumeError::NoDevice
        | VolumeError::OthersLag { .. }
        | VolumeError::AllGivenUp
        | VolumeError::NotBtrfs
        | VolumeError::SmallDevice { .. } => Some(Errno::INVAL),
        _ => None,
    }
}

/// Adds to an error the step that failed.
pub(crate) trait AtStep<T> {
    /// Makes the error the cause of a failed step.
    fn at(self, step: Step) -> Result<T>;
}

impl<T, E: Into<Error>> AtStep<T> for std::result::Result<T, E> {
    fn at(self, step: Step) -> Result<T> {
        self.map_err(|error| error.into().at(step))
    }
}
