//! Nodes of the commit in progress.

use std::collections::BTreeMap;

use ubtrfs_format::{
    BACKREF_REV_MIXED, ChecksumType, Generation, Header, Key, LeafBuilder, Logical, Node, NodeFlags, TreeId,
};

use crate::tree::{Reader, Tree};
use crate::{Block, Error, Geometry, NodeCache, NodeRef, Result, Root};

/// Nodes that this commit has created in all its trees and not yet submitted. Another change of
/// such a node rewrites it in place.
#[derive(Debug)]
pub struct DirtyNodes {
    generation: Generation,
    geometry: Geometry,
    nodes: BTreeMap<Logical, Block>,
    /// How many of them are leaves.
    leaves: usize,
}

impl DirtyNodes {
    /// An empty set of nodes of this generation.
    pub fn new(generation: Generation, geometry: Geometry) -> Self {
        Self { generation, geometry, nodes: BTreeMap::new(), leaves: 0 }
    }

    /// Returns the commit's generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the properties that all nodes have in common.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns how many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns how many leaves there are.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// Returns whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the node at this address. Its checksum is not set yet.
    pub fn get(&self, bytenr: Logical) -> Option<&Block> {
        self.nodes.get(&bytenr)
    }

    /// Returns all nodes by ascending address, with their checksums set, ready to be written and to
    /// be inserted into the cache.
    pub fn into_sealed(self) -> Vec<(Logical, Block)> {
        sealed(self.nodes, self.geometry.checksum)
    }

    /// Takes the leaves out, as [`into_sealed`](Self::into_sealed) does with all nodes. Later
    /// merges into their trees treat them as submitted nodes: they replace them instead of
    /// rewriting them in place.
    pub fn take_leaves(&mut self) -> Vec<(Logical, Block)> {
        let (leaves, others) = std::mem::take(&mut self.nodes).into_iter().partition(|(_, block)| is_leaf(block));
        (self.nodes, self.leaves) = (others, 0);
        sealed(leaves, self.geometry.checksum)
    }

    /// Takes all nodes out, as [`take_leaves`](Self::take_leaves) does with the leaves. A snapshot
    /// may then share them, so nothing may change them any more.
    pub fn take_all(&mut self) -> Vec<(Logical, Block)> {
        self.leaves = 0;
        sealed(std::mem::take(&mut self.nodes), self.geometry.checksum)
    }

    /// Adds a copy of a node at another address, as a node of `owner` and of this commit. Its
    /// entries stay.
    pub fn insert_copy(&mut self, node: &Block, bytenr: Logical, owner: TreeId) -> Result<()> {
        let bad = |problem| Error::Block { tree: owner, bytenr, problem };
        let header = node.header().map_err(bad)?;
        let header = Header {
            bytenr,
            owner,
            generation: self.generation,
            flags: NodeFlags::WRITTEN | BACKREF_REV_MIXED,
            fsid: self.geometry.fsid,
            chunk_tree_uuid: self.geometry.chunk_tree_uuid,
            ..header
        };
        let mut copy = node.clone();
        header.put(copy.bytes_mut());
        self.insert(bytenr, copy);
        Ok(())
    }

    /// Returns the node that a pointer references, if it is one of these.
    pub(crate) fn find(&self, at: &NodeRef) -> Option<&Block> {
        if at.generation == self.generation { self.nodes.get(&at.bytenr) } else { None }
    }

    pub(crate) fn insert(&mut self, bytenr: Logical, block: Block) {
        self.leaves += usize::from(is_leaf(&block));
        let replaced = self.nodes.insert(bytenr, block);
        self.leaves -= usize::from(replaced.as_ref().is_some_and(is_leaf));
    }

    pub(crate) fn remove(&mut self, bytenr: Logical) -> Option<Block> {
        let removed = self.nodes.remove(&bytenr);
        self.leaves -= usize::from(removed.as_ref().is_some_and(is_leaf));
        removed
    }
}

fn is_leaf(block: &Block) -> bool {
    block.header().is_ok_and(|header| header.level == 0)
}

fn sealed(nodes: BTreeMap<Logical, Block>, checksum: ChecksumType) -> Vec<(Logical, Block)> {
    let seal = |(at, mut block): (Logical, Block)| {
        LeafBuilder::seal(block.bytes_mut(), checksum);
        (at, block)
    };
    nodes.into_iter().map(seal).collect()
}

/// Reads the commit's own nodes from memory, and others through the cache.
#[derive(Clone, Copy, Debug)]
pub struct Working<'a> {
    dirty: &'a DirtyNodes,
    cache: &'a NodeCache,
}

impl Reader for Working<'_> {
    fn fetch(&self, at: &NodeRef) -> Result<Block> {
        self.dirty.find(at).map_or_else(|| self.cache.fetch(at), |block| Ok(block.clone()))
    }
}

/// A tree during a commit.
pub type WorkingTree<'a> = Tree<Working<'a>>;

impl<'a> WorkingTree<'a> {
    /// The tree under `root`, whose new nodes are in `dirty` and whose old ones come from `cache`.
    pub fn new(cache: &'a NodeCache, dirty: &'a DirtyNodes, root: Root) -> Self {
        Self::with_reader(Working { dirty, cache }, root)
    }
}

/// Overwrites an item with as many bytes as it has, in a node of this commit. No node moves, so
/// nothing else changes.
pub fn patch_in_place(root: &Root, key: &Key, bytes: &[u8], dirty: &mut DirtyNodes) -> Result<()> {
    let not_in_place = || Error::NotInPlace { tree: root.owner, key: *key };
    let mut at = NodeRef::root(root);
    let place = loop {
        let block = dirty.find(&at).ok_or_else(not_in_place)?;
        match at.view(block)? {
            Node::Leaf(leaf) => {
                let old = leaf.search(key).ok().and_then(|slot| leaf.data(slot)).ok_or_else(not_in_place)?;
                if old.len() != bytes.len() {
                    return Err(not_in_place());
                }
                let start = block.offset_of(old);
                break start..start + old.len();
            }
            Node::Internal(node) => at = at.child(&node, node.slot_for(key)).ok_or_else(not_in_place)?,
        }
    };
    let leaf = dirty.nodes.get_mut(&at.bytenr).ok_or_else(not_in_place)?;
    leaf.bytes_mut().get_mut(place).ok_or_else(not_in_place)?.copy_from_slice(bytes);
    Ok(())
}
