//! References to inodes, and what becomes of an inode when the last one goes.

use std::sync::Arc;

use super::queue::Waiting;
use crate::error::Result;
use crate::file::piece::Piece;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeBatch, InodeId, InodeState, OrphanEdit};
use crate::space::{Demand, Reservation, UseOfKept};
use crate::transaction::Transaction;

/// Bytes of a file for which freeing them is assumed to change one leaf.
const TYPICAL_EXTENT: u64 = 1 << 20;

impl Filesystem {
    /// Adds a reference to an inode, as a lookup does.
    pub fn reference(&self, id: InodeId) {
        self.inodes.reference(id);
    }

    /// Gives references back. With the last one an inode without names goes; the caller does not
    /// wait for that.
    pub fn forget(&self, id: InodeId, count: u64) {
        if !self.inodes.unreference(id, count) {
            return;
        }
        let Some(inode) = self.inodes.get(id) else { return };
        self.inactivate_if_unused(&inode);
    }

    /// All inodes that are referenced, in no order.
    pub fn referenced(&self) -> Vec<InodeId> {
        self.inodes.referenced()
    }

    /// Reserves for an operation that may free all of a file's extents, each of which may touch
    /// leaves of its own. Where there is no room for that, `least` has to do: what frees space has
    /// a reserve.
    pub(crate) fn reserve_to_free(&self, inode: &Inode, least: Demand) -> Result<Reservation<'_>> {
        let extents = inode.read().item.nbytes / TYPICAL_EXTENT;
        let most = Demand { edits: least.edits + extents, ..least };
        self.reserve(most).or_else(|_| self.reserve(least))
    }

    /// Sees to it that an inode is freed if nothing refers to it: its content, its xattrs, its
    /// items. Returns whether it will be. Starts no I/O and waits for nothing.
    pub(crate) fn inactivate_if_unused(&self, inode: &Arc<Inode>) -> bool {
        if inode.read().item.nlink > 0 || self.is_read_only_for_good() {
            return false;
        }
        // While a remount has stopped writing it waits with those that are freed in steps.
        let is_stopped = self.is_read_only();
        let mut state = inode.write();
        if state.item.nlink > 0 || state.dead || self.inodes.is_referenced(inode.id) {
            return false;
        }
        // From here on nobody changes it but the inactivator and commits.
        state.dead = true;
        self.freeze_older(&mut state);
        let bytes = state.item.nbytes;
        let demand = Demand { edits: 4 + bytes / TYPICAL_EXTENT, kept: UseOfKept::All, ..Demand::default() };
        let at_once = !is_stopped && bytes <= self.options.freeing.at_once;
        let reservation = if at_once { self.try_reserve(demand) } else { None };
        if reservation.is_some() || (!is_stopped && state.is_unheard_of()) {
            self.end_inode(inode, &mut state, &self.gate.enter());
            if state.is_unheard_of() {
                // Born and gone inside one transaction: no tree ever hears of it.
                drop(state);
                self.inodes.remove(inode.id);
            }
        } else {
            self.drop_dirty_data(inode, &mut state);
            drop(state);
            self.inactivator.push(Waiting::new(inode.clone(), bytes));
        }
        true
    }

    /// Makes a transaction that has been entered free all that there is of a dead inode.
    pub(super) fn end_inode(&self, inode: &Arc<Inode>, state: &mut InodeState, transaction: &Transaction) {
        state.join(inode, transaction);
        drop(state.dirty.take());
        self.unreserve_data(std::mem::take(&mut state.reserved));
        // What was lost by name stays known: the log may have to tell.
        let InodeBatch { refs, entries, logged, account, .. } = std::mem::take(&mut state.pending).into_inner();
        let batch = InodeBatch {
            generation: transaction.generation,
            gone: true,
            orphan: OrphanEdit::Remove,
            refs,
            entries,
            logged,
            account,
            ..InodeBatch::default()
        };
        state.pending = batch.into();
    }

    /// Drops what is only in memory of a dead inode's content. Where it was there is nothing: the
    /// inode may have to be committed before it is gone.
    fn drop_dirty_data(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if state.dirty.is_empty() {
            return;
        }
        let transaction = self.gate.enter();
        state.join(inode, &transaction);
        let dirty = state.dirty.take();
        for (start, len) in dirty.ranges() {
            state.pending.layout.replace(start, len, Piece::Hole);
        }
        self.unreserve_data(std::mem::take(&mut state.reserved));
    }
}
