//! References to inodes, and the start of inactivation when the last one is dropped.

use std::sync::Arc;

use super::Inactivator;
use super::queue::Waiting;
use crate::inode::{Inode, InodeBatch, InodeState, OrphanEdit};
use crate::transaction::Transaction;
use ubtrfs_file::Piece;
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// An inode's space of this many bytes is assumed to change one leaf when it is freed.
pub(crate) const TYPICAL_EXTENT: u64 = 1 << 20;

impl Inactivator {
    /// Frees an inode to which nothing refers (its content, its xattrs, its items), or enqueues it.
    /// Returns whether it did. Starts no I/O and does not block.
    pub(crate) fn inactivate_if_unused(&self, inode: &Arc<Inode>) -> bool {
        if inode.read().item.nlink > 0 || self.info.writability.is_read_only_for_good() {
            return false;
        }
        // While a remount has stopped writing, the inode is enqueued.
        let is_stopped = self.info.is_read_only();
        let mut state = inode.write();
        if state.item.nlink > 0 || state.dead || self.info.inodes.is_referenced(inode.id) {
            return false;
        }
        // From here on only the inactivator and commits change it.
        state.dead = true;
        self.info.gate.freeze_older(&mut *state);
        let bytes = state.item.nbytes;
        let demand =
            Demand { edits: 4 + bytes / TYPICAL_EXTENT, global_reserve: UseOfGlobalReserve::All, ..Demand::default() };
        let at_once = !is_stopped && bytes <= self.info.options.freeing.at_once;
        let reservation = if at_once { self.info.try_reserve(demand) } else { None };
        if reservation.is_some() || (!is_stopped && state.is_new()) {
            self.end_inode(inode, &mut state, &self.info.gate.enter());
            if state.is_new() {
                // Created and deleted in one transaction: it never gets into a tree.
                drop(state);
                self.info.inodes.remove(inode.id);
            }
        } else {
            self.drop_dirty_data(inode, &mut state);
            drop(state);
            self.queue.push(Waiting::new(inode.clone(), bytes));
        }
        true
    }

    /// Deletes everything of a dead inode, in a transaction that has been entered.
    pub(super) fn end_inode(&self, inode: &Arc<Inode>, state: &mut InodeState, transaction: &Transaction) {
        state.join(inode, transaction);
        drop(state.dirty.take());
        self.info.unreserve_data(std::mem::take(&mut state.reserved));
        // Deleted names stay recorded, since the log may have to include them.
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

    /// Drops the dirty data of a dead inode, and leaves holes in its place, since the inode may
    /// have to be committed before it is deleted.
    fn drop_dirty_data(&self, inode: &Arc<Inode>, state: &mut InodeState) {
        if state.dirty.is_empty() {
            return;
        }
        let transaction = self.info.gate.enter();
        state.join(inode, &transaction);
        let dirty = state.dirty.take();
        for (start, len) in dirty.ranges() {
            state.pending.layout.replace(start, len, Piece::Hole);
        }
        self.info.unreserve_data(std::mem::take(&mut state.reserved));
    }
}
