//! The source of space for a merge's nodes. It also gets the freed nodes.

use ubtrfs_format::{Generation, Header, Logical, TreeId};

use crate::block::Block;
use crate::dirty::DirtyNodes;
use crate::error::{Error, Result};

/// Allocates and frees the space of nodes.
pub trait NodeAllocator {
    /// Allocates space for a node of `owner` at `level`, and returns its address. The space belongs
    /// to the node until it is freed.
    fn allocate(&mut self, owner: TreeId, level: u8) -> Result<Logical>;

    /// Frees a node that the tree no longer uses; other trees may.
    fn free(&mut self, node: FreedNode) -> Result<()>;

    /// Unshares a node that `tree` is about to replace by a copy and that other trees may use as
    /// well: sets the references of what its entries point to, as needed for both the node and the
    /// copy. Ancestors come before their descendants, and each node comes once, before it is freed.
    ///
    /// An allocator for trees without snapshots need not implement this: it fails with
    /// [`Error::Shared`].
    fn unshare(&mut self, tree: TreeId, node: &Block) -> Result<()> {
        let Header { bytenr, generation, .. } =
            node.header().map_err(|problem| Error::Block { tree, bytenr: Logical(0), problem })?;
        Err(Error::Shared { tree, bytenr, generation })
    }

    /// Called when this merge changes none of the leaves any more that are in `dirty` now. An
    /// allocator that can't keep them all in memory may [take](DirtyNodes::take_leaves) them and
    /// submit them. They have to be readable then, through the cache or from its source.
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
