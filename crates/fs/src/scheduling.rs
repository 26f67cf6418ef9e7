//! Helps servers to choose the thread that serves a request.
//!
//! A server with few threads needs to know beforehand whether a call will wait for a device, and
//! needs to wait for many fsyncs at once. A program that just calls the engine needs none of this.

pub use ubtrfs_tree::{may_block, nonblocking};

pub use crate::deferred_reads::{BegunRead, DeferredRead};
pub use crate::fsync_group::Done;
pub use crate::ops::FsyncLeader;
