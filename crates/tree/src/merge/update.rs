//! The descent: the changes of a batch are applied to their leaves, and the nodes above are
//! rewritten with the resulting children.

use ubtrfs_format::{Internal, Leaf, Node};

use super::changes::Changes;
use super::contents::Contents;
use super::merger::{ChildUpdate, Merger, Rewrite};
use crate::block::{Block, NodeRef};
use crate::error::Result;

impl Merger<'_> {
    /// Merges `changes` into the node. Returns `None` if it stays as it is.
    pub(super) fn update(&mut self, at: &NodeRef, changes: Changes<'_>) -> Result<Option<Rewrite>> {
        let block = self.read(at)?;
        let view = at.view(&block)?;
        self.shared.enter(at, &block);
        let piece = match view {
            Node::Leaf(leaf) => self.update_leaf(at, &block, leaf, changes)?,
            Node::Internal(node) => self.update_internal(at, &block, node, changes)?,
        };
        self.shared.leave(at);
        Ok(piece)
    }

    fn update_leaf(
        &mut self,
        at: &NodeRef,
        block: &Block,
        leaf: Leaf<'_>,
        changes: Changes<'_>,
    ) -> Result<Option<Rewrite>> {
        let changes = self.resolve(Some(at.bytenr), &leaf, changes)?;
        if changes.is_empty() {
            return Ok(None);
        }
        let reusable = self.retire(at, block)?;
        let contents = Contents::changed(&leaf, &changes, self.node_size);
        let last = leaf.len().wrapping_sub(1);
        let tail = at.upper.is_none() && (leaf.is_empty() || contents.key(last) == leaf.key(last));
        Ok(Some(Rewrite { contents, reusable, tail }))
    }

    fn update_internal(
        &mut self,
        at: &NodeRef,
        block: &Block,
        node: Internal<'_>,
        changes: Changes<'_>,
    ) -> Result<Option<Rewrite>> {
        let pieces = self.update_children(at, &node, changes)?;
        if pieces.is_empty() {
            return Ok(None);
        }
        let mut children = Vec::with_capacity(pieces.len() + 1);
        for piece in self.join(at, &node, pieces)? {
            match piece {
                ChildUpdate::Kept(slot) => children.extend(node.child(slot)),
                ChildUpdate::Rewritten(open) => children.extend(self.write(at.level - 1, *open)?),
            }
        }
        if at.level == 1 {
            self.allocator.leaves_are_done(self.dirty)?;
        }
        // All children may have been rewritten in place.
        if children.iter().copied().eq(node.iter()) {
            return Ok(None);
        }
        let reusable = self.retire(at, block)?;
        let last = node.len().wrapping_sub(1);
        let tail = at.upper.is_none() && children.get(last).map(|child| child.key) == node.key(last);
        Ok(Some(Rewrite { contents: Contents::Children(children), reusable, tail }))
    }

    /// Merges `changes` into the children of a node. Returns a piece for each child, or none at all
    /// if all stay as they are.
    fn update_children(
        &mut self,
        at: &NodeRef,
        node: &Internal<'_>,
        mut changes: Changes<'_>,
    ) -> Result<Vec<ChildUpdate>> {
        let mut pieces = Vec::new();
        let mut slot = 0;
        while let Some(first) = changes.first_key() {
            // A deleted range may have begun in an earlier child.
            slot = slot.max(node.slot_for(&first));
            let Some(child) = at.child(node, slot) else { break };
            let below = changes.take_for(&child);
            if !below.is_empty()
                && let Some(open) = self.update(&child, below)?
            {
                pieces.reserve(node.len() - pieces.len());
                pieces.extend((pieces.len()..slot).map(ChildUpdate::Kept));
                pieces.push(ChildUpdate::Rewritten(Box::new(open)));
            }
            slot += 1;
        }
        if !pieces.is_empty() {
            pieces.extend((pieces.len()..node.len()).map(ChildUpdate::Kept));
        }
        Ok(pieces)
    }
}
