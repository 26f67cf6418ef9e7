//! Immutable copy-on-write B-tree snapshots and the merge of edits into them.
//!
//! A [`Snapshot`] is a root and a [`NodeCache`]; any thread reads it without a lock. The changes of
//! a transaction are one [`EditBatch`] per tree, which [`merge`] turns into a new root. The nodes
//! that it creates stay in [`DirtyNodes`] until the commit submits them. A [`WorkingTree`] reads
//! through them.

mod block;
mod cache;
mod damage;
mod differences;
mod dirty;
mod edit;
mod error;
mod merge;
mod moved;
mod node_id;
mod nonblocking;
mod parts;
mod patch;
mod range;
mod read_ahead;
mod seeded_hash;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod tree;
mod walk;

pub use block::{Block, Geometry, NodeRef, Root};
pub use cache::{CacheCounters, NodeCache, NodeSource};
pub use damage::Damage;
pub use differences::{Difference, Differences, WrittenSince};
pub use dirty::{DirtyNodes, Working, WorkingTree, patch_in_place};
pub use edit::{Edit, EditBatch};
pub use error::{BoxError, Error, Result};
pub use merge::{FreedNode, NodeAllocator, merge};
pub use moved::{Moved, Pointer};
pub use nonblocking::{blocking, ensure_may_block, may_block, nonblocking};
pub use patch::Patch;
pub use range::{Range, RangeRev};
pub use seeded_hash::SeededHash;
pub use tree::{Item, Reader, Snapshot, Tree};
pub use walk::Walk;
