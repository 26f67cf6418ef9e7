//! What errors and counters tell of trees.

#[doc(inline)]
pub use ubtrfs_tree::{BoxError, CacheCounters, Damage, Error, Result};
