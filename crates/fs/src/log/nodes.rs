//! Allocates space for the nodes of a log.

use ubtrfs_format::{Logical, TreeId};
use ubtrfs_tree::{FreedNode, NodeAllocator};

use super::arena::Urgency;
use super::queue::Log;
use super::tree_log::TreeLog;
use crate::faults::LogFault;

/// Allocates the nodes of one write of the log.
pub(super) struct LogNodes<'a> {
    log: &'a Log,
    tree_log: &'a mut TreeLog,
    /// Nodes of earlier writes that this one replaces. They are reused once this write is durable.
    pub(super) replaced: Vec<Logical>,
    /// Whether there was too little space.
    pub(super) short: bool,
}

impl<'a> LogNodes<'a> {
    pub(super) fn new(log: &'a Log, tree_log: &'a mut TreeLog) -> Self {
        Self { log, tree_log, replaced: Vec::new(), short: false }
    }
}

impl NodeAllocator for LogNodes<'_> {
    fn allocate(&mut self, _: TreeId, _: u8) -> ubtrfs_tree::Result<Logical> {
        /// The space to leave free, in multiples of the log's.
        const PLENTY: u64 = 8;
        let space = &self.log.info.space;
        let arena = &mut self.tree_log.arena;
        let node_size = space.node_size();
        let plenty = PLENTY * arena.all.len() as u64 * node_size;
        // The fault of reusing a node too early is detected only if the node is reused soon.
        let early =
            if self.log.info.options.faults().in_log(LogFault::ReusePinned) { arena.take_spare() } else { None };
        let node = early.or_else(|| {
            let left = |demand| if demand == Urgency::Convenience { plenty } else { 0 };
            arena.take(node_size, |demand| space.allocate_log_node(left(demand)))
        });
        node.ok_or_else(|| {
            self.short = true;
            ubtrfs_tree::Error::allocator("no space for the log")
        })
    }

    fn free(&mut self, node: FreedNode) -> ubtrfs_tree::Result<()> {
        if self.log.info.options.faults().in_log(LogFault::ReusePinned) {
            self.tree_log.arena.reuse_first(node.bytenr);
        } else if node.born_in_this_commit {
            self.tree_log.arena.reuse([node.bytenr]);
        } else {
            self.replaced.push(node.bytenr);
        }
        Ok(())
    }
}
