//! The non-blocking mode of threads.
//!
//! A thread that serves many requests can serve those that need only memory, and has to leave the
//! others to other threads. It learns which kind a request is only while it serves it. So such a
//! thread turns non-blocking mode on, and an operation that would block on a device or a commit
//! fails with [`Error::WouldBlock`](crate::Error::WouldBlock) instead, before it has changed
//! anything.

use std::cell::Cell;

use crate::error::{Error, Result};

ubtrfs_threads::thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(true) };
}

/// Restores the mode that was set before, even if the work panics.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        MAY_BLOCK.with(|may| may.set(self.0));
    }
}

/// Does `work` in non-blocking mode: it fails if it would have to block.
pub fn nonblocking<T>(work: impl FnOnce() -> T) -> T {
    let _restore = Restore(MAY_BLOCK.with(|may| may.replace(false)));
    work()
}

/// Does `work`, which may block even in a non-blocking thread, because it can't be interrupted
/// halfway.
pub fn blocking<T>(work: impl FnOnce() -> T) -> T {
    let _restore = Restore(MAY_BLOCK.with(|may| may.replace(true)));
    work()
}

/// Returns whether this thread may block.
pub fn may_block() -> bool {
    MAY_BLOCK.with(Cell::get)
}

/// Fails if this thread is in non-blocking mode.
pub fn ensure_may_block() -> Result<()> {
    if may_block() { Ok(()) } else { Err(Error::WouldBlock) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_nest_and_outlive_panics() {
        assert!(may_block());
        nonblocking(|| {
            assert!(!may_block() && ensure_may_block().is_err());
            assert!(blocking(may_block));
            assert!(!may_block());
        });
        assert!(std::panic::catch_unwind(|| nonblocking(|| panic!("on purpose"))).is_err());
        assert!(may_block() && ensure_may_block().is_ok());
    }
}
