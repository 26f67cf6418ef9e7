//! Fsyncs that share one write of the log, and what became of them. Success takes a proof
//! (invariant 22): a superblock that was written and flushed, or that nothing has changed since one
//! was.

use parking_lot::Mutex;
use ubtrfs_volume::Published;

use crate::error::{Errno, Result};

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
    pub(crate) fn already(is_aborted: bool) -> Result<Self> {
        if is_aborted { Err(Errno::IO.into()) } else { Ok(Self(())) }
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

/// Told once how an fsync ended.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct Members {
    waiting: Vec<Done>,
    outcome: Option<Outcome>,
}

/// Fsyncs that share one write of the log.
#[derive(Default)]
pub(crate) struct FsyncGroup {
    members: Mutex<Members>,
}

impl FsyncGroup {
    /// Has `done` told when the group has ended; gives it back, with the outcome, if it has.
    pub(crate) fn wait(&self, done: Done) -> Option<(Done, Outcome)> {
        let mut members = self.members.lock();
        match members.outcome {
            None => {
                members.waiting.push(done);
                None
            }
            Some(outcome) => Some((done, outcome)),
        }
    }

    /// The group has ended: tells those who wait, and those who ask later.
    pub(crate) fn end(&self, outcome: Outcome) {
        let waiting = {
            let mut members = self.members.lock();
            members.outcome = Some(outcome);
            std::mem::take(&mut members.waiting)
        };
        for done in waiting {
            done(outcome.result());
        }
    }
}
