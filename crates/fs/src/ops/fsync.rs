//! fsync, fdatasync and sync: what they wait for, and how they choose between a log and a commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::{InodeItem, Timespec};
use ubtrfs_threads::{Condvar, Mutex, Rank};

use super::operations::Durability;
use crate::error::{Error, Result};
use crate::fsync_group::{Done, FsyncGroup};
use crate::inode::{Inode, InodeId, InodeState, LoggedAs};
use crate::log::Lead;
use crate::writeback::{Cause, Packed, is_nodatacow};

/// The duty to complete a group of fsyncs.
#[must_use = "a group that nobody leads waits forever"]
pub struct FsyncLeader(Lead);

/// What an fsync has to wait for before it can return.
enum Need {
    Nothing,
    /// The commit in progress.
    Commit,
    /// The write of the log that contains all changes of the inode.
    Group(Arc<FsyncGroup>),
    /// A write of the log.
    Log,
}

impl Durability {
    /// Makes all earlier changes durable.
    pub fn sync(&self) -> Result<()> {
        if self.info.is_at_rest() {
            return Ok(());
        }
        self.reserver.commit()
    }

    /// Makes an inode durable: content, attributes and names. Of a directory it makes the entries
    /// durable, and the inodes of new entries.
    pub fn fsync(&self, id: InodeId) -> Result<()> {
        self.wait_for_sync(id, false)
    }

    /// Does the same, except for changes of times alone.
    pub fn fdatasync(&self, id: InodeId) -> Result<()> {
        self.wait_for_sync(id, true)
    }

