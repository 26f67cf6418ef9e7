//! Groups of fsyncs, who leads them, and whose turn it is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex, MutexGuard};
use ubtrfs_format::items::{InodeItem, Timespec};
use ubtrfs_format::{Generation, Logical, TreeId};
use ubtrfs_tree::Root;
use ubtrfs_volume::Published;

use super::nodes::Arena;
use super::outcome::{Durable, Outcome};
use super::ranges::NumberRanges;
use super::reason::{Fallbacks, Reason};
use super::write::Written;
use crate::committed::Committed;
use crate::error::{Errno, Error, Result};
use crate::file::sum_map::SumMap;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeId, InodeState, LoggedAs};
use crate::ops::overwrites;
use crate::options::CommitFault;
use crate::transaction::Transaction;

/// Told once how an fsync ended.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct Members {
    inodes: Vec<Arc<Inode>>,
    waiting: Vec<Done>,
    outcome: Option<Outcome>,
}

/// Fsyncs that share one write of the log.
#[derive(Default)]
pub(crate) struct Group {
    members: Mutex<Members>,
}

impl Group {
    /// Has `done` told when the group has ended, or at once if it has.
    fn tell(&self, done: Done, fs: &Filesystem) {
        let mut members = self.members.lock();
        match members.outcome {
            None => members.waiting.push(done),
            Some(outcome) => {
                drop(members);
                done(Durable::already(fs).and(outcome.result()));
            }
        }
    }
}

/// A group that takes no more members, and is about to be written. Those who wait are told at its
/// end, whatever that is: of a failure, unless there is a proof that it is durable (invariant 22).
pub(crate) struct ClosedGroup {
    pub(super) group: Arc<Group>,
    pub(super) inodes: Vec<Arc<Inode>>,
    outcome: Outcome,
}

impl ClosedGroup {
    /// Notes what those who wait will be told.
    pub(super) fn set_outcome(&mut self, outcome: Outcome) {
        self.outcome = outcome;
    }

    /// Whether a commit has to do what the log could not.
    pub(crate) fn needs_commit(&self) -> bool {
        self.outcome == Outcome::NeedsCommit
    }

    /// A superblock has been published that leads to the group's log.
    pub(crate) fn logged(mut self, published: &Published) {
        self.outcome = Outcome::Durable(Durable::by(published));
    }

    /// The commit that had to do what the log could not is done, or has failed.
    pub(crate) fn committed(mut self, fs: &Filesystem, result: &Result<()>) {
        let durable = if result.is_ok() { Durable::already(fs).ok() } else { None };
        self.outcome = durable.map_or(Outcome::Failed, Outcome::Durable);
    }
}

impl Drop for ClosedGroup {
    fn drop(&mut self) {
        let waiting = {
            let mut members = self.group.members.lock();
            members.outcome = Some(self.outcome);
            std::mem::take(&mut members.waiting)
        };
        for done in waiting {
            done(self.outcome.result());
        }
    }
}

/// Fsyncs that only wait for the commit under way.
#[derive(Default)]
struct Followers {
    commit_in_flight: bool,
    waiting: Vec<Done>,
}

/// The log of the open transaction as it stands on the devices; whoever holds it may write the
/// superblock.
pub(crate) struct Place {
    /// The transaction whose log this is.
    pub(super) generation: Generation,
    /// A commit is under way: the log of the open transaction can only follow it.
    commit_in_flight: bool,
    /// The log can't be added to: only a commit makes anything durable from here on.
    pub(super) abandoned: bool,
    /// The tree of log trees.
    pub(super) root: Option<Root>,
    /// The log trees of subvolumes.
    pub(super) trees: BTreeMap<TreeId, Root>,
    /// The space of its nodes.
    pub(super) arena: Arena,
    /// Entry numbers over which the log speaks, by directory.
    pub(super) ranges: HashMap<InodeId, NumberRanges>,
    /// Directories that are in the log only so that ranges of theirs count.
    pub(super) holders: HashSet<InodeId>,
    /// The checksums that it has of data that was written in place.
    pub(super) placed_sums: Option<SumMap>,
}

impl Place {
    fn new(generation: Generation) -> Self {
        Self {
            generation,
            commit_in_flight: false,
            abandoned: false,
            root: None,
            trees: BTreeMap::new(),
            arena: Arena::default(),
            ranges: HashMap::new(),
            holders: HashSet::new(),
            placed_sums: None,
        }
    }

    /// Ends the log: its transaction is closed and will be committed. Returns the log's nodes,
    /// which stay in use until that is durable.
    pub(crate) fn end(&mut self, next: Generation) -> Vec<Logical> {
        let ended = std::mem::replace(self, Self { commit_in_flight: true, ..Self::new(next) });
        ended.arena.into_nodes()
    }
}

/// The log of a mount.
pub(crate) struct Log {
    gathering: Mutex<Arc<Group>>,
    place: Mutex<Place>,
    /// Told when a commit gives the place back.
    place_free: Condvar,
    followers: Mutex<Followers>,
    pub(crate) fallbacks: Fallbacks,
}

