//! The order of a commit: freeze, submit data, merge, write nodes and superblocks, publish.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ubtrfs_format::{Generation, Logical};
use ubtrfs_volume::{CompletedWrites, Data};

use super::merge_trees::MergedTrees;
use super::owner::Committer;
use super::relocate_trees::trees_to_relocate;
use crate::error::{AtStep, Error, Result, Step};
use crate::faults::CommitStep;
use crate::inode::Inode;
use crate::log::ClosedGroup;
use crate::transaction::Transaction;
use crate::writeback::Cause;

/// Dirty data of an inode from which on its writeback starts before the transaction is closed.
const EARLY_WRITEBACK: u64 = 64 << 10;

impl Committer {
    /// Makes all changes before the call durable, except for files that wait to be freed. Returns
    /// at once if there are none.
    pub(crate) fn commit(&self) -> Result<()> {
        let wanted = self.info.gate.current();
        let _place = self.commit_lock.lock();
        if self.info.committed().generation >= wanted.generation {
            return Ok(());
        }
        if let Some(error) = self.info.aborted() {
            return Err(Error::Aborted(error));
        }
        let is_wanted = self.commit_wanted.swap(false, Ordering::AcqRel);
        let idle = wanted.is_empty()
            && {
                let space = self.info.space.lock();
                space.new_chunks.is_empty()
                    && !space.rewrite_all
                    && !space.is_to_shrink()
                    && space.new_devices.is_empty()
            }
            && self.new_label.lock().is_none()
            && !self.info.volume.has_secret_lag()
            && !is_wanted
            && !self.has_unsaved_errors()
            && !self.has_chunks_to_empty();
        // A commit ends a log even if nothing has changed.
        let has_log = self.info.committed().superblock.log_root.0 != 0;
        if self.info.is_at_rest() || (idle && !has_log) {
            // Operations that failed reserved metadata and used none: without a commit to end that,
            // it would add up.
            self.info.space.lock().drop_pending_reservations();
            return Ok(());
        }
        let start = Instant::now();
        let bytes_before = self.info.counters.commit_bytes.load(Ordering::Relaxed);
        let mut result = self.commit_open_transaction();
        while let Ok(Some(waiting)) = result {
            // Fsyncs that joined during that commit and could not be logged need another.
            result = self.commit_open_transaction();
            waiting.committed(&self.info, result.as_ref().map(|_| ()).map_err(Arc::clone));
        }
        if result.is_ok() && self.info.volume.has_secret_lag() {
            // By invariant 34: a device failed as its superblock was written.
            result = self.commit_open_transaction();
        }
        self.info.counters.commit_micros.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        if result.is_ok() {
            self.info.counters.commits.fetch_add(1, Ordering::Relaxed);
            let bytes = self.info.counters.commit_bytes.load(Ordering::Relaxed) - bytes_before;
            self.info.counters.last_commit_bytes.store(bytes, Ordering::Relaxed);
        }
        result.map(|_| ()).map_err(Error::Shared)
    }

    /// The next commit is made even if nothing has changed.
    pub(crate) fn want_commit(&self) {
        self.commit_wanted.store(true, Ordering::Release);
    }

    /// Commits even if nothing has changed.
    pub(crate) fn commit_anyway(&self) -> Result<()> {
        self.want_commit();
        self.commit()
    }

    /// Makes a transaction and all before it durable.
    pub(crate) fn commit_through(&self, generation: Generation) -> Result<()> {
        // The commit under way may be the one.
        self.wait();
        if self.info.committed().generation >= generation {
            return Ok(());
        }
        self.commit()
    }

    /// Whether devices of a volume that has several have failed, of which `DEV_STATS` items are to
    /// tell.
    fn has_unsaved_errors(&self) -> bool {
        self.info.volume.devices().len() > 1 && !self.info.volume.unsaved_device_errors().is_empty()
    }

    /// Whether commits would remove chunks though nothing else has changed. A mount and an unmount
    /// alone should not change the volume.
    pub(super) fn has_chunks_to_empty(&self) -> bool {
        self.info.counters.commits.load(Ordering::Relaxed) > 0
            && (self.info.space.lock().has_empty_groups(&self.info.volume)
                || !trees_to_relocate(self, &self.info.committed()).is_empty())
    }

    /// Commits. Returns fsyncs that wait for another commit; or else the error by which the file
    /// system has turned read-only.
    fn commit_open_transaction(&self) -> std::result::Result<Option<ClosedGroup>, Arc<Error>> {
        self.start_early_writeback().map_err(|error| self.info.abort(error))?;
        let (transaction, log_nodes) = {
            // No log of the transaction that closes is written from here on.
            let mut tree_log = self.log.tree_log();
            let transaction = self.info.gate.swap(|closed| {
                self.log.commit_begins();
                self.info.space.lock().freeze_reservations();
                self.info.set_frozen_transaction(closed.clone());
            });
            let log_nodes = tree_log.end(transaction.generation.next());
            (transaction, log_nodes)
        };
        self.info.options.faults().commit_reached(CommitStep::Frozen);
        let result = self.commit_frozen(&transaction, log_nodes).at(Step::Commit(transaction.generation));
        // That commit was itself a reader of the one before.
        self.info.space.unpin();
        self.discards.wake();
        // Before those who wait for the commit look.
        let result = result.map_err(|error| self.info.abort(error));
        if result.is_err() {
            self.log.commit_ended(&mut self.log.tree_log());
        }
        self.log.tell_followers(&result.as_ref().map(|_| ()).map_err(Arc::clone));
        result
    }

    fn commit_frozen(&self, transaction: &Arc<Transaction>, log_nodes: Vec<Logical>) -> Result<Option<ClosedGroup>> {
        let inodes = transaction.take_inodes();
        self.writeback.write_back_all_frozen(&inodes, transaction)?;
        let committed = self.info.committed();
        let mut built = MergedTrees::of(self, &committed, transaction, &inodes).at(Step::MergeTrees)?;
        let data = self.wait_for_data(&inodes)?;
        self.info.options.faults().commit_reached(CommitStep::Merged);
        // They stay in use until no durable superblock refers to them.
        let node_size = u64::from(self.info.volume.node_size());
        built.freed.extend(log_nodes.into_iter().map(|at| (at, node_size)));
        let waiting = built.write(self, &committed, &inodes, data)?;
        self.unreserve_names(transaction);
        Ok(waiting)
    }

    /// The entries of new subvolumes are there by now.
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

    /// Waits for data on its way. The devices had the time of the merge for it.
    #[inline(never)]
    fn wait_for_data(&self, inodes: &[Arc<Inode>]) -> Result<CompletedWrites<Data>> {
        let mut data = self.info.volume.wait_all([])?;
        for inode in inodes {
            let ordered = inode.read().ordered.clone();
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
