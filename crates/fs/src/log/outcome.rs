//! What became of a group of fsyncs. Success takes a proof (invariant 22): a superblock that was
//! written and flushed, or that nothing has changed since one was.

use ubtrfs_volume::Published;

use crate::error::{Errno, Result};
use crate::filesystem::Filesystem;

/// Proof that what an fsync asks for is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Durable(());

impl Durable {
    /// By the superblock that leads to it.
    pub(crate) fn by(_published: &Published) -> Self {
        Self(())
    }

    /// By an earlier superblock, since nothing of it has changed after that. An error if the file
    /// system has turned read-only: then it is not known what is durable.
    pub(crate) fn already(fs: &Filesystem) -> Result<Self> {
        if fs.info.abort_reason().is_none() { Ok(Self(())) } else { Err(Errno::IO.into()) }
    }

    /// What a commit that answers early, to test the tests, takes for a proof.
    pub(crate) fn pretended() -> Self {
        Self(())
    }
}

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A superblock leads to its log, or to a commit that has all of it.
    Durable(Durable),
    /// Only a commit can make it durable.
    NeedsCommit,
    /// The file system has turned read-only.
    Failed,
}

impl Outcome {
    /// What those who wait are told.
    pub(crate) fn result(self) -> Result<()> {
        match self {
            Self::Durable(_) => Ok(()),
            Self::NeedsCommit | Self::Failed => Err(Errno::IO.into()),
        }
    }
}
