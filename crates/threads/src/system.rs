//! The types of this crate in programs: other crates' types under the same names, without cost.

pub use std::sync::OnceLock;

pub use arc_swap::{ArcSwap, ArcSwapOption};
/// Locks without a rank.
pub mod unranked {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult};
}

/// Atomics that order something: flags that another thread waits for or decides by.
pub mod atomic {
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
}

/// Channels.
pub mod mpsc {
    pub use std::sync::mpsc::{Receiver, Sender, channel};
}

/// Threads.
pub mod thread {
    pub use std::thread::{
        Builder, JoinHandle, Scope, ScopedJoinHandle, ThreadId, current, panicking, scope, sleep, spawn, yield_now,
    };
}

/// Clocks.
pub mod time {
    pub use std::time::{Duration, Instant};

    /// Returns the time of the wall clock.
    pub fn wall_clock() -> std::time::SystemTime {
        std::time::SystemTime::now()
    }
}
