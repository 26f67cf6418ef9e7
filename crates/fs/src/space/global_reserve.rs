//! What metadata has to stay free for the kernel's driver (invariant 25).
//!
//! The kernel reserves a *global block reserve* when it mounts, and uses it only for deletions; an
//! operation's own demand has to be free in addition. A volume whose metadata has less is full
//! before the first operation: orphans that a crash left can't be cleaned up, and the mount fails.
//! `btrfs filesystem usage` shows the size of the reserve, and so does
//! `/sys/fs/btrfs/*/allocation/global_rsv_size`.

use ubtrfs_format::{CompatRo, TreeId};

use super::allocator::SpaceInner;
use super::demand::Needs;
use crate::committed::{Committed, TreeRoot};

/// The kernel's reserve is never larger.
const MOST: u64 = 512 << 20;
/// Its least number of nodes, and the additional ones for optional trees.
const LEAST_NODES: u64 = 240;
const FREE_SPACE_TREE_NODES: u64 = 112;
const BLOCK_GROUP_TREE_NODES: u64 = 16;
/// Nodes that a kernel's first operations reserve in addition: 16 for each item that may be
/// touched.
const FIRST_OPERATIONS_NODES: u64 = 64;

impl SpaceInner {
    /// Bytes of metadata that a kernel that mounts the volume needs to find free.
    pub(super) fn kernel_needs(&self) -> u64 {
        self.needs.global_reserve + FIRST_OPERATIONS_NODES * self.node_size
    }
}

impl Committed {
    /// What changes need, and what has to stay free.
    pub(crate) fn needs(&self) -> Needs {
        let subvolumes = self.subvolumes().filter(|subvolume| subvolume.item.last_snapshot.0 != 0).count();
        let extent_bytes = self.trees.get(&TreeId::EXTENT).map_or(0, |tree| tree.item.bytes_used);
        let extent_nodes = extent_bytes / u64::from(self.superblock.node_size);
        Needs {
            subvolumes: subvolumes as u64,
            extent_nodes,
            checksum_size: self.superblock.checksum.size() as u64,
            global_reserve: self.global_reserve(),
        }
    }

    /// Bytes of metadata that the kernel sets aside when it mounts this.
    pub(crate) fn global_reserve(&self) -> u64 {
        let used = |id| self.trees.get(&id).map_or(0, |tree: &TreeRoot| tree.item.bytes_used);
        let trees = [TreeId::EXTENT, TreeId::CSUM, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP];
        let bytes = trees.into_iter().fold(0_u64, |sum, id| sum.saturating_add(used(id)));
        let features = self.superblock.compat_ro;
        let mut nodes = LEAST_NODES;
        if features.contains(CompatRo::FREE_SPACE_TREE) {
            nodes += FREE_SPACE_TREE_NODES;
        }
        if features.contains(CompatRo::BLOCK_GROUP_TREE) {
            nodes += BLOCK_GROUP_TREE_NODES;
        }
        let node_size = u64::from(self.superblock.node_size);
        bytes.max(nodes * node_size).min(MOST)
    }
}