impl Log {
    pub(crate) fn new(generation: Generation) -> Self {
        Self {
            gathering: Mutex::default(),
            place: Mutex::new(Place::new(generation)),
            place_free: Condvar::new(),
            followers: Mutex::default(),
            fallbacks: Fallbacks::default(),
        }
    }

    /// The right to write the superblock. Waits for the log write that is under way.
    pub(crate) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock()
    }

    /// A commit closes the open transaction. Nobody is in the gate.
    pub(crate) fn commit_begins(&self) {
        self.followers.lock().commit_in_flight = true;
    }

    /// The commit has ended, one way or the other.
    pub(crate) fn commit_ended(&self, place: &mut Place) {
        place.commit_in_flight = false;
        self.place_free.notify_all();
    }

    /// Tells those who waited for nothing but the commit.
    pub(crate) fn tell_followers(&self, result: &Result<()>) {
        let waiting = {
            let mut followers = self.followers.lock();
            followers.commit_in_flight = false;
            std::mem::take(&mut followers.waiting)
        };
        for done in waiting {
            done(if result.is_ok() { Ok(()) } else { Err(Errno::IO.into()) });
        }
    }

    /// Has `done` told at the end of the commit under way; gives it back if there is none.
    fn follow_commit(&self, done: Done) -> Option<Done> {
        let mut followers = self.followers.lock();
        if !followers.commit_in_flight {
            return Some(done);
        }
        followers.waiting.push(done);
        None
    }

    /// Joins the group that gathers; the group is returned to its first member, who has to see to
    /// it that it is written.
    fn join(&self, inode: Arc<Inode>, done: Done) -> Option<Arc<Group>> {
        let gathering = self.gathering.lock();
        let mut members = gathering.members.lock();
        members.inodes.push(inode);
        members.waiting.push(done);
        (members.inodes.len() == 1).then(|| gathering.clone())
    }

    /// Closes the group that gathers, if it is this one.
    fn close_group(&self, group: &Arc<Group>) -> Option<ClosedGroup> {
        let mut gathering = self.gathering.lock();
        if !Arc::ptr_eq(&gathering, group) {
            return None;
        }
        Some(Self::close(&mut gathering))
    }

    /// Closes the group that gathers; `None` if nobody asks for anything.
    fn close_waiting(&self) -> Option<ClosedGroup> {
        let mut gathering = self.gathering.lock();
        let is_empty = gathering.members.lock().inodes.is_empty();
        (!is_empty).then(|| Self::close(&mut gathering))
    }

    fn close(gathering: &mut Arc<Group>) -> ClosedGroup {
        let group = std::mem::take(gathering);
        let inodes = std::mem::take(&mut group.members.lock().inodes);
        ClosedGroup { group, inodes, outcome: Outcome::Failed }
    }
}

/// The duty to write the log for a group of fsyncs.
#[must_use = "a group that nobody leads waits forever"]
pub struct FsyncLeader(Arc<Group>);

/// What stands between an fsync and its end.
enum Need {
    Nothing,
    /// The commit that is under way.
    Commit,
    /// The write of the log that has all of it.
    Group(Arc<Group>),
    /// A write of the log.
    Log,
}

impl Filesystem {
    /// Makes everything durable that was changed before.
    pub fn sync(&self) -> Result<()> {
        if self.is_at_rest() {
            return Ok(());
        }
        self.commit()
    }

    /// Makes an inode durable: content, attributes and names; of a directory, its entries and the
    /// inodes that new ones lead to.
    pub fn fsync(&self, id: InodeId) -> Result<()> {
        self.wait_for_sync(id, false)
    }

