//! Space for the nodes of a log.

use ubtrfs_format::{Logical, TreeId};
use ubtrfs_tree::{FreedNode, NodeAllocator};

use super::queue::Place;
use crate::filesystem::Filesystem;
use crate::options::LogFault;

/// Allocates the nodes of one write of the log.
pub(super) struct LogNodes<'a> {
    fs: &'a Filesystem,
    place: &'a mut Place,
    /// Nodes of earlier writes that this one replaces: to be used again once it is durable.
    pub(super) replaced: Vec<Logical>,
    /// There was no space.
    pub(super) short: bool,
}

impl<'a> LogNodes<'a> {
    pub(super) fn new(fs: &'a Filesystem, place: &'a mut Place) -> Self {
        Self { fs, place, replaced: Vec::new(), short: false }
    }
}

impl NodeAllocator for LogNodes<'_> {
    fn allocate(&mut self, _: TreeId, _: u8) -> ubtrfs_tree::Result<Logical> {
        if let Some(spare) = self.place.spare.pop() {
            return Ok(spare);
        }
        let Some(bytenr) = self.fs.space.allocate_log_node() else {
            self.short = true;
            return Err(ubtrfs_tree::Error::allocator("no space for the log"));
        };
        self.place.nodes.push(bytenr);
        Ok(bytenr)
    }

    fn free(&mut self, node: FreedNode) -> ubtrfs_tree::Result<()> {
        if node.born_in_this_commit || self.fs.options.log_fault == Some(LogFault::ReusePinned) {
            self.place.spare.push(node.bytenr);
        } else {
            self.replaced.push(node.bytenr);
        }
        Ok(())
    }
}
