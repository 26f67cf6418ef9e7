//! An inode in memory, and the lock of its state.

use parking_lot::{RwLock, RwLockReadGuard};

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
        Self { id, state: RwLock::new(state) }
    }

    /// The state, to look at.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, InodeState> {
        self.state.read()
    }

    /// The state, to change.
    pub(crate) fn write(&self) -> Changing<'_> {
        Changing::new(self.state.write())
    }

    /// The state, to look at, if nobody changes it.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, InodeState>> {
        self.state.try_read()
    }

    /// The state if nobody has it.
    pub(crate) fn try_write(&self) -> Option<Changing<'_>> {
        self.state.try_write().map(Changing::new)
    }
}
