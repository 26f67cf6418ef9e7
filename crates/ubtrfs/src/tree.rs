//! Types of trees that errors and counters use, and a tree of a [kept commit](crate::KeptCommit).

#[doc(inline)]
pub use ubtrfs_tree::{BoxError, CacheCounters, Damage, Error, Result, Snapshot};
