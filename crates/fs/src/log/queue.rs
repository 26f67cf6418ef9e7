//! Groups of fsyncs: who leads them, and when their log is written. No group's log is written
//! during a commit (invariant 16), and a group that ends without a proof has failed (invariant 22).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};
use ubtrfs_volume::{CountedMutex, LockCounters, Published};

use super::prepared::{LogWrites, PreparedLog};
use super::reason::{Fallbacks, Reason, Stop};
use super::tree_log::TreeLog;
use crate::committed::Committed;
use crate::error::{Error, Result, Step};
use crate::faults::CommitFault;
use crate::fs_info::FsInfo;
use crate::fsync_group::{Done, Durable, FsyncGroup, Outcome};
use crate::inode::{Inode, InodeState};
use crate::transaction::Transaction;
use crate::writeback::{Cause, Packed, Writeback};

/// A group that takes no more members, and is about to be written. Its members are notified when it
/// is dropped: they get an error unless there is a proof that it is durable (invariant 22).
pub(crate) struct ClosedGroup {
    pub(super) group: Arc<FsyncGroup>,
    pub(super) inodes: Vec<Arc<Inode>>,
    outcome: Outcome,
}

impl ClosedGroup {
    /// Sets the outcome for its members.
    pub(super) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Whether only a commit can make the group durable.
    pub(crate) fn needs_commit(&self) -> bool {
        matches!(self.outcome, Outcome::NeedsCommit)
    }

    /// Ends the group, since a superblock that refers to its log has been published.
    pub(crate) fn logged(mut self, published: &Published) {
        self.outcome = Outcome::Durable(Durable::by(published));
    }

    /// Ends the group after the commit that had to replace its log, which is done or has failed.
    pub(crate) fn committed(mut self, info: &FsInfo, result: std::result::Result<(), Arc<Error>>) {
        let durable = result.and_then(|()| info.already_durable());
        self.outcome = durable.map_or_else(Outcome::Failed, Outcome::Durable);
    }

    /// Ends the group with an error, since the superblock that was to refer to its log could not be
    /// written.
    pub(crate) fn failed(mut self, error: Arc<Error>) {
        // With `CommitFault::AnswerEarly` its members have their answer already.
        if !matches!(self.outcome, Outcome::Durable(_)) {
            self.outcome = Outcome::Failed(error);
        }
    }
}

impl Drop for ClosedGroup {
    fn drop(&mut self) {
        self.group.end(&self.outcome);
    }
}

/// A group whose log's nodes are in flight.
pub(super) struct LogInFlight {
    pub(super) closed: ClosedGroup,
    pub(super) writes: LogWrites,
}

/// Fsyncs that only wait for the commit in progress.
#[derive(Default)]
struct Followers {
    commit_in_flight: bool,
    waiting: Vec<Done>,
}

/// The open group, and the inodes of its members.
#[derive(Default)]
struct Gathering {
    group: Arc<FsyncGroup>,
    inodes: Vec<Arc<Inode>>,
}

/// The log of a mount.
pub(crate) struct Log {
    pub(super) info: Arc<FsInfo>,
    pub(super) writeback: Arc<Writeback>,
    gathering: CountedMutex<Gathering>,
    pub(super) state: CountedMutex<TreeLog>,
    /// Signalled when a commit releases the log.
    pub(super) tree_log_free: Condvar,
    /// Set and taken by the thread that has the tree log. This thread publishes it before it does
    /// anything else with the tree log (invariant 37).
    pub(super) in_flight: Mutex<Option<LogInFlight>>,
    /// Threads that wait for the tree log.
    pub(super) waiting: AtomicUsize,
    /// Groups whose log was published by another thread than their leader. The leader commits for
    /// them.
    pub(super) need_commit: Mutex<Vec<ClosedGroup>>,
    followers: Mutex<Followers>,
    pub(crate) fallbacks: Fallbacks,
}

