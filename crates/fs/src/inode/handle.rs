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
        // Invariant 7: in the order of their ids.
        let order = [id.subvolume.0, id.ino.0];
        Self { id, state: RwLock::in_order(Rank::Inode, order, state) }
    }

    /// The state, for reading.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        self.state.read()
    }

    /// The state, for a change.
    pub(crate) fn write(&self) -> Changing<'_> {
        Changing::new(self.state.write())
    }

    /// The state, for reading, if it is not locked for a change.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.state.try_read()
    }

    /// The state, for a change, if it is not locked.
    pub(crate) fn try_write(&self) -> Option<Changing<'_>> {
        self.state.try_write().map(Changing::new)
    }
}
