//! The remaining parts of subvolumes that are being dropped (`commit/drop_subvolume`).
//!
//! Their trees are dropped from left to right. The nodes on the path to the next child still point
//! to what lies to the left of it. That part is freed, or used only by others, so these pointers do
//! not count as references. The part to the right is as in any tree. So a block that a half-dropped
//! subvolume shares with others can be moved at any time, whatever commits drop meanwhile.

use std::collections::BTreeMap;

use ubtrfs_format::{Key, Logical, Node, TreeId};
use ubtrfs_tree::{Block, Pointer};

use crate::committed::Committed;
use crate::error::Result;

/// The remaining parts, in one state of the volume.
#[derive(Default)]
pub(super) struct HalfDropped {
    /// The first key that remains of each such subvolume.
    first: BTreeMap<TreeId, Key>,
    /// The number of pointers, from the first one of a node on, that do not count any more.
    gone: BTreeMap<Logical, usize>,
}

impl HalfDropped {
    /// Finds the half-dropped subvolumes of a commit.
    pub(super) fn of(committed: &Committed) -> Result<Self> {
        let mut this = Self::default();
        for id in committed.trees.deleted_subvolumes() {
            let Some(item) = committed.trees.get(id).map(|tree| &tree.item) else { continue };
            let (key, least) = (item.drop_progress, item.drop_level);
            if key == Key::default() {
                continue;
            }
            this.first.insert(id, key);
            let root = *committed.tree(id)?.root();
            let (mut at, mut generation, mut level) = (root.bytenr, root.generation, root.level);
            while level >= least {
                // A block that can't be read is not moved, and does not prevent the move of
                // unrelated ones.
                let Ok(block) = committed.node_at(at, generation, level) else { break };
                let Node::Internal(node) = block.node()? else { break };
                let slot = node.slot_for(&key);
                this.gone.insert(at, slot);
                let Some(child) = node.child(slot) else { break };
                (at, generation, level) = (child.bytenr, child.generation, level.saturating_sub(1));
            }
        }
        Ok(this)
    }

    /// Returns the first key that remains of a tree.
    pub(super) fn first_key(&self, id: TreeId) -> Key {
        self.first.get(&id).copied().unwrap_or(Key::MIN)
    }

    /// Returns the pointers of the node at this address that count, in order.
    pub(super) fn pointers(&self, at: Logical, block: &Block) -> Result<Vec<Pointer>> {
        let mut pointers = block.pointers()?;
        pointers.drain(..self.gone.get(&at).map_or(0, |gone| (*gone).min(pointers.len())));
        Ok(pointers)
    }
}
