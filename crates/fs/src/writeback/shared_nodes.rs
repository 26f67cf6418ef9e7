//! Which nodes of trees have several references. It remembers what it was asked, for one commit.

use std::collections::HashMap;

use ubtrfs_format::items::ExtentItem;
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId};
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_tree::NodeRef;

use crate::committed::Committed;
use crate::error::{Error, Result};

/// Nodes of which is known whether there are several references to them, as one commit has it.
/// Files of one leaf ask for the same ones.
pub(super) struct SharedNodes(Mutex<(Generation, HashMap<Logical, bool>)>);

impl Default for SharedNodes {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::SharedNodes))
    }
}

impl SharedNodes {
    /// More nodes than these are not remembered.
    const MAX: usize = 1 << 16;

    /// Whether several trees or nodes refer to a node.
    pub(super) fn is_shared(&self, committed: &Committed, node: &NodeRef) -> Result<bool> {
        {
            let known = self.0.lock();
            if let Some(known) = known.1.get(&node.bytenr).filter(|_| known.0 == committed.generation) {
                return Ok(*known);
            }
        }
        let extents = committed.tree(TreeId::EXTENT)?;
        let skinny = Key::new(node.bytenr.0, ItemType::METADATA_ITEM, node.level.into());
        let full = Key::new(node.bytenr.0, ItemType::EXTENT_ITEM, committed.superblock.node_size.into());
        let refs = match extents.get(&skinny)? {
            Some(item) => ExtentItem::parse(&skinny, &item)?.refs,
            None => match extents.get(&full)? {
                Some(item) => ExtentItem::parse(&full, &item)?.refs,
                None => return Err(Error::MissingItem { tree: TreeId::EXTENT, key: skinny }),
            },
        };
        let mut known = self.0.lock();
        if known.0 != committed.generation || known.1.len() >= Self::MAX {
            *known = (committed.generation, HashMap::new());
        }
        known.1.insert(node.bytenr, refs > 1);
        Ok(refs > 1)
    }
}
