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
//!
//! Each lock has a rank, and a thread takes locks in the order of ranks (invariant 7, `rank`).

mod condvar;
mod hash_seed;
mod held;
mod lock;
mod panics;
mod rank;
#[cfg(feature = "shuttle")]
mod scheduled;
#[cfg(not(feature = "shuttle"))]
mod system;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use hash_seed::hash_seed;
pub use held::{assert_none_held, is_held};
pub use lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use panics::{Panics, WatchPanics};
pub use rank::Rank;
#[cfg(feature = "shuttle")]
use scheduled::unranked;
#[cfg(feature = "shuttle")]
pub use scheduled::{ArcSwap, ArcSwapOption, OnceLock, atomic, mpsc, scheduler, thread, time};
#[cfg(feature = "shuttle")]
pub use shuttle::thread_local;
#[cfg(not(feature = "shuttle"))]
pub use std::thread_local;
#[cfg(not(feature = "shuttle"))]
use system::unranked;
#[cfg(not(feature = "shuttle"))]
pub use system::{ArcSwap, ArcSwapOption, OnceLock, atomic, mpsc, thread, time};
