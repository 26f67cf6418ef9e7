//! The end of inodes: when the last name and the last reference are gone.

use std::sync::Arc;

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeBatch, InodeId, OrphanEdit};
use crate::space::Demand;

/// Bytes of a file for which freeing them is assumed to change one leaf.
const TYPICAL_EXTENT: u64 = 1 << 20;

impl Filesystem {
    /// Adds a reference to an inode, as a lookup does.
    pub fn reference(&self, id: InodeId) {
        self.inodes.reference(id);
    }

    /// Gives references back. With the last one an inode without names goes.
    pub fn forget(&self, id: InodeId, count: u64) {
        if !self.inodes.unreference(id, count) {
            return;
        }
        let Some(inode) = self.inodes.get(id) else { return };
        self.inactivate_if_unused(&inode);
    }

    /// Reserves for an operation that may free all of a file's extents, each of which may touch leaves of its own. Where
    /// there is no room for that, `least` has to do: what frees space has a reserve.
    pub(crate) fn reserve_to_free(&self, inode: &Inode, least: Demand) -> Result<()> {
        let extents = inode.read().item.nbytes / TYPICAL_EXTENT;
        let most = Demand { edits: least.edits + extents, ..least };
        self.reserve(most).or_else(|_| self.reserve(least))
    }

    /// Frees an inode if nothing refers to it: its content, its xattrs, its items.
    pub(crate) fn inactivate_if_unused(&self, inode: &Arc<Inode>) {
        if inode.read().item.nlink > 0 || self.is_read_only() {
            return;
        }
        // Without space it is tried all the same: what frees space has a reserve.
        let _ = self.reserve_to_free(inode, Demand { edits: 4, frees: true, ..Demand::default() });
        let mut state = inode.write();
        if state.item.nlink > 0 || state.dead || self.inodes.is_referenced(inode.id) {
            return;
        }
        let transaction = self.gate.enter();
        state.join(inode, &transaction);
        state.dead = true;
        drop(state.dirty.take());
        let reserved = std::mem::take(&mut state.reserved);
        let unheard_of = !state.committed && state.frozen.is_none();
        // What was lost by name stays known: the log may have to tell.
        let InodeBatch { refs, entries, logged, .. } = std::mem::take(&mut state.pending);
        state.pending = InodeBatch {
            generation: transaction.generation,
            gone: true,
            orphan: OrphanEdit::Remove,
            refs,
            entries,
            logged,
            ..InodeBatch::default()
        };
        drop(state);
        self.unreserve_data(reserved);
        if unheard_of {
            // Born and gone inside one transaction: no tree ever hears of it.
            self.inodes.remove(inode.id);
        }
    }
}