impl Log {
    pub(crate) fn new(info: Arc<FsInfo>, writeback: Arc<Writeback>) -> Self {
        let generation = info.gate.current().generation;
        Self {
            info,
            writeback,
            gathering: CountedMutex::with_default(Rank::LogGathering),
            state: CountedMutex::new(Rank::TreeLog, TreeLog::new(generation)),
            tree_log_free: Condvar::new(),
            in_flight: Mutex::with_default(Rank::LogInFlight),
            waiting: AtomicUsize::new(0),
            need_commit: Mutex::with_default(Rank::LogNeedCommit),
            followers: Mutex::with_default(Rank::LogFollowers),
            fallbacks: Fallbacks::default(),
        }
    }

    /// Counts how often its locks were taken: by fsyncs that join a group, and by writers of the
    /// log.
    pub(crate) fn lock_counters(&self) -> [(&'static str, LockCounters); 2] {
        [("fsync group", self.gathering.counters()), ("tree log", self.state.counters())]
    }

    /// Takes the tree log while no commit is in progress.
    fn tree_log_between_commits(&self) -> MutexGuard<'_, TreeLog> {
        loop {
            let mut tree_log = self.tree_log();
            if !tree_log.commit_in_flight {
                return tree_log;
            }
            self.tree_log_free.wait(&mut tree_log);
            // Another log may be in flight by now.
        }
    }

    /// Begins a commit, which closes the open transaction. No operation is inside the gate.
    pub(crate) fn commit_begins(&self) {
        self.followers.lock().commit_in_flight = true;
    }

    /// Ends a commit, which has succeeded or failed.
    pub(crate) fn commit_ended(&self, tree_log: &mut TreeLog) {
        tree_log.commit_in_flight = false;
        self.tree_log_free.notify_all();
    }

    /// Tells the result to the fsyncs that only waited for the commit.
    pub(crate) fn tell_followers(&self, result: &std::result::Result<(), Arc<Error>>) {
        let waiting = {
            let mut followers = self.followers.lock();
            followers.commit_in_flight = false;
            std::mem::take(&mut followers.waiting)
        };
        for done in waiting {
            done(result.clone().map_err(Error::not_durable));
        }
    }

    /// Registers `done` to be called at the end of the commit in progress. Returns it if there is
    /// none.
    pub(crate) fn follow_commit(&self, done: Done) -> Option<Done> {
        let mut followers = self.followers.lock();
        if !followers.commit_in_flight {
            return Some(done);
        }
        followers.waiting.push(done);
        None
    }

    /// Joins the open group. Returns the group to its first member, which must have it written.
    pub(crate) fn join(&self, inode: Arc<Inode>, done: Done) -> Option<Arc<FsyncGroup>> {
        let mut gathering = self.gathering.lock();
        gathering.inodes.push(inode);
        let ended = gathering.group.wait(done);
        assert!(ended.is_none(), "a group that gathers has not ended");
        (gathering.inodes.len() == 1).then(|| gathering.group.clone())
    }

    /// Closes the open group if it is `group`, and its inodes are `suitable`.
    pub(super) fn close_if(
        &self,
        group: &Arc<FsyncGroup>,
        suitable: impl FnOnce(&[Arc<Inode>]) -> bool,
    ) -> Option<ClosedGroup> {
        let mut gathering = self.gathering.lock();
        let is_closed = Arc::ptr_eq(&gathering.group, group) && suitable(&gathering.inodes);
        is_closed.then(|| Self::close(&mut gathering))
    }

    /// Closes the open group, or returns `None` if it has no members.
    fn close_waiting(&self) -> Option<ClosedGroup> {
        let mut gathering = self.gathering.lock();
        (!gathering.inodes.is_empty()).then(|| Self::close(&mut gathering))
    }

    fn close(gathering: &mut Gathering) -> ClosedGroup {
        let Gathering { group, inodes } = std::mem::take(gathering);
        ClosedGroup { group, inodes, outcome: Outcome::GivenUp }
    }

