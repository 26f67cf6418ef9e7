//! Threads, locks and clocks, as the engine and the server use them.
//!
//! Everything by which threads wait for one another, or see what another has done, comes from here:
//! so there is one place where it can be replaced. In programs these are the types of `std`,
//! `parking_lot` and `arc_swap` themselves. With the feature `shuttle` threads are tasks of one
//! thread, which a scheduler interleaves as a seed says, and each operation of this crate is a
//! point where another task may go on; `scheduler` runs a test like that. Time is part of it: it
//! passes with the steps of the tasks, and where all of them wait for a time, at once.
//!
//! Counters that order nothing are plain atomics of `std`: each access of those of [`atomic`] is a
//! step of the scheduler.

#[cfg(feature = "shuttle")]
mod scheduled;
#[cfg(not(feature = "shuttle"))]
mod system;

#[cfg(feature = "shuttle")]
pub use scheduled::{
    ArcSwap, ArcSwapOption, Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
    WaitTimeoutResult, atomic, mpsc, scheduler, thread, time,
};
#[cfg(feature = "shuttle")]
pub use shuttle::thread_local;
#[cfg(not(feature = "shuttle"))]
pub use std::thread_local;
#[cfg(not(feature = "shuttle"))]
pub use system::{
    ArcSwap, ArcSwapOption, Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard,
    WaitTimeoutResult, atomic, mpsc, thread, time,
};
