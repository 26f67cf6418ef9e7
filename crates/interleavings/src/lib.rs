//! Engine and server under a scheduler: one seed decides which thread runs at each step.
//!
//! A run makes a volume in memory, on which a few threads work: writers, and jobs such as
//! snapshots, scrubs, balances and remounts. The seed chooses them. `ubtrfs_threads` interleaves
//! the threads, so the same seed always makes the same run. A run fails if threads deadlock, if one
//! panics, if an operation fails without a reason, if a counter does not return to its initial
//! value, or if the volume does not keep what calls have promised: after the last commit, when it
//! is mounted again, and after crashes at random points in time.
//!
//! The crate is empty without its feature `shuttle`.

#![cfg(feature = "shuttle")]

mod files;
mod history;
mod jobs;
mod mixture;
pub mod seeds;
mod stage;
mod verdict;
mod writer;

pub use history::run_history;
pub use jobs::Job;
pub use mixture::Mixture;
