//! The order of a commit: freeze, submit data, merge, write nodes and superblocks, publish.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::{Generation, Logical};
use ubtrfs_threads::time::Instant;
use ubtrfs_volume::{CompletedWrites, Data};

use super::merge_trees::MergedTrees;
use super::owner::Committer;
use super::relocate_trees::trees_to_relocate;
use super::relocation::{RelocationPlan, RelocationStep};
use super::write::Fsyncs;
use crate::error::{AtStep, Errno, Error, Result, Step};
use crate::faults::CommitStep;
use crate::inode::Inode;
use crate::log::ClosedGroup;
use crate::transaction::Transaction;
use crate::writeback::Cause;

/// Writeback of an inode's dirty data starts before the transaction is closed if there are at least
/// this many bytes.
const EARLY_WRITEBACK: u64 = 64 << 10;

/// The parts of a commit besides its transaction, which were built before it.
#[derive(Default)]
struct Built {
    /// Nodes of the log that it ends.
    log_nodes: Vec<Logical>,
    /// The relocation that it carries out.
    plan: Option<RelocationPlan>,
    /// The copies of the data that is moved.
    written: Option<CompletedWrites<Data>>,
}

/// If a commit unwinds, fails the fsyncs that wait for its end. Otherwise they would wait forever.
struct TellIfUnwinding<'a>(&'a Committer);

impl Drop for TellIfUnwinding<'_> {
    fn drop(&mut self) {
        let Self(committer) = self;
        // The abort comes before the waiters are notified.
        let error = committer.info.abort(Error::Panicked);
        committer.log.commit_ended(&mut committer.log.tree_log());
        committer.log.tell_followers(&Err(error));
    }
}

impl Committer {
    /// Makes all changes before the call durable, except the freeing of unused files. Returns at
    /// once if there are no changes.
    pub(crate) fn commit(&self) -> Result<()> {
        let wanted = self.info.gate.current();
        let _place = self.commit_lock.lock();
        if self.info.committed().generation >= wanted.generation {
            return Ok(());
        }
        if let Some(error) = self.info.aborted() {
            return Err(Error::Aborted(error));
        }
        let is_asked = self.requests.take_whether_any();
        let idle = wanted.is_empty()
            && !is_asked
            && !self.info.space.lock().has_changes()
            && !self.info.volume.devices().want_commit()
            && !self.has_chunks_to_empty();
        // A commit ends a log even if nothing has changed.
        let has_log = self.info.committed().superblock.log_root.0 != 0;
        if self.info.is_at_rest() || (idle && !has_log) {
            // Operations that failed have reserved metadata and used none. Without a commit these
            // reservations would accumulate.
            self.info.space.lock().drop_pending_reservations();
            return Ok(());
        }
        let start = Instant::now();
        let bytes_before = self.info.counters.commit_bytes.load(Ordering::Relaxed);
        let mut result = self.commit_open_transaction(None);
        while let Ok(Some(waiting)) = result {
            // Fsyncs that joined during that commit and could not be logged need another commit.
            result = self.commit_open_transaction(None);
            waiting.committed(&self.info, result.as_ref().map(|_| ()).map_err(Arc::clone));
        }
        if result.is_ok() && self.info.volume.devices().have_secret_lag() {
            // By invariant 34: a device failed while its superblock was written.
            result = self.commit_open_transaction(None);
        }
        self.info.counters.commit_micros.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        if result.is_ok() {
            self.info.counters.commits.fetch_add(1, Ordering::Relaxed);
            let bytes = self.info.counters.commit_bytes.load(Ordering::Relaxed) - bytes_before;
            self.info.counters.last_commit_bytes.store(bytes, Ordering::Relaxed);
            if !self.info.volume.devices().lagging().is_empty() {
                self.info.resilver_request.ask();
            }
        }
        result.map(|_| ()).map_err(Error::Shared)
    }

    /// Requests that the next commit is made even if nothing has changed.
    pub(crate) fn want_commit(&self) {
        self.requests.ask_anyway();
    }

