//! The metadata that has to stay free for the kernel's driver (invariant 25).
//!
//! The kernel reserves a *global block reserve* when it mounts, and uses it only for deletions; an
//! operation's own demand has to be free in addition. A volume whose metadata has less is full
//! before the first operation: orphans that a crash left can't be cleaned up, and the mount fails.
//! `btrfs filesystem usage` shows the size of the reserve, and so does
//! `/sys/fs/btrfs/*/allocation/global_rsv_size`.

use ubtrfs_format::CompatRo;

use crate::space::SpaceState;

/// The most bytes of the kernel's reserve.
const MAX_BYTES: u64 = 512 << 20;
/// The least number of nodes of the reserve, and the additional ones for optional trees.
const MIN_NODES: u64 = 240;
const FREE_SPACE_TREE_NODES: u64 = 112;
const BLOCK_GROUP_TREE_NODES: u64 = 16;
/// Nodes that a kernel's first operations reserve in addition: 16 for each item that may be
/// touched.
const FIRST_OPERATIONS_NODES: u64 = 64;

impl SpaceState {
    /// Returns how many bytes of metadata a kernel that mounts the volume needs to find free.
    pub(crate) fn kernel_needs(&self) -> u64 {
        self.reserved.needs.global_reserve + FIRST_OPERATIONS_NODES * self.node_size
    }
}

/// Returns how many bytes of metadata the kernel sets aside when it mounts a volume with these
/// features whose extent, checksum, free-space and block-group trees have `tree_bytes` bytes.
pub fn global_reserve(tree_bytes: u64, features: CompatRo, node_size: u64) -> u64 {
    let mut nodes = MIN_NODES;
    if features.contains(CompatRo::FREE_SPACE_TREE) {
        nodes += FREE_SPACE_TREE_NODES;
    }
    if features.contains(CompatRo::BLOCK_GROUP_TREE) {
        nodes += BLOCK_GROUP_TREE_NODES;
    }
    tree_bytes.max(nodes * node_size).min(MAX_BYTES)
}
