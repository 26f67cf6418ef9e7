//! The commit: makes the frozen transaction the next state of the volume, atomically.
//!
//! 1. Start writeback of dirty data; close the open transaction; submit the frozen data.
//! 2. Merge: subvolumes, checksums, chunk and device trees, the root tree with placeholders; then
//!    extent, block-group and free-space trees until no edit remains; patch the final root items in
//!    place. If there are many leaves of subvolumes, they are submitted while the rest is built.
//! 3. Wait for all data of the transaction.
//! 4. Write nodes; flush; write superblocks; flush.
//! 5. Publish, unpin.
//!
//! ```text
//! open                                                    what proves the step:
//!   │ Committer::start_early_writeback, Gate::swap
//!   ▼
//! frozen
//!   │ Writeback::write_back_all_frozen, MergedTrees::of
//!   ▼
//! merged
//!   │ Committer::wait_for_data                       ──▶ CompletedWrites<Data>
//!   ▼
//! data written
//!   │ submit, VolumeWriter::wait, EarlyLeaves::finish──▶ CompletedWrites<Nodes>
//!   ▼
//! nodes written
//!   │ VolumeWriter::flush, which takes both          ──▶ Flushed
//!   ▼
//! flushed
//!   │ Superblocks::write, which takes that           ──▶ Published
//!   ▼
//! durable
//!   │ FsInfo::publish, SpaceState::vacate, InodeState::forget_frozen,
//!   │ FsInfo::forget_frozen_transaction, SpaceState::commit_ends, Space::pin: all take that
//!   ▼
//! at rest
//!
//! each of them ── FsInfo::abort ──▶ read-only for good; the last commit stays
//! ```
//!
//! So a superblock follows a flush that followed all data and all nodes (invariant 1); a crash
//! leaves the last commit or this one (invariant 2); and what the last one referred to is dropped
//! by the proof that this one is durable (invariant 3). What the trees say of space comes from this
//! commit's edits alone (invariant 9), of each range once (invariant 10); of references
//! `block_refs` (invariant 20). It never finds too little space, for operations have reserved
//! (invariant 8). One that fails turns the file system read-only (invariant 13).

mod balance_item;
mod block_refs;
mod build;
mod change_devices;
mod chunks;
mod data_edits;
mod data_refs;
mod device_stats;
mod drop_subvolume;
mod early;
mod extent_refs;
mod label;
mod merge_trees;
mod needs;
mod new_subvolumes;
mod nodes;
mod owner;
mod reloc_trees;
mod relocate_trees;
mod relocation;
mod requests;
mod roots;
mod sequence;
mod shrink;
mod submit;
mod superblock;
mod tree_merger;
#[cfg(test)]
mod unsharing_tests;
mod uuid_tree;
mod worker;
mod write;

pub(crate) use balance_item::BALANCE;
pub(crate) use device_stats::load as load_device_stats;
pub(crate) use owner::Committer;
pub(crate) use reloc_trees::merges_reloc_trees;
pub(crate) use relocation::{DataTarget, RelocationPlan, RelocationStep};