    /// Writes a group's log. Returns the group if only a commit can make it durable.
    pub(crate) fn write_for(&self, group: &Arc<FsyncGroup>) -> Option<ClosedGroup> {
        let mut tree_log = self.tree_log_between_commits();
        // A commit may have taken the group.
        let mut closed = self.close_if(group, |_| true)?;
        let outcome = if let Some(error) = self.info.aborted() {
            Outcome::Failed(error)
        } else {
            let result = self.write_group(&mut tree_log, &closed);
            self.outcome(&mut tree_log, result)
        };
        drop(tree_log);
        closed.set_outcome(outcome);
        closed.needs_commit().then_some(closed)
    }

    /// Writes back the dirty data of an inode that is about to be logged. The gate is held.
    pub(crate) fn write_back_for_log(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        transaction: &Transaction,
        packed: Packed,
    ) -> Result<()> {
        let written = self.writeback.write_back_pending(inode, state, transaction, Cause::Fsync, packed);
        // Data that was taken out of memory is lost, so no later change may become durable.
        written.map_err(|error| Error::Shared(self.info.abort(error)))
    }

    /// Returns the outcome of a group for this result of writing its log.
    pub(super) fn outcome(&self, tree_log: &mut TreeLog, result: std::result::Result<Durable, Stop>) -> Outcome {
        match result {
            Ok(durable) => Outcome::Durable(durable),
            Err(Stop::Commit(reason)) => self.fall_back(tree_log, reason),
            Err(Stop::Unreadable(error)) => self.fall_back_after(tree_log, error),
            Err(Stop::Abort(error)) => Outcome::Failed(self.info.abort(error.at(Step::Log(tree_log.generation)))),
        }
    }

    /// Gathers the log of the fsyncs that wait for the commit `next`, which is about to be written.
    /// Returns their group and its log. The group becomes [`ClosedGroup::logged`] once the commit
    /// is durable, unless it needs another commit.
    pub(crate) fn prepare_waiting_log(
        &self,
        tree_log: &mut TreeLog,
        next: &Arc<Committed>,
    ) -> Result<Option<(ClosedGroup, Option<PreparedLog>)>> {
        let Some(mut closed) = self.close_waiting() else { return Ok(None) };
        let transaction = self.info.gate.current();
        let log = match self.prepare_log(tree_log, &closed, next, &transaction) {
            Ok(log) => {
                if self.info.options.faults().in_commit(CommitFault::AnswerEarly) {
                    closed.set_outcome(Outcome::Durable(Durable::pretended()));
                }
                log
            }
            Err(Stop::Commit(reason)) => {
                closed.set_outcome(self.fall_back(tree_log, reason));
                None
            }
            Err(Stop::Unreadable(error)) => {
                closed.set_outcome(self.fall_back_after(tree_log, error));
                None
            }
            Err(Stop::Abort(error)) => {
                let error = self.info.abort(error.at(Step::Log(transaction.generation)));
                closed.failed(error.clone());
                return Err(Error::Shared(error));
            }
        };
        Ok(Some((closed, log)))
    }

    /// Abandons the log, since something that belongs to it could not be read.
    fn fall_back_after(&self, tree_log: &mut TreeLog, error: Error) -> Outcome {
        self.info.writability.note_error(&error.at(Step::Log(tree_log.generation)));
        self.fall_back(tree_log, Reason::Unreadable)
    }

    /// Abandons the log of the open transaction: from here on only a commit makes its changes
    /// durable.
    pub(crate) fn fall_back(&self, tree_log: &mut TreeLog, reason: Reason) -> Outcome {
        tracing::debug!(reason = reason.name(), "an fsync becomes a commit");
        self.fallbacks.count(reason);
        tree_log.abandoned = true;
        Outcome::NeedsCommit
    }
}