    /// Commits even if nothing has changed.
    pub(crate) fn commit_anyway(&self) -> Result<()> {
        self.want_commit();
        self.commit()
    }

    /// Makes the transaction of this generation and all earlier ones durable.
    pub(crate) fn commit_through(&self, generation: Generation) -> Result<()> {
        // The commit in progress may be the wanted one.
        self.wait();
        if self.info.committed().generation >= generation {
            return Ok(());
        }
        self.commit()
    }

    /// Whether commits would remove chunks although nothing else has changed, and whether the space
    /// that these commits take comes back (invariant 8). A mount and an unmount alone should not
    /// change the volume, but they remove a block group that has been emptied.
    pub(super) fn has_chunks_to_empty(&self) -> bool {
        let committed = self.info.committed();
        if !committed.keeps_free_space_tree() {
            return false;
        }
        let has_changed = self.info.counters.commits.load(Ordering::Relaxed) > 0;
        let has_empty_groups = {
            let mut space = self.info.space.lock();
            if !space.may_free_unreserved() {
                return false;
            }
            space.has_empty_groups(&self.info.volume, !has_changed)
        };
        has_empty_groups || has_changed && !trees_to_relocate(self, &committed).is_empty()
    }

    /// Commits all changes, and then moves extents, in a commit of its own. The outer result is
    /// that of the commits, the inner one says why nothing was moved.
    pub(crate) fn relocate(&self, step: RelocationStep) -> Result<Result<()>> {
        let _place = self.commit_lock.lock();
        if let Some(error) = self.info.aborted() {
            return Err(Error::Aborted(error));
        }
        if self.info.is_read_only() {
            step.give_up(self);
            return Ok(Err(Errno::ROFS.into()));
        }
        let mut refused = None;
        self.commit_open_transaction(Some((step, &mut refused))).map_err(Error::Shared)?;
        self.info.counters.commits.fetch_add(2, Ordering::Relaxed);
        Ok(refused.map_or(Ok(()), Err))
    }

    /// Commits. If there is a step of relocation, the next commit carries it out. Returns the
    /// fsyncs that wait for another commit, or the error by which the file system has turned
    /// read-only.
    fn commit_open_transaction(
        &self,
        relocation: Option<(RelocationStep, &mut Option<Error>)>,
    ) -> std::result::Result<Option<ClosedGroup>, Arc<Error>> {
        let _watch = self.info.panics.watch();
        self.info.check_panics().map_err(|error| self.info.abort(error))?;
        self.start_early_writeback().map_err(|error| self.info.abort(error))?;
        let unwinding = TellIfUnwinding(self);
        let (transaction, log_nodes) = {
            // From here on no log of the closed transaction is written.
            let mut tree_log = self.log.tree_log();
            let at_the_swap = |closed: &Arc<Transaction>| {
                self.log.commit_begins();
                self.info.space.lock().freeze_reservations();
                self.info.roots.set_frozen(closed.clone());
            };
            let transaction = match relocation {
                None => self.info.gate.swap(at_the_swap),
                Some(_) => self.info.gate.swap_over_one(at_the_swap),
            };
            let log_nodes = tree_log.end(self.info.gate.current().generation);
            (transaction, log_nodes)
        };
        self.info.options.faults().commit_reached(CommitStep::Frozen);
        let built = Built { log_nodes, ..Built::default() };
        let fsyncs = if relocation.is_some() { Fsyncs::Waiting } else { Fsyncs::Logged };
        let result = self.commit_frozen(&transaction, built, fsyncs).at(Step::Commit(transaction.generation));
        let result = match (result, relocation) {
            (Ok(waiting), Some((step, refused))) => self.commit_relocation(step, refused).map(|()| waiting),
            (result, _) => result,
        };
        // That commit was itself a reader of the previous one.
        self.info.space.unpin();
        self.discards.wake();
        std::mem::forget(unwinding);
        // The abort comes before the waiters are notified.
        let result = result.map_err(|error| self.info.abort(error));
        if result.is_err() {
            self.log.commit_ended(&mut self.log.tree_log());
        }
        self.log.tell_followers(&result.as_ref().map(|_| ()).map_err(Arc::clone));
        result
    }

