//! The source of space for a merge's nodes, which also gets freed nodes back.

use ubtrfs_format::{Generation, Header, Logical, TreeId};

use crate::block::Block;
use crate::dirty::DirtyNodes;
use crate::error::{Error, Result};

/// Where nodes get their space.
pub trait NodeAllocator {
    /// The address of free space for a node of `owner` at `level`. The space stays the node's until
    /// it is freed.
    fn allocate(&mut self, owner: TreeId, level: u8) -> Result<Logical>;

    /// The tree no longer uses this node; others may.
    fn free(&mut self, node: FreedNode) -> Result<()>;

    /// `tree` is about to replace this node, which other trees may use as well, by a copy: what its
    /// entries point to gets the references that the two will have. Ancestors come before their
    /// descendants, each node once, before it is freed.
    ///
    /// An allocator of trees without snapshots need not know how: [`Error::Shared`].
    fn unshare(&mut self, tree: TreeId, node: &Block) -> Result<()> {
        let Header { bytenr, generation, .. } =
            node.header().map_err(|problem| Error::Block { tree, bytenr: Logical(0), problem })?;
        Err(Error::Shared { tree, bytenr, generation })
    }

    /// This merge changes none of the leaves that are in `dirty` now. An allocator that can't keep
    /// them all in memory may [take]( DirtyNodes::take_leaves) them and submit them; they have to
    /// be readable then, through the cache or from its source.
    fn leaves_are_done(&mut self, dirty: &mut DirtyNodes) -> Result<()> {
        let _ = dirty;
        Ok(())
    }
}

/// A node that its tree no longer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedNode {
    /// Its address.
    pub bytenr: Logical,
    /// The tree that used it.
    pub tree: TreeId,
    /// Its generation.
    pub generation: Generation,
    /// Its level.
    pub level: u8,
    /// It was allocated in this commit and never submitted: no superblock and no log has ever
    /// referred to it.
    pub born_in_this_commit: bool,
}
