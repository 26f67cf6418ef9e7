//! The lock of an inode that may be changed. Its release updates the count of memory that the inode
//! takes (invariant 26), and asserts that the log will follow the inode's names (invariant 15).

use std::ops::{Deref, DerefMut};

use ubtrfs_threads::RwLockWriteGuard;

use super::InodeState;

/// An inode whose state may be changed. When the lock is released, the inode's memory is counted
/// for its transactions.
pub(crate) struct Changing<'a>(RwLockWriteGuard<'a, InodeState>);

impl<'a> Changing<'a> {
    pub(super) fn new(state: RwLockWriteGuard<'a, InodeState>) -> Self {
        Self(state)
    }
}

impl Deref for Changing<'_> {
    type Target = InodeState;

    fn deref(&self) -> &InodeState {
        &self.0
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut InodeState {
        &mut self.0
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.settle_memory();
        assert!(
            ubtrfs_threads::thread::panicking() || self.0.is_listed_if_renamed(),
            "invariant 15: names of an inode changed that the log has, and the inode is not on the list"
        );
    }
}