    /// The same, but for changes of times alone.
    pub fn fdatasync(&self, id: InodeId) -> Result<()> {
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
    pub fn start_fsync(&self, id: InodeId, data_only: bool, done: Done) {
        if let Some(leader) = self.join_fsync(id, data_only, done) {
            self.lead_fsync(leader);
        }
    }

    /// Does of [`Self::start_fsync`] what takes no waiting, if [`Self::is_fsync_short`]. Whoever
    /// gets a leader has to see to it that [`Self::lead_fsync`] is called with it, soon, by
    /// whatever thread: others come to wait for that.
    pub fn join_fsync(&self, id: InodeId, data_only: bool, done: Done) -> Option<FsyncLeader> {
        // Data that was taken out of memory has to go its way.
        ubtrfs_tree::blocking(|| self.join_group(id, data_only, done)).map(FsyncLeader)
    }

    /// Writes what a group of fsyncs asks for.
    pub fn lead_fsync(&self, leader: FsyncLeader) {
        let FsyncLeader(group) = leader;
        self.lead(&group);
    }

    /// Whether nobody works on an inode, and little of it is dirty: then an fsync starts in an
    /// instant.
    pub fn is_fsync_short(&self, id: InodeId) -> bool {
        const LITTLE: u64 = 128 << 10;
        let inode = self.inodes.get(id);
        // What is written over its old place may have to wait for what is on its way there.
        let may_wait = |state: &InodeState| overwrites(state.item.flags) && !state.ordered.is_empty();
        inode.is_some_and(|inode| inode.try_write().is_some_and(|state| state.reserved <= LITTLE && !may_wait(&state)))
    }

    /// Starts what an fsync needs; the group, if the caller has to lead it.
    fn join_group(&self, id: InodeId, data_only: bool, done: Done) -> Option<Arc<Group>> {
        self.counters.fsyncs.fetch_add(1, Ordering::Relaxed);
        let need = self.inode(id).and_then(|inode| Ok((self.start_sync(&inode, data_only)?, inode)));
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
                self.counters.fsyncs_without_work.fetch_add(1, Ordering::Relaxed);
                done(Durable::already(self).map(|_| ()));
            }
            Need::Commit => {
                if let Some(done) = self.log.follow_commit(done) {
                    done(Durable::already(self).map(|_| ()));
                }
            }
            Need::Group(group) => {
                self.counters.fsyncs_without_work.fetch_add(1, Ordering::Relaxed);
                group.tell(done, self);
            }
        }
        None
    }

    /// Starts the write-out of what is dirty, and says what to wait for.
    fn start_sync(&self, inode: &Arc<Inode>, data_only: bool) -> Result<Need> {
        if self.is_at_rest() {
            return Ok(Need::Nothing);
        }
        let mut state = inode.write();
        if std::mem::take(&mut state.write_error) {
            return Err(Errno::IO.into());
        }
        let transaction = self.gate.enter();
        if state.pending.generation != transaction.generation {
            let in_flight = !state.pending.is_clean() || state.frozen.is_some();
            return Ok(if in_flight { Need::Commit } else { Need::Nothing });
        }
        if state.item.nlink > 0 && !state.dirty.is_empty() {
            self.write_out_for_log(inode, &mut state, &transaction)?;
        }
        Ok(match &state.pending.logged {
            Some(logged) if is_logged(&state, data_only) => Need::Group(logged.group.clone()),
            _ => Need::Log,
        })
    }

    /// Writes out what is dirty of an inode whose log is about to be written. The gate is held.
    pub(super) fn write_out_for_log(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        transaction: &Transaction,
    ) -> Result<()> {
        self.write_out_pending(inode, state, transaction, true).inspect_err(|error| {
            // Data that was taken out of memory is lost: nothing after it may become durable.
            self.abort(error);
        })
    }

    /// Writes a group's log, or leaves that to the committer.
    fn lead(&self, group: &Arc<Group>) {
        let mut place = self.log.place.lock();
        while place.commit_in_flight {
            self.log.place_free.wait(&mut place);
        }
        // The committer may have taken it.
        let Some(mut closed) = self.log.close_group(group) else { return };
        let outcome = self.write_log(&mut place, &closed);
        drop(place);
        closed.set_outcome(outcome);
        if closed.needs_commit() {
            let result = self.commit();
            closed.committed(self, &result);
        }
    }

    fn write_log(&self, place: &mut Place, closed: &ClosedGroup) -> Outcome {
        if self.abort_reason().is_some() {
            return Outcome::Failed;
        }
        match self.write_group(place, closed) {
            Ok(durable) => Outcome::Durable(durable),
            Err(Stop::Commit(reason)) => self.fall_back(place, reason),
            Err(Stop::Error(error)) => {
                self.abort(&error);
                Outcome::Failed
            }
        }
    }

    /// Gathers the log of those who wait for the commit that is about to be written, `next`: the
    /// group, which is [`ClosedGroup::logged`] once that is durable unless it needs another commit,
    /// and its log.
    pub(crate) fn prepare_waiting_log(
        &self,
        place: &mut Place,
        next: &Arc<Committed>,
    ) -> Result<Option<(ClosedGroup, Option<Written>)>> {
        let Some(mut closed) = self.log.close_waiting() else { return Ok(None) };
        let transaction = self.gate.current();
        let log = match self.prepare_log(place, &closed, next, &transaction) {
            Ok(log) => {
                if self.options.commit_fault == Some(CommitFault::AnswerEarly) {
                    closed.set_outcome(Outcome::Durable(Durable::pretended()));
                }
                log
            }
            Err(Stop::Commit(reason)) => {
                closed.set_outcome(self.fall_back(place, reason));
                None
            }
            Err(Stop::Error(error)) => return Err(error),
        };
        Ok(Some((closed, log)))
    }

    /// Gives the log of the open transaction up: from here on only a commit makes anything of it
    /// durable.
    pub(crate) fn fall_back(&self, place: &mut Place, reason: Reason) -> Outcome {
        tracing::debug!(reason = reason.name(), "an fsync becomes a commit");
        self.log.fallbacks.count(reason);
        place.abandoned = true;
        Outcome::NeedsCommit
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

/// Why a log can't be written.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A commit has to do.
    Commit(Reason),
    /// Nothing can be written any more.
    Error(Error),
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Self {
        Self::Commit(reason)
    }
}
