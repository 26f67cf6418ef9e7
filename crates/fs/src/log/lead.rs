//! Leading a group of fsyncs in two parts: what takes memory only, and what waits for devices.
//!
//! A thread that must not wait does the first part of a small group at once: it gathers and merges
//! the log, and submits its nodes. The log stays *in flight*, beside the tree log, without a lock
//! (invariant 49). Another thread is woken to publish it while the devices work. A thread that
//! takes the tree log earlier publishes it first: so no log is written beside it (invariant 16),
//! and nobody depends on a thread that has yet to be scheduled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ubtrfs_format::items::FileType;
use ubtrfs_threads::MutexGuard;

use super::queue::{ClosedGroup, Log, LogInFlight};
use super::tree_log::TreeLog;
use crate::faults::LogFault;
use crate::fsync_group::FsyncGroup;
use crate::inode::Inode;

/// Inodes whose names changed that a thread which must not wait takes in.
const FEW: usize = 16;

/// What is left to do for a group.
pub(crate) enum Lead {
    /// All of it.
    Whole(Arc<FsyncGroup>),
    /// To wait for the writes of the log in flight, and to publish them, unless somebody has.
    Publish,
    /// To commit, since the log can't express the changes.
    Commit(ClosedGroup),
}

/// A thread among those that wait for the tree log, until it has it or panics.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn among(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Log {
    /// Begins to lead a group, if that takes little time and no waiting; returns what is left.
    /// `None`: nothing is.
    pub(crate) fn begin_to_lead(&self, group: Arc<FsyncGroup>) -> Option<Lead> {
        let tree_log = self.try_tree_log().filter(|_| self.info.aborted().is_none());
        let Some(mut tree_log) = tree_log else { return Some(Lead::Whole(group)) };
        let Some(mut closed) = self.close_if(&group, |inodes| self.are_few(inodes)) else {
            return Some(Lead::Whole(group));
        };
        let outcome = match self.begin_write(&mut tree_log, &closed) {
            Ok(Some(writes)) => {
                *self.in_flight.lock() = Some(LogInFlight { closed, writes });
                return Some(Lead::Publish);
            }
            Ok(None) => self.outcome(&mut tree_log, self.already_logged()),
            Err(stop) => self.outcome(&mut tree_log, Err(stop)),
        };
        drop(tree_log);
        closed.set_outcome(outcome);
        closed.needs_commit().then(|| Lead::Commit(closed))
    }

    /// Has the log in flight published. Returns the groups that only a commit can make durable.
    pub(crate) fn publish_in_flight(&self) -> Vec<ClosedGroup> {
        self.publish(self.state.lock());
        std::mem::take(&mut *self.need_commit.lock())
    }

    /// The right to write the superblock. Waits for the log write in progress, and publishes the
    /// log in flight.
    pub(crate) fn tree_log(&self) -> MutexGuard<'_, TreeLog> {
        let _waiting = Waiting::among(&self.waiting);
        let mut tree_log = self.state.lock();
        while self.info.options.faults().in_log(LogFault::LeaveToLeader) && self.in_flight.lock().is_some() {
            self.tree_log_free.wait(&mut tree_log);
        }
        while self.in_flight.lock().is_some() {
            self.publish(tree_log);
            tree_log = self.state.lock();
        }
        tree_log
    }

    /// The tree log without waiting; not during a commit, nor while a log is in flight, nor while
    /// others wait for it: by a thread that begins one log after the other they would wait long.
    fn try_tree_log(&self) -> Option<MutexGuard<'_, TreeLog>> {
        let tree_log = self.state.try_lock().filter(|_| self.waiting.load(Ordering::Relaxed) == 0);
        tree_log.filter(|tree_log| !tree_log.commit_in_flight && self.in_flight.lock().is_none())
    }

    /// Publishes the log in flight, if there is one. Its members are answered without the lock.
    fn publish(&self, mut tree_log: MutexGuard<'_, TreeLog>) {
        let Some(LogInFlight { mut closed, writes }) = self.in_flight.lock().take() else { return };
        // As long as nobody knows what became of its nodes, nothing may refer to them.
        let was_abandoned = std::mem::replace(&mut tree_log.abandoned, true);
        let result = self.finish_write(&mut tree_log, writes);
        tree_log.abandoned = was_abandoned;
        closed.set_outcome(self.outcome(&mut tree_log, result));
        if self.info.options.faults().in_log(LogFault::LeaveToLeader) {
            self.tree_log_free.notify_all();
        }
        if closed.needs_commit() {
            self.need_commit.lock().push(closed);
            return;
        }
        drop(tree_log);
        drop(closed);
    }

    /// Whether it takes little time to gather what makes these inodes durable.
    fn are_few(&self, inodes: &[Arc<Inode>]) -> bool {
        let is_file = |inode: &Arc<Inode>| inode.try_read().is_some_and(|state| state.file_type() == FileType::Regular);
        inodes.len() == 1 && inodes.iter().all(is_file) && self.info.gate.current().count_renamed() <= FEW
    }
}
