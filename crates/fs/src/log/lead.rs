//! Leading a group of fsyncs in two parts: what takes memory only, and what waits for devices.
//!
//! A thread that must not wait does the first part of a small group at once: it gathers and merges
//! the log, and submits its nodes. Another thread is woken for the second part while the devices
//! work. Until then the tree log goes with the group (invariant 16), and a group that is given up
//! on the way has failed (invariant 22).

use std::sync::Arc;

use ubtrfs_format::items::FileType;
use ubtrfs_threads::{ArcMutexGuard, RawMutex};

use super::queue::{ClosedGroup, Log};
use super::tree_log::TreeLog;
use super::write::LogWrites;
use crate::fsync_group::FsyncGroup;
use crate::inode::Inode;

/// Inodes whose names changed that a thread which must not wait takes in.
const FEW: usize = 16;

/// What is left to do for a group.
pub(crate) enum Lead {
    /// All of it.
    Whole(Arc<FsyncGroup>),
    /// To wait for the writes of its log, and to publish them.
    Publish(WrittenLog),
    /// To commit, since the log can't express the changes.
    Commit(ClosedGroup),
}

/// A group's log whose nodes are under way, with the tree log.
pub(crate) struct WrittenLog {
    tree_log: ArcMutexGuard<RawMutex, TreeLog>,
    /// `None` once it is known what became of them.
    writes: Option<(ClosedGroup, LogWrites)>,
}

impl Drop for WrittenLog {
    fn drop(&mut self) {
        if self.writes.is_some() {
            // Nobody knows whether its nodes were written: nothing may refer to them.
            self.tree_log.abandoned = true;
        }
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
            Ok(Some(writes)) => return Some(Lead::Publish(WrittenLog { tree_log, writes: Some((closed, writes)) })),
            Ok(None) => self.outcome(&mut tree_log, self.already_logged()),
            Err(stop) => self.outcome(&mut tree_log, Err(stop)),
        };
        drop(tree_log);
        closed.set_outcome(outcome);
        closed.needs_commit().then(|| Lead::Commit(closed))
    }

    /// Publishes a log. Returns the group if only a commit can make it durable.
    pub(crate) fn publish_written(&self, mut log: WrittenLog) -> Option<ClosedGroup> {
        let (mut closed, writes) = log.writes.take()?;
        let result = self.finish_write(&mut log.tree_log, writes);
        let outcome = self.outcome(&mut log.tree_log, result);
        drop(log);
        closed.set_outcome(outcome);
        closed.needs_commit().then_some(closed)
    }

    /// Whether it takes little time to gather what makes these inodes durable.
    fn are_few(&self, inodes: &[Arc<Inode>]) -> bool {
        let is_file = |inode: &Arc<Inode>| inode.try_read().is_some_and(|state| state.file_type() == FileType::Regular);
        inodes.len() == 1 && inodes.iter().all(is_file) && self.info.gate.current().count_renamed() <= FEW
    }
}
