//! Leads a group of fsyncs in two parts: one that only works in memory, and one that waits for
//! devices.
//!
//! A thread that must not wait does the first part of a small group at once: it gathers and merges
//! the log, and submits its nodes. The log stays *in flight*, beside the tree log, without a lock
//! (invariant 37). Another thread is woken to publish it while the devices work. If a thread takes
//! the tree log before that, it publishes the log in flight first. So no log is written beside it
//! (invariant 16), and no fsync depends on a thread that has yet to be scheduled.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ubtrfs_format::items::FileType;
use ubtrfs_threads::MutexGuard;

use super::queue::{ClosedGroup, Log, LogInFlight};
use super::tree_log::TreeLog;
use crate::faults::LogFault;
use crate::fsync_group::FsyncGroup;
use crate::inode::Inode;

/// The most inodes with changed names that a thread which must not wait includes.
const FEW: usize = 16;

/// The part of leading a group that is left.
pub(crate) enum Lead {
    /// The whole group.
    Whole(Arc<FsyncGroup>),
    /// Waiting for the writes of the log in flight, and publishing it, unless another thread has
    /// done so.
    Publish,
    /// A commit, since the log can't express the changes.
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
    /// Begins to lead a group, if this takes little time and no waiting. Returns the part that is
    /// left, or `None` if the group is done.
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

    /// Publishes the log in flight. Returns the groups that only a commit can make durable.
    pub(crate) fn publish_in_flight(&self) -> Vec<ClosedGroup> {
        self.publish(self.state.lock());
        std::mem::take(&mut *self.need_commit.lock())
    }

    /// Takes the tree log, which is the right to write the superblock. Waits for the log write in
    /// progress, and publishes the log in flight.
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

    /// Takes the tree log without waiting. Returns `None` during a commit, while a log is in
    /// flight, and while others wait for the tree log: a thread that begins one log after the other
    /// would make them wait for long.
    fn try_tree_log(&self) -> Option<MutexGuard<'_, TreeLog>> {
        let tree_log = self.state.try_lock().filter(|_| self.waiting.load(Ordering::Relaxed) == 0);
        tree_log.filter(|tree_log| !tree_log.commit_in_flight && self.in_flight.lock().is_none())
    }

    /// Publishes the log in flight, if there is one. Its members are notified after the lock is
    /// released.
    fn publish(&self, mut tree_log: MutexGuard<'_, TreeLog>) {
        let Some(LogInFlight { mut closed, writes }) = self.in_flight.lock().take() else { return };
        // Until it is known whether its nodes were written, nothing may refer to them.
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

    /// Whether gathering the items that make these inodes durable takes little time.
    fn are_few(&self, inodes: &[Arc<Inode>]) -> bool {
        let is_file = |inode: &Arc<Inode>| inode.try_read().is_some_and(|state| state.file_type() == FileType::Regular);
        inodes.len() == 1 && inodes.iter().all(is_file) && self.info.gate.current().count_renamed() <= FEW
    }
}
