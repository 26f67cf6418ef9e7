//! Why an fsync became a commit.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;

/// Why an fsync became a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Space that would be logged lies in a chunk that the last commit does not know.
    NewChunk,
    /// There is no space for log nodes that a commit may not need.
    NoSpace,
    /// A directory was moved to another one.
    MovedDirectory,
    /// A file that the last commit has as an orphan got a name, of which a log can't tell.
    Orphan,
    /// The entry of a subvolume went or was moved, of which a log can't tell.
    Subvolume,
    /// Too many inodes have to be logged with it.
    ManyInodes,
    /// Names changed faster than they could be gathered.
    BusyNames,
    /// A log would not follow the last superblock's generation.
    Generation,
    /// Something could not be read.
    Unreadable,
    /// An earlier log write of the transaction was given up.
    Abandoned,
    /// The mount is to write no logs.
    NoTreeLog,
    /// A replay could not be sure to find room for an item that names or xattrs share.
    CrowdedItem,
}

impl Reason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 12] = [
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
        }
    }
}

/// Why a log can't be written.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A commit has to do.
    Commit(Reason),
    /// Nothing can be written any more.
    Error(Error),
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Self {
        Self::Commit(reason)
    }
}

/// How often each reason came up.
#[derive(Debug, Default)]
pub struct Fallbacks([AtomicU64; Reason::ALL.len()]);

impl Fallbacks {
    pub(crate) fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each reason with its count.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().map(|reason| (*reason, self.0[*reason as usize].load(Ordering::Relaxed)))
    }
}
