//! Fsyncs that share one write of the log, and their outcome. Success requires a proof
//! (invariant 22): a superblock that was written and flushed, or that nothing has changed since one
//! was.

use std::sync::Arc;

use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_volume::Published;

use crate::error::{Errno, Error, Result};

/// Proof that an fsync's inode is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Durable(());

impl Durable {
    /// Returns the proof for what the superblock refers to.
    pub(crate) fn by(_published: &Published) -> Self {
        Self(())
    }

    /// Returns the proof for an inode that has not changed since an earlier superblock. If the file
    /// system has turned read-only, returns the error by which it did: then it is not known what is
    /// durable (invariant 22: an earlier fsync may have failed, and nothing proves that its changes
    /// are durable).
    pub(crate) fn already(aborted: Option<Arc<Error>>) -> std::result::Result<Self, Arc<Error>> {
        aborted.map_or(Ok(Self(())), Err)
    }

    /// Returns the false proof of a commit that answers early, to test the tests.
    pub(crate) fn pretended() -> Self {
        Self(())
    }
}

/// The outcome of a group.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// A superblock refers to its log, or to a commit that contains its changes.
    Durable(Durable),
    /// Only a commit can make it durable.
    NeedsCommit,
    /// The group was abandoned before it was written.
    GivenUp,
    /// The file system has turned read-only after this error.
    Failed(Arc<Error>),
}

impl Outcome {
    /// Returns the result for waiting members.
    pub(crate) fn result(&self) -> Result<()> {
        match self {
            Self::Durable(_) => Ok(()),
            Self::NeedsCommit | Self::GivenUp => Err(Errno::IO.into()),
            Self::Failed(error) => Err(Error::not_durable(error.clone())),
        }
    }
}

/// A callback that is called once with the result of an fsync.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct Members {
    waiting: Vec<Done>,
    outcome: Option<Outcome>,
}

/// Fsyncs that share one write of the log.
pub(crate) struct FsyncGroup {
    members: Mutex<Members>,
}

impl Default for FsyncGroup {
    fn default() -> Self {
        Self { members: Mutex::with_default(Rank::FsyncMembers) }
    }
}

impl FsyncGroup {
    /// Registers `done` to be called when the group ends. If it has ended, returns `done` with the
    /// outcome.
    pub(crate) fn wait(&self, done: Done) -> Option<(Done, Outcome)> {
        let mut members = self.members.lock();
        match &members.outcome {
            None => {
                members.waiting.push(done);
                None
            }
            Some(outcome) => Some((done, outcome.clone())),
        }
    }

    /// Ends the group: tells the waiting members, and lets later callers know the outcome.
    pub(crate) fn end(&self, outcome: &Outcome) {
        let waiting = {
            let mut members = self.members.lock();
            let before = members.outcome.replace(outcome.clone());
            assert!(before.is_none(), "invariant 22: a group ends once, and got another outcome");
            std::mem::take(&mut members.waiting)
        };
        for done in waiting {
            done(outcome.result());
        }
    }
}
