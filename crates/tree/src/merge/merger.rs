//! The nodes that a merge removes from a tree, and those that it writes in their place.

use ubtrfs_format::{BACKREF_REV_MIXED, ChildPointer, Header, Key, Logical, NodeFlags, TreeId};

use super::allocator::{FreedNode, NodeAllocator};
use super::contents::Contents;
use super::unshare::SharedPath;
use crate::block::{Block, NodeRef};
use crate::cache::NodeCache;
use crate::dirty::DirtyNodes;
use crate::error::{Error, Result};

/// A child after the edits below it have been merged. The type is small, since most children of a
/// node are only passed on.
pub(super) enum ChildUpdate {
    /// The child in this slot of the parent stays as it is.
    Kept(usize),
    /// Entries that are still to be written into nodes.
    Rewritten(Box<Rewrite>),
}

/// Entries of one level that will become one or more nodes, or none.
pub(super) struct Rewrite {
    pub(super) contents: Contents,
    /// Addresses of this commit's nodes that held the entries. The new nodes use them first.
    pub(super) reusable: Vec<Logical>,
    /// The entries are at the right edge of the tree, and new ones were only appended.
    pub(super) tail: bool,
}

pub(super) struct Merger<'a> {
    pub(super) cache: &'a NodeCache,
    pub(super) owner: TreeId,
    pub(super) dirty: &'a mut DirtyNodes,
    pub(super) allocator: &'a mut dyn NodeAllocator,
    pub(super) shared: SharedPath,
    pub(super) removed: &'a mut dyn FnMut(&Key, &[u8]),
    pub(super) node_size: usize,
}

impl Merger<'_> {
    pub(super) fn read(&self, at: &NodeRef) -> Result<Block> {
        self.dirty.find(at).map_or_else(|| self.cache.fetch(at), |block| Ok(block.clone()))
    }

    /// Removes a node from the tree because its entries change. Returns the address of a node of
    /// this commit, for its successors. Any other node is freed, after what its entries point to
    /// has got its references.
    pub(super) fn retire(&mut self, at: &NodeRef, block: &Block) -> Result<Vec<Logical>> {
        let owner = block.header().map_err(|problem| at.bad(problem))?.owner;
        let born_in_this_commit = self.dirty.find(at).is_some();
        if born_in_this_commit {
            if owner != self.owner {
                return Err(Error::Shared { tree: self.owner, bytenr: at.bytenr, generation: at.generation });
            }
            return Ok(vec![at.bytenr]);
        }
        self.shared.unshare(self.owner, self.allocator)?;
        let (tree, bytenr, generation, level) = (self.owner, at.bytenr, at.generation, at.level);
        self.allocator.free(FreedNode { bytenr, tree, generation, level, born_in_this_commit })?;
        Ok(Vec::new())
    }

    /// Frees addresses of this commit that no node needs any more.
    pub(super) fn release(&mut self, reusable: impl IntoIterator<Item = Logical>) -> Result<()> {
        for bytenr in reusable {
            let Some(Ok(header)) = self.dirty.remove(bytenr).map(|block| block.header()) else { continue };
            self.allocator.free(FreedNode {
                bytenr,
                tree: self.owner,
                generation: header.generation,
                level: header.level,
                born_in_this_commit: true,
            })?;
        }
        Ok(())
    }

    /// Writes entries into as many nodes of `level` as they need.
    pub(super) fn write(&mut self, level: u8, open: Rewrite) -> Result<Vec<ChildPointer>> {
        let generation = self.dirty.generation();
        let Rewrite { mut contents, reusable, tail } = open;
        let groups = contents.partition(self.node_size, tail);
        let mut reusable = reusable.into_iter();
        let mut pointers = Vec::with_capacity(groups.len());
        for group in groups {
            let bytenr = match reusable.next() {
                Some(bytenr) => bytenr,
                None => self.allocator.allocate(self.owner, level)?,
            };
            let header = Header {
                fsid: self.dirty.geometry().fsid,
                bytenr,
                flags: NodeFlags::WRITTEN | BACKREF_REV_MIXED,
                chunk_tree_uuid: self.dirty.geometry().chunk_tree_uuid,
                generation,
                owner: self.owner,
                nritems: group.len() as u32,
                level,
            };
            let key = contents.key(group.start).unwrap_or(Key::MIN);
            let block = contents.build(group, header, self.node_size);
            let block = block.map_err(|problem| Error::Block { tree: self.owner, bytenr, problem })?;
            self.dirty.insert(bytenr, block);
            pointers.push(ChildPointer { key, bytenr, generation });
        }
        self.release(reusable)?;
        Ok(pointers)
    }
}