    fn wait_for_sync(&self, id: InodeId, data_only: bool) -> Result<()> {
        let end = Arc::new((Mutex::new(Rank::FsyncEnd, None), Condvar::new()));
        let notified = end.clone();
        let done = move |result| {
            *notified.0.lock() = Some(result);
            notified.1.notify_all();
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

    /// Makes an inode durable as [`Self::fsync`] or [`Self::fdatasync`] does. `done` is called at
    /// the end, by any thread. The call itself returns earlier unless its thread has to write.
    pub fn start_fsync(&self, id: InodeId, data_only: bool, done: Done) {
        if let Some(group) = self.join_group(id, data_only, true, done) {
            self.lead(Lead::Whole(group));
        }
    }

    /// The non-blocking part of [`Self::start_fsync`], for an inode for which
    /// [`Self::is_fsync_short`]. If it returns a leader, the caller must have some thread call
    /// [`Self::lead_fsync`] with it soon, since other fsyncs wait for that.
    pub fn join_fsync(&self, id: InodeId, data_only: bool, done: Done) -> Option<FsyncLeader> {
        let packs = ubtrfs_tree::may_block();
        // Dirty data that was taken out of memory must be submitted in any case, and what was
        // gathered for the log must be written, so this part may block. The nodes that it reads are
        // usually in memory, since the changes read them, too.
        ubtrfs_tree::blocking(|| {
            let group = self.join_group(id, data_only, packs, done)?;
            self.log.begin_to_lead(group).map(FsyncLeader)
        })
    }

    /// Lets the inode's next fsync fail with `error`, since data that a program stored to a mapping
    /// may not be written. The error is not reported in any other way.
    pub fn fail_next_fsync(&self, id: InodeId, error: Error) -> Result<()> {
        self.info.inode(id)?.write().write_error.get_or_insert(Arc::new(error));
        Ok(())
    }

    /// Completes a group of fsyncs.
    pub fn lead_fsync(&self, leader: FsyncLeader) {
        self.lead(leader.0);
    }

    /// Returns whether an inode is unlocked and has little dirty data, so that an fsync can start
    /// without blocking. Data that may be compressed takes too long, unless it is only one sector,
    /// which compression can't make smaller.
    pub fn is_fsync_short(&self, id: InodeId) -> bool {
        const LITTLE: u64 = 128 << 10;
        let sector = u64::from(self.info.volume.sector_size());
        let inode = self.info.inodes.get(id);
        let is_little = |state: &InodeState| {
            state.reserved <= if self.writeback.may_compress(state.item.flags) { sector } else { LITTLE }
        };
        // A write in place may have to wait for a write to the same extent in flight.
        let may_wait = |state: &InodeState| is_nodatacow(state.item.flags) && !state.ordered.is_empty();
        inode.is_some_and(|inode| inode.try_write().is_some_and(|state| is_little(&state) && !may_wait(&state)))
    }

    /// Starts an fsync. Returns the group if the caller has to lead it. `packs` says that data may
    /// be compressed.
    fn join_group(&self, id: InodeId, data_only: bool, packs: bool, done: Done) -> Option<Arc<FsyncGroup>> {
        self.info.counters.fsyncs.fetch_add(1, Ordering::Relaxed);
        let need = self.info.inode(id).and_then(|inode| Ok((self.start_sync(&inode, data_only, packs)?, inode)));
        let (need, inode) = match need {
            Ok(found) => found,
            Err(error) => {
                done(Err(error));
                return None;
            }
        };
        match need {
            Need::Log => return self.log.join(inode, done),
            // A commit has to record that a device failed (invariant 34).
            Need::Nothing if self.info.volume.devices().have_secret_lag() && !self.info.is_at_rest() => {
                return self.log.join(inode, done);
            }
            Need::Nothing => {
                self.info.counters.fsyncs_without_work.fetch_add(1, Ordering::Relaxed);
                done(self.already_durable());
            }
            Need::Commit => {
                if let Some(done) = self.log.follow_commit(done) {
                    done(self.already_durable());
                }
            }
            Need::Group(group) => {
                self.info.counters.fsyncs_without_work.fetch_add(1, Ordering::Relaxed);
                if let Some((done, outcome)) = group.wait(done) {
                    done(self.already_durable().and(outcome.result()));
                }
            }
        }
        None
    }

    /// Returns success if no change can have been lost.
    fn already_durable(&self) -> Result<()> {
        self.info.already_durable().map(|_| ()).map_err(Error::not_durable)
    }

    /// Starts writeback of the inode's dirty data, and returns what the fsync has to wait for.
    fn start_sync(&self, inode: &Arc<Inode>, data_only: bool, packs: bool) -> Result<Need> {
        let mut state = inode.write();
        match state.write_error.take() {
            Some(refused) if matches!(*refused, Error::Posix(_)) => return Err(Error::Shared(refused)),
            Some(error) => return Err(Error::not_durable(error)),
            None => {}
        }
        if self.info.is_at_rest() {
            return Ok(Need::Nothing);
        }
        if self.info.is_deleted(inode.id.subvolume) && !self.info.committed().has_subvolume(inode.id.subvolume) {
            // After a crash the subvolume does not exist, and neither does a file without names.
            return Ok(Need::Nothing);
        }
        let packed = if packs && state.item.nlink > 0 {
            self.writeback.pack_pending(inode.id, &state, Cause::Fsync)?
        } else {
            Packed::default()
        };
        let transaction = self.info.gate.enter();
        if state.pending.generation != transaction.generation {
            let in_flight = !state.pending.is_clean() || state.frozen.is_some();
            return Ok(if in_flight { Need::Commit } else { Need::Nothing });
        }
        if state.item.nlink > 0 && !state.dirty.is_empty() {
            self.log.write_back_for_log(inode, &mut state, &transaction, packed)?;
        }
        Ok(match &state.pending.logged {
            Some(logged) if is_logged(&state, data_only) => Need::Group(logged.group.clone()),
            _ => Need::Log,
        })
    }

    /// Writes a group's log, or commits where the log can't express the changes.
    fn lead(&self, lead: Lead) {
        let to_commit = match lead {
            Lead::Whole(group) => self.log.write_for(&group).into_iter().collect(),
            Lead::Publish => self.log.publish_in_flight(),
            Lead::Commit(closed) => vec![closed],
        };
        if to_commit.is_empty() {
            return;
        }
        let result = self.reserver.commit().map_err(Error::shared);
        for closed in to_commit {
            closed.committed(&self.info, result.clone());
        }
    }
}

/// Whether the log has everything that an fsync of the inode would log.
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
