//! The nodes on the path of a merge that other trees may share, and which of them have been
//! unshared.

use ubtrfs_format::{Generation, Logical, NodeFlags, TreeId};

use super::allocator::NodeAllocator;
use crate::block::{Block, NodeRef};
use crate::error::Result;

/// The nodes from the root down to the merge's position, as far as other trees may use them too.
///
/// Whether a node is shared depends on the references that its ancestors gave it when they were
/// unshared, so ancestors come first. But a node is unshared only if it really changes, which is
/// known only after its descendants were merged. So the path is recorded, and unshared from the top
/// as soon as a node at its end is replaced: all nodes above will be replaced too, since the
/// address of their child changes.
pub(super) struct SharedPath {
    last_snapshot: Generation,
    nodes: Vec<(Logical, Block)>,
    /// How many of `nodes`, counted from the root, have been unshared.
    unshared: usize,
}

impl SharedPath {
    pub(super) fn new(last_snapshot: Generation) -> Self {
        Self { last_snapshot, nodes: Vec::new(), unshared: 0 }
    }

    /// Returns whether snapshots may use a node of this generation.
    pub(super) fn may_share(&self, generation: Generation) -> bool {
        self.last_snapshot.0 != 0 && generation <= self.last_snapshot
    }

    /// Returns whether other trees may use the node, or refer to its children by its address.
    pub(super) fn is_shared(&self, at: &NodeRef, block: &Block) -> bool {
        let relocated = || block.header().is_ok_and(|header| header.flags & NodeFlags::RELOC != 0);
        self.may_share(at.generation) || relocated()
    }

    /// Notes that the merge descends to a node.
    pub(super) fn enter(&mut self, at: &NodeRef, block: &Block) {
        if self.is_shared(at, block) {
            self.nodes.push((at.bytenr, block.clone()));
        }
    }

    /// Notes that the merge leaves the node that it entered last.
    pub(super) fn leave(&mut self, at: &NodeRef) {
        if self.nodes.pop_if(|(bytenr, _)| *bytenr == at.bytenr).is_some() {
            self.unshared = self.unshared.min(self.nodes.len());
        }
    }

    /// Unshares all nodes down to the merge's position.
    pub(super) fn unshare(&mut self, tree: TreeId, allocator: &mut dyn NodeAllocator) -> Result<()> {
        for (_, block) in self.nodes.get(self.unshared..).unwrap_or_default() {
            allocator.unshare(tree, block)?;
        }
        self.unshared = self.nodes.len();
        Ok(())
    }
}
