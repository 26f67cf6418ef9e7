//! A log that has been merged, until a superblock refers to it. Only then the nodes that it
//! replaces are reused (invariant 17).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::{Generation, Logical, Superblock};
use ubtrfs_tree::{Block, Root};
use ubtrfs_volume::{Nodes, Published, Ticket, Write};

use super::tree_log::TreeLog;
use crate::committed::Committed;
use crate::fs_info::FsInfo;
use crate::inode::OrderedExtent;

/// A log that has been merged and whose nodes are to be written.
pub(crate) struct PreparedLog {
    pub(super) blocks: Vec<(Logical, Block)>,
    pub(super) root: Root,
    /// Nodes that are free once a superblock with this log is durable.
    pub(super) replaced: Vec<Logical>,
    /// Data that the log refers to.
    pub(crate) ordered: Vec<Arc<OrderedExtent>>,
    pub(super) generation: Generation,
    /// Bytes that its items would take in an empty log.
    pub(super) least: u64,
}

/// The writes of a log's nodes, which are in flight. They and the data to which they refer have to
/// complete, and then the superblock has to refer to the log.
pub(super) struct LogWrites {
    /// The commit that the log follows.
    pub(super) base: Arc<Committed>,
    pub(super) log: PreparedLog,
    pub(super) nodes: Ticket<Nodes>,
}

impl PreparedLog {
    /// Returns the writes of its nodes.
    pub(crate) fn writes(&self) -> impl Iterator<Item = Write> + '_ {
        self.blocks.iter().map(|(at, block)| Write { at: *at, data: block.share() })
    }

    /// Makes a superblock refer to the log.
    pub(crate) fn enter_into(&self, superblock: &mut Superblock) {
        superblock.log_root = self.root.bytenr;
        superblock.log_root_level = self.root.level;
    }

    /// Completes the log after the superblock with it is durable.
    pub(crate) fn published(self, published: &Published, info: &FsInfo, tree_log: &mut TreeLog) {
        assert!(published.has_log(self.root.bytenr), "invariant 17: another log's superblock frees no node of this");
        info.counters.log_writes.fetch_add(1, Ordering::Relaxed);
        let bytes: usize = self.blocks.iter().map(|(_, block)| block.len()).sum();
        info.counters.log_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let last_commit = info.counters.last_commit_bytes.load(Ordering::Relaxed);
        if tree_log.excess.add(bytes as u64, self.least, last_commit, info.dirty_bytes()) {
            info.commit_request.ask();
        }
        for (at, block) in self.blocks {
            info.cache.insert(at, self.generation, block);
        }
        tree_log.arena.reuse(self.replaced);
    }
}
