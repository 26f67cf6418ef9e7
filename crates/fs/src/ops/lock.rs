//! Locks several inodes, always in the order of subvolume and number, and before the gate
//! (invariant 7).

use std::sync::Arc;

use ubtrfs_format::Generation;
use ubtrfs_threads::{Rank, is_held};

use crate::inode::{Changing, Inode, InodeId, InodeState};
use crate::transaction::{Freeze, Transaction};

impl Freeze for LockedInodes<'_> {
    fn freeze_before(&mut self, generation: Generation) {
        for (_, state) in &mut self.guards {
            state.freeze_before(generation);
        }
    }
}

/// Inodes locked for a change.
pub(crate) struct LockedInodes<'a> {
    guards: Vec<(&'a Arc<Inode>, Changing<'a>)>,
}

impl<'a> LockedInodes<'a> {
    /// Locks inodes. An inode that is listed twice is locked once.
    pub(crate) fn lock(inodes: &[&'a Arc<Inode>]) -> Self {
        debug_assert!(!is_held(Rank::Gate), "invariant 7: inodes are locked before the gate is entered");
        let mut ordered = inodes.to_vec();
        ordered.sort_by_key(|inode| inode.id);
        ordered.dedup_by_key(|inode| inode.id);
        Self { guards: ordered.into_iter().map(|inode| (inode, inode.write())).collect() }
    }

    fn position(&self, id: InodeId) -> usize {
        let found = self.guards.iter().position(|(inode, _)| inode.id == id);
        found.unwrap_or_else(|| unreachable!("inode {id:?} was not locked"))
    }

    /// Returns the state of an inode that was locked.
    pub(crate) fn get(&self, id: InodeId) -> &InodeState {
        &self.guards[self.position(id)].1
    }

    /// Returns the state of an inode that was locked, to be changed.
    pub(crate) fn get_mut(&mut self, id: InodeId) -> &mut InodeState {
        let position = self.position(id);
        &mut self.guards[position].1
    }

    /// Has all of them join the transaction.
    pub(crate) fn join(&mut self, transaction: &Transaction) {
        for (inode, state) in &mut self.guards {
            state.join(inode, transaction);
        }
    }

    /// Has one of them join the transaction.
    pub(crate) fn join_one(&mut self, id: InodeId, transaction: &Transaction) {
        let position = self.position(id);
        let (inode, state) = &mut self.guards[position];
        state.join(inode, transaction);
    }

    /// Adds the inodes whose names changed after they were logged to the transaction's list, since
    /// the log must include the new names.
    pub(crate) fn note_renamed(&mut self, transaction: &Transaction) {
        for (inode, state) in &mut self.guards {
            if let Some(logged) = &mut state.pending.logged
                && logged.names_changed
                && !std::mem::replace(&mut logged.listed, true)
            {
                transaction.add_renamed((*inode).clone());
            }
        }
    }
}
