//! Reasons why an fsync becomes a commit.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Step};

/// The reason why an fsync became a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Space that would be logged is in a chunk that the last commit does not have.
    NewChunk,
    /// There is no space for log nodes besides what a commit may need.
    NoSpace,
    /// A directory was moved to another one.
    MovedDirectory,
    /// A file that is an orphan in the last commit got a name, which a log can't express.
    Orphan,
    /// The entry of a subvolume was removed or moved, which a log can't express.
    Subvolume,
    /// Too many inodes have to be logged with it.
    ManyInodes,
    /// Names changed faster than they could be gathered.
    BusyNames,
    /// The log would not follow the generation of the last superblock.
    Generation,
    /// Something that the log needs could not be read.
    Unreadable,
    /// An earlier log write of the transaction was abandoned.
    Abandoned,
    /// The mount options forbid logs.
    NoTreeLog,
    /// Replay might find no room for an item that names or xattrs share.
    CrowdedItem,
    /// The last superblock lacks the feature flag of the compression algorithm. This happens once
    /// in a volume.
    NewFeature,
    /// A device has failed that the volume can do without: its superblock has to stay behind.
    DeviceFailed,
    /// A file came under the protection of fs-verity, which a log can't express.
    Verity,
}

impl Reason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 15] = [
        Self::NewChunk,
        Self::NoSpace,
        Self::MovedDirectory,
        Self::Orphan,
        Self::Subvolume,
        Self::ManyInodes,
        Self::BusyNames,
        Self::Generation,
        Self::Unreadable,
        Self::Abandoned,
        Self::NoTreeLog,
        Self::CrowdedItem,
        Self::NewFeature,
        Self::DeviceFailed,
        Self::Verity,
    ];

    /// A short name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewChunk => "new_chunk",
            Self::NoSpace => "no_space",
            Self::MovedDirectory => "moved_directory",
            Self::Orphan => "orphan",
            Self::Subvolume => "subvolume",
            Self::ManyInodes => "many_inodes",
            Self::BusyNames => "busy_names",
            Self::Generation => "generation",
            Self::Unreadable => "unreadable",
            Self::Abandoned => "abandoned",
            Self::NoTreeLog => "notreelog",
            Self::CrowdedItem => "crowded_item",
            Self::NewFeature => "new_feature",
            Self::DeviceFailed => "device_failed",
            Self::Verity => "verity",
        }
    }
}

/// The reason why a log can't be written. Each place at which something fails chooses one
/// explicitly: no error is converted automatically.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A commit has to replace the log.
    Commit(Reason),
    /// A commit has to replace the log, since what the log needs can't be read:
    /// [`Reason::Unreadable`].
    Unreadable(Error),
    /// Nothing can be written any more; the file system is aborted.
    Abort(Error),
}

/// Says what a failure means for a write of the log.
pub(super) trait OrElse<T> {
    /// A commit has to replace the log. Nothing is lost by that, and the commit itself fails if it
    /// must.
    fn or_commit(self) -> Result<T, Stop>;
    /// Nothing can be written any more, since this step failed.
    fn or_abort(self, step: Step) -> Result<T, Stop>;
}

impl<T, E: Into<Error>> OrElse<T> for Result<T, E> {
    fn or_commit(self) -> Result<T, Stop> {
        self.map_err(|error| Stop::Unreadable(error.into().at(Step::GatherLog)))
    }

    fn or_abort(self, step: Step) -> Result<T, Stop> {
        self.map_err(|error| Stop::Abort(error.into().at(step)))
    }
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Self {
        Self::Commit(reason)
    }
}

/// How often each reason occurred.
#[derive(Debug, Default)]
pub struct Fallbacks([AtomicU64; Reason::ALL.len()]);

impl Fallbacks {
    pub(crate) fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns each reason with its count.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().map(|reason| (*reason, self.0[*reason as usize].load(Ordering::Relaxed)))
    }
}
