//! fsync, fdatasync and sync: what has to be waited for, and who writes the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};
use ubtrfs_format::items::{InodeItem, Timespec};

use super::operations::Operations;
use crate::error::{Errno, Result};
use crate::fsync_group::{Done, FsyncGroup};
use crate::inode::{Inode, InodeId, InodeState, LoggedAs};
use crate::writeback::is_nodatacow;

/// The duty to write the log for a group of fsyncs.
#[must_use = "a group that nobody leads waits forever"]
pub struct FsyncLeader(Arc<FsyncGroup>);

/// What stands between an fsync and its end.
enum Need {
    Nothing,
    /// The commit that is under way.
    Commit,
    /// The write of the log that has all of it.
    Group(Arc<FsyncGroup>),
    /// A write of the log.
    Log,
}

impl Operations {
    /// Makes everything durable that was changed before.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.info.is_at_rest() {
            return Ok(());
        }
        self.reserver.commit()
    }

    /// Makes an inode durable: content, attributes and names; of a directory, its entries and the
    /// inodes that new ones lead to.
    pub(crate) fn fsync(&self, id: InodeId) -> Result<()> {
        self.wait_for_sync(id, false)
    }

    /// The same, but for changes of times alone.
    pub(crate) fn fdatasync(&self, id: InodeId) -> Result<()> {
        self.wait_for_sync(id, true)
    }

    fn wait_for_sync(&self, id: InodeId, data_only: bool) -> Result<()> {
        let end = Arc::new((Mutex::new(None), Condvar::new()));
        let told = end.clone();
        let done = move |result| {
            *told.0.lock() = Some(result);
            told.1.notify_all();
        };
        self.start_fsync(id, data_only, Box::new(done));
        let mut result = end.0.lock();
        loop {
            if let Some(result) = result.take() {
                return result;
            }
            end.1.wait(&mut result);
        }
    }

    /// Makes an inode durable as [`Self::fsync`] does, or as [`Self::fdatasync`]. `done` is told
    /// when it is, by whatever thread finds out. The call itself returns sooner, unless it is the
    /// one that has to write.
    pub(crate) fn start_fsync(&self, id: InodeId, data_only: bool, done: Done) {
        if let Some(leader) = self.join_fsync(id, data_only, done) {
            self.lead_fsync(leader);
        }
    }

    /// Does of [`Self::start_fsync`] what takes no waiting, if [`Self::is_fsync_short`]. Whoever
    /// gets a leader has to see to it that [`Self::lead_fsync`] is called with it, soon, by
    /// whatever thread: others come to wait for that.
    pub(crate) fn join_fsync(&self, id: InodeId, data_only: bool, done: Done) -> Option<FsyncLeader> {
        // Data that was taken out of memory has to go its way.
        ubtrfs_tree::blocking(|| self.join_group(id, data_only, done)).map(FsyncLeader)
    }

    /// Writes what a group of fsyncs asks for.
    pub(crate) fn lead_fsync(&self, leader: FsyncLeader) {
        let FsyncLeader(group) = leader;
        self.lead(&group);
    }

    /// Whether nobody works on an inode, and little of it is dirty: then an fsync starts in an
    /// instant.
    pub(crate) fn is_fsync_short(&self, id: InodeId) -> bool {
        const LITTLE: u64 = 128 << 10;
        let inode = self.info.inodes.get(id);
        // What is written over its old tree_log may have to wait for what is on its way there.
        let may_wait = |state: &InodeState| is_nodatacow(state.item.flags) && !state.ordered.is_empty();
        inode.is_some_and(|inode| inode.try_write().is_some_and(|state| state.reserved <= LITTLE && !may_wait(&state)))
    }

    /// Starts what an fsync needs; the group, if the caller has to lead it.
    fn join_group(&self, id: InodeId, data_only: bool, done: Done) -> Option<Arc<FsyncGroup>> {
        self.info.counters.fsyncs.fetch_add(1, Ordering::Relaxed);
        let need = self.info.inode(id).and_then(|inode| Ok((self.start_sync(&inode, data_only)?, inode)));
        let (need, inode) = match need {
            Ok(found) => found,
            Err(error) => {
                done(Err(error));
                return None;
            }
        };
        match need {
            Need::Log => return self.log.join(inode, done),
            Need::Nothing => {
                self.info.counters.fsyncs_without_work.fetch_add(1, Ordering::Relaxed);
                done(self.info.already_durable().map(|_| ()));
            }
            Need::Commit => {
                if let Some(done) = self.log.follow_commit(done) {
                    done(self.info.already_durable().map(|_| ()));
                }
            }
            Need::Group(group) => {
                self.info.counters.fsyncs_without_work.fetch_add(1, Ordering::Relaxed);
                if let Some((done, outcome)) = group.wait(done) {
                    done(self.info.already_durable().and(outcome.result()));
                }
            }
        }
        None
    }

    /// Starts the write-out of what is dirty, and says what to wait for.
    fn start_sync(&self, inode: &Arc<Inode>, data_only: bool) -> Result<Need> {
        if self.info.is_at_rest() {
            return Ok(Need::Nothing);
        }
        let mut state = inode.write();
        if std::mem::take(&mut state.write_error) {
            return Err(Errno::IO.into());
        }
        let transaction = self.info.gate.enter();
        if state.pending.generation != transaction.generation {
            let in_flight = !state.pending.is_clean() || state.frozen.is_some();
            return Ok(if in_flight { Need::Commit } else { Need::Nothing });
        }
        if state.item.nlink > 0 && !state.dirty.is_empty() {
            self.log.write_back_for_log(inode, &mut state, &transaction)?;
        }
        Ok(match &state.pending.logged {
            Some(logged) if is_logged(&state, data_only) => Need::Group(logged.group.clone()),
            _ => Need::Log,
        })
    }

    /// Writes a group's log, or commits where the log can't have it.
    fn lead(&self, group: &Arc<FsyncGroup>) {
        if let Some(closed) = self.log.write_for(group) {
            let result = self.reserver.commit();
            closed.committed(&self.info, &result);
        }
    }
}

/// Whether the log has all that an fsync of the inode would put there.
fn is_logged(state: &InodeState, data_only: bool) -> bool {
    let Some(logged) = &state.pending.logged else { return false };
    let same_item = match &logged.how {
        LoggedAs::Named => return false,
        LoggedAs::Nameless { synced } => return *synced && state.item.nlink == 0 && !logged.names_changed,
        LoggedAs::Whole(item) if data_only => without_times(item) == without_times(&state.item),
        LoggedAs::Whole(item) => *item == state.item,
    };
    same_item
        && state.dirty.is_empty()
        && state.pending.layout.is_unchanged()
        && !logged.names_changed
        && !logged.xattrs_changed
        && logged.has_no_entries()
}

fn without_times(item: &InodeItem) -> InodeItem {
    let none = Timespec::default();
    InodeItem { atime: none, mtime: none, ctime: none, sequence: 0, ..*item }
}
