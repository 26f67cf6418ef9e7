//! What is left of subvolumes that are being dropped (`commit/drop_subvolume`).
//!
//! Their trees go from left to right. The nodes on the way to where that goes on still point to
//! what lies to the left: it is gone, or it is others' alone, and counts for no reference. What
//! lies to the right is as in any tree. So something that both a half-dropped subvolume and others
//! share can be moved at any time, whatever commits drop meanwhile.

use std::collections::BTreeMap;

use ubtrfs_format::{Key, Logical, Node, TreeId};
use ubtrfs_tree::{Block, Pointer};

use crate::committed::Committed;
use crate::error::Result;

/// What is left of them, in a certain state of the volume.
#[derive(Default)]
pub(super) struct HalfDropped {
    /// Each of them has nothing before this key.
    first: BTreeMap<TreeId, Key>,
    /// How many pointers count no more, of a node from its first one on.
    gone: BTreeMap<Logical, usize>,
}

impl HalfDropped {
    /// Those of this state.
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
                // What can't be read moves nowhere, and does not hinder what has nothing to do with
                // it.
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

    /// Before this key there is nothing of a tree.
    pub(super) fn first_key(&self, id: TreeId) -> Key {
        self.first.get(&id).copied().unwrap_or(Key::MIN)
    }

    /// The pointers of the node at this address that count, in order.
    pub(super) fn pointers(&self, at: Logical, block: &Block) -> Result<Vec<Pointer>> {
        let mut pointers = block.pointers()?;
        pointers.drain(..self.gone.get(&at).map_or(0, |gone| (*gone).min(pointers.len())));
        Ok(pointers)
    }
}
