//! The end of inodes: when the last name and the last reference are gone.
//!
//! Whoever lets go of an inode last never waits for its space to be freed. A small inode becomes
//! one edit of the open transaction on the spot: all that the trees have of it goes. A large one is
//! handed to the *inactivator*, which cuts it from its end, so much in each transaction, until what
//! is left is small: the trees hold it as an orphan of the size reached meanwhile, so that after a
//! crash the next mount, ours or the kernel's, goes on from there. Orphans that a mount finds are
//! the inactivator's work too.
//!
//! | file | what it does |
//! |---|---|
//! | `enqueue` | references, and what becomes of an inode when the last one goes |
//! | `queue` | what waits to be freed |
//! | `truncate` | how much of an inode goes in one transaction |
//! | `orphans` | inodes that a crash left without a name |
//! | `batch` | the work of one transaction, and who does it |

mod batch;
mod enqueue;
mod orphans;
mod queue;
mod truncate;

pub use queue::InactivationStats;

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::commit::Committer;
use crate::fs_info::FsInfo;
use queue::InactivationQueue;

/// The inactivator of a mount.
pub(crate) struct Inactivator {
    info: Arc<FsInfo>,
    committer: Arc<Committer>,
    queue: InactivationQueue,
}

impl Inactivator {
    pub(crate) fn new(info: Arc<FsInfo>, committer: Arc<Committer>) -> Self {
        Self { info, committer, queue: InactivationQueue::default() }
    }

    /// While the result lives, nothing is freed in the background.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.queue.pause()
    }

    /// What waits may be freed again.
    pub(crate) fn go_on(&self) {
        self.queue.go_on();
    }

    /// How far it is.
    pub(crate) fn stats(&self) -> InactivationStats {
        self.queue.stats()
    }
}
