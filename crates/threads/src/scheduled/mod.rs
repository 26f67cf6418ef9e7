//! The types of this crate under the scheduler.

mod arc_swap;
mod clock;
mod condvar;
mod once_lock;
mod plan;
pub mod scheduler;
mod strategy;
pub mod thread;
pub mod time;

pub use self::arc_swap::{ArcSwap, ArcSwapOption};
pub use self::once_lock::OnceLock;

/// Locks without a rank.
pub mod unranked {
    pub use shuttle_parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

    pub use super::condvar::{Condvar, WaitTimeoutResult};
}

/// Atomics that order something: flags that another thread waits for or decides by.
pub mod atomic {
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
}

/// Channels.
pub mod mpsc {
    pub use shuttle::sync::mpsc::{Receiver, Sender, channel};
}
