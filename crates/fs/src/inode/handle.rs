//! An inode in memory, and the lock of its state.

use ubtrfs_threads::{Rank, RwLock, RwLockReadGuard};

use super::changing::Changing;
use super::id::InodeId;
use super::state::InodeState;

/// An inode in memory.
pub(crate) struct Inode {
    pub(crate) id: InodeId,
    state: RwLock<InodeState>,
}

impl Inode {
    pub(crate) fn new(id: InodeId, state: InodeState) -> Self {
        // Invariant 7: inodes are locked in the order of their ids.
        let order = [id.subvolume.0, id.ino.0];
        Self { id, state: RwLock::in_order(Rank::Inode, order, state) }
    }

    /// Locks the state for reading.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        self.state.read()
    }

    /// Locks the state for a change.
    pub(crate) fn write(&self) -> Changing<'_> {
        Changing::new(self.state.write())
    }

    /// Locks the state for reading, unless it is locked for a change.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.state.try_read()
    }

    /// Locks the state for a change, unless it is locked.
    pub(crate) fn try_write(&self) -> Option<Changing<'_>> {
        self.state.try_write().map(Changing::new)
    }
}
