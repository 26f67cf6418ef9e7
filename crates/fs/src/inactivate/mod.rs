//! Inactivation: frees inodes when the last name and the last reference are gone.
//!
//! Dropping the last reference never waits for the inode's space to be freed. A small inode is
//! deleted at once by one edit of the open transaction. A large one is enqueued for the
//! *inactivator*, which truncates it from its end, one step in each transaction, until the rest is
//! small. In the trees it is an orphan of the size that was reached, so that after a crash the next
//! mount, ours or the kernel's, continues from there. The inactivator also frees orphans that a
//! mount finds.
//!
//! | file | what it does |
//! |---|---|
//! | `enqueue` | references, and the start of inactivation when the last one is dropped |
//! | `queue` | inodes that wait to be freed |
//! | `truncate` | how much of an inode is freed in one transaction |
//! | `orphans` | inodes that a crash left without a name |
//! | `batch` | the inactivation of one transaction, and its threads |

mod batch;
mod enqueue;
mod orphans;
mod queue;
mod truncate;

pub(crate) use enqueue::TYPICAL_EXTENT;
pub use queue::InactivationStats;
pub(crate) use truncate::Truncation;

use std::sync::Arc;

use crate::commit::Committer;
use crate::fs_info::FsInfo;
use queue::InactivationQueue;
use ubtrfs_threads::MutexGuard;

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

    /// Pauses freeing in the background while the result lives.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.queue.pause()
    }

    /// Lets waiting inodes be freed again.
    pub(crate) fn go_on(&self) {
        self.queue.go_on();
    }

    /// Announces that a deleted subvolume was released, so that its tree is dropped.
    pub(crate) fn subvolume_released(&self) {
        self.queue.set_subvolumes(true);
    }

    /// Returns its progress.
    pub(crate) fn stats(&self) -> InactivationStats {
        self.queue.stats()
    }
}
