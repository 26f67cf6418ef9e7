//! Finds out which tree blocks have several references, and caches the answers for one commit.

use std::collections::HashMap;

use ubtrfs_format::items::ExtentItem;
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId};
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_tree::NodeRef;

use crate::committed::Committed;
use crate::error::{Error, Result};

/// Tree blocks for which it is known whether they have several references, as of one commit. Files
/// in the same leaf ask for the same blocks.
pub(super) struct SharedNodes(Mutex<(Generation, HashMap<Logical, bool>)>);

impl Default for SharedNodes {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::SharedNodes))
    }
}

impl SharedNodes {
    /// The most tree blocks that are cached.
    const MAX: usize = 1 << 16;

    /// Whether several trees or tree blocks refer to a block.
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