    /// Moves extents, in a commit that contains nothing else. If this is impossible, moves nothing
    /// and puts the reason into `refused`.
    fn commit_relocation(&self, step: RelocationStep, refused: &mut Option<Error>) -> Result<()> {
        let committed = self.info.committed();
        let transaction = Arc::new(Transaction::new(committed.generation.next()));
        let plan = match step.plan(self, &committed) {
            Ok(mut plan) => {
                // Until the maps in memory are updated, they contain old addresses and new ones.
                plan.take_sums().into_iter().for_each(|sums| transaction.set_logged_sums(sums));
                self.info.roots.set_moved(Some(Arc::new(plan.moved_extents())));
                Some(plan)
            }
            Err(error) => {
                *refused = Some(error);
                None
            }
        };
        self.info.roots.set_frozen(transaction.clone());
        let built = Built { plan, written: Some(step.written), ..Built::default() };
        self.commit_frozen(&transaction, built, Fsyncs::Free).at(Step::Commit(transaction.generation)).map(drop)
    }

    fn commit_frozen(
        &self,
        transaction: &Arc<Transaction>,
        built: Built,
        fsyncs: Fsyncs,
    ) -> Result<Option<ClosedGroup>> {
        let Built { log_nodes, plan, written } = built;
        let inodes = transaction.take_inodes();
        self.writeback.write_back_all_frozen(&inodes, transaction)?;
        let committed = self.info.committed();
        let mut built = MergedTrees::of(self, &committed, transaction, &inodes, plan).at(Step::MergeTrees)?;
        let mut data = self.wait_for_data(&inodes)?;
        if let Some(written) = written {
            data = data.merge(written);
        }
        self.info.options.faults().commit_reached(CommitStep::Merged);
        // The nodes stay in use until no durable superblock refers to them.
        let node_size = u64::from(self.info.volume.node_size());
        built.freed.extend(log_nodes.into_iter().map(|at| (at, node_size)));
        let waiting = built.write(self, &committed, &inodes, data, fsyncs)?;
        self.unreserve_names(transaction);
        Ok(waiting)
    }

    /// Frees the names of new subvolumes, whose entries exist by now.
    fn unreserve_names(&self, transaction: &Transaction) {
        let new = std::mem::take(&mut transaction.subvolumes().new);
        for entry in new.into_iter().map(|new| new.entry) {
            let Some(dir) = self.info.inodes.get(entry.dir) else { continue };
            let mut state = dir.write();
            state.unreserve_name(&entry.name);
            state.listings.names_change();
            state.name_changes += 1;
        }
    }

    fn start_early_writeback(&self) -> Result<()> {
        for inode in self.info.gate.current().inodes() {
            let mut state = inode.write();
            if state.reserved >= EARLY_WRITEBACK {
                let packed = self.writeback.pack_pending(inode.id, &state, Cause::Pressure)?;
                let transaction = self.info.gate.enter();
                if state.pending.generation == transaction.generation {
                    self.writeback.write_back_pending(&inode, &mut state, &transaction, Cause::Pressure, packed)?;
                }
            }
        }
        Ok(())
    }

    /// Waits for data in flight, which the devices could write during the merge.
    #[inline(never)]
    fn wait_for_data(&self, inodes: &[Arc<Inode>]) -> Result<CompletedWrites<Data>> {
        let mut data = self.info.volume.writer().wait_all([])?;
        for inode in inodes {
            let ordered: Vec<_> = inode.read().ordered.iter().cloned().collect();
            match self.writeback.wait_for_all(&ordered) {
                Ok(written) => data = data.merge(written),
                Err(error) => {
                    inode.write().write_error = Some(error.clone());
                    return Err(Error::Shared(error));
                }
            }
        }
        Ok(data)
    }
}
