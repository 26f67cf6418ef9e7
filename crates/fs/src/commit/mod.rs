//! The commit: the frozen transaction becomes the volume's next state, all at once.
//!
//! 1. Start write-out of what is dirty; close the open transaction; write out what was frozen.
//! 2. Wait for all data of the transaction.
//! 3. Merge: subvolumes, checksums, chunk and device trees, the root tree with placeholders; then
//!    extent, block-group and free-space trees until no edit remains; patch the final root items in
//!    `tree_log`. Leaves of subvolumes are submitted while the rest is made if there are many.
//! 4. Nodes; flush; superblocks; flush.
//! 5. Publish, unpin.

mod block_refs;
mod build;
mod chunks;
mod csums;
mod data_refs;
mod early;
mod extent_refs;
mod label;
mod nodes;
mod owner;
mod rebuild_tree;
mod relocate_trees;
mod roots;
mod sequence;
mod submit;
mod superblock;
mod tree_merger;
#[cfg(test)]
mod unsharing_tests;
mod worker;

pub(crate) use owner::Committer;
