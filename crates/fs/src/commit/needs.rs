//! Derives from a commit how much space later changes need.

use ubtrfs_format::TreeId;
use ubtrfs_space::{Needs, global_reserve};

use crate::committed::Committed;
use crate::tree_roots::TreeRoot;

impl Committed {
    /// Returns the space that changes need, and the space that has to stay free.
    pub(crate) fn needs(&self) -> Needs {
        let used = |id| self.trees.get(id).map_or(0, |tree: &TreeRoot| tree.item.bytes_used);
        let trees = [TreeId::EXTENT, TreeId::CSUM, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP];
        let reserved_for = trees.into_iter().fold(0_u64, |sum, id| sum.saturating_add(used(id)));
        let node_size = u64::from(self.superblock.node_size);
        Needs {
            subvolumes: self.trees.shared_subvolumes(),
            extent_nodes: used(TreeId::EXTENT) / node_size,
            checksum_size: self.superblock.checksum.size() as u64,
            global_reserve: global_reserve(reserved_for, self.superblock.compat_ro, node_size),
        }
    }
}
