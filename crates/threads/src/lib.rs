//! Threads, locks and clocks, as the engine and the server use them.
//!
//! All operations by which threads wait for one another, or see what another has done, are in this
//! crate, so that they can be replaced in one place. In programs these are the types of `std`,
//! `parking_lot` and `arc_swap` themselves. With the feature `shuttle`, threads are tasks of one
//! thread, which a scheduler interleaves as a seed determines. Each operation of this crate is then
//! a point at which another task may continue; `scheduler` runs a test like that. Time is part of
//! it: it passes with the steps of the tasks, and jumps if all of them wait for a time.
//!
//! Counters that order nothing are plain atomics of `std`, since each access to those of [`atomic`]
//! is a step of the scheduler.
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
