//! Blocks of trees, and what is known of a block before it is read. No caller gets a block that
//! does not fit the place where it was found (invariant 11).

use std::fmt;
use std::ops::Deref;

use ubtrfs_format::{ChecksumType, Generation, Header, Internal, Key, Logical, Node, NodeExpectation, TreeId, Uuid};
use ubtrfs_volume::{Buffer, SharedBuffer};

use crate::{Error, Result};

/// The properties that all nodes of a volume have in common.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Bytes of a node.
    pub node_size: u32,
    /// Bytes of a sector; addresses of nodes are multiples of it.
    pub sector_size: u32,
    /// The id that metadata carries.
    pub fsid: Uuid,
    /// The id of the chunk tree, which every header repeats.
    pub chunk_tree_uuid: Uuid,
    /// The checksum of nodes.
    pub checksum: ChecksumType,
}

/// The root of a tree, as a root item or the superblock gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The tree.
    pub owner: TreeId,
    /// Address of the root node.
    pub bytenr: Logical,
    /// Generation of the root node.
    pub generation: Generation,
    /// Level of the root node.
    pub level: u8,
}

/// The bytes of one node. Clones share them.
#[derive(Clone)]
pub struct Block(SharedBuffer);

impl Block {
    /// A block whose content `fill` writes. It has to write all of it, since the memory has what an
    /// earlier user left.
    pub(crate) fn filled(
        node_size: usize,
        fill: impl FnOnce(&mut [u8]) -> ubtrfs_format::Result<()>,
    ) -> ubtrfs_format::Result<Self> {
        let mut buffer = Buffer::for_reading(node_size);
        fill(&mut buffer)?;
        Ok(Self(buffer.share()))
    }

    /// A block of zeros.
    #[cfg(test)]
    pub(crate) fn zeroed(node_size: usize) -> Self {
        Self(Buffer::zeroed(node_size).share())
    }

    /// Returns the bytes for writing. They are copied first if they are shared.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.to_mut()
    }

    /// Returns the bytes for a write to a device.
    pub fn share(&self) -> SharedBuffer {
        self.0.clone()
    }

    /// Returns the block's header.
    pub fn header(&self) -> ubtrfs_format::Result<Header> {
        Header::parse(self)
    }

    /// Returns the block as leaf or internal node.
    pub fn node(&self) -> ubtrfs_format::Result<Node<'_>> {
        Node::view(self)
    }

    /// Returns the offset at which `part`, a slice of this block, starts.
    pub(crate) fn offset_of(&self, part: &[u8]) -> usize {
        part.as_ptr().addr().wrapping_sub(self.as_ptr().addr())
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Block").field(&self.header()).finish()
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Block {
    /// Takes the memory as it is.
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

/// The place of a node and the properties that it must have, as known from its parent.
///
/// Levels descend by one from parent to child and the key ranges of siblings do not overlap, so
/// that a walk of any image, however hostile, meets no node twice and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRef {
    /// The tree that is walked. Subvolumes share nodes, so it need not be the owner in the header.
    pub tree: TreeId,
    /// The node's address.
    pub bytenr: Logical,
    /// The node's generation.
    pub generation: Generation,
    /// The node's level.
    pub level: u8,
    /// The node's first key; `None` for a root.
    pub first_key: Option<Key>,
    /// The key below which all of the node's keys are, if it has a right neighbour.
    pub upper: Option<Key>,
}

impl NodeRef {
    /// The root node.
    pub fn root(root: &Root) -> Self {
        Self {
            tree: root.owner,
            bytenr: root.bytenr,
            generation: root.generation,
            level: root.level,
            first_key: None,
            upper: None,
        }
    }

    /// Returns the child in `slot` of this node, whose content is `node`.
    pub fn child(&self, node: &Internal<'_>, slot: usize) -> Option<Self> {
        let child = node.child(slot)?;
        Some(Self {
            tree: self.tree,
            bytenr: child.bytenr,
            generation: child.generation,
            level: self.level.checked_sub(1)?,
            first_key: Some(child.key),
            upper: node.key(slot + 1).or(self.upper),
        })
    }

    /// Returns whether both are the same node. An address is reused only by a later generation.
    pub(crate) fn is_same_node(&self, other: &Self) -> bool {
        (self.bytenr, self.generation, self.level) == (other.bytenr, other.generation, other.level)
    }

    /// Returns what the source of blocks has to check.
    pub(crate) fn expectation(&self, fsid: Uuid) -> NodeExpectation {
        NodeExpectation {
            bytenr: self.bytenr,
            level: Some(self.level),
            generation: Some(self.generation),
            owner: (!accepts_other_owners(self.tree)).then_some(self.tree),
            first_key: self.first_key,
            fsid,
        }
    }

    /// Views `block`, whose own structure has been checked, after checking that it fits this
    /// position in the tree.
    pub fn view<'a>(&self, block: &'a [u8]) -> Result<Node<'a>> {
        let header = Header::parse(block).map_err(|problem| self.bad(problem))?;
        if header.level != self.level {
            return Err(self.bad(ubtrfs_format::Error::WrongLevel { expected: self.level, found: header.level }));
        }
        if header.generation != self.generation {
            let (expected, found) = (self.generation, header.generation);
            return Err(self.bad(ubtrfs_format::Error::WrongGeneration { expected, found }));
        }
        if !owner_fits(self.tree, header.owner) {
            return Err(self.bad(ubtrfs_format::Error::WrongOwner { expected: self.tree, found: header.owner }));
        }
        let node = Node::view(block).map_err(|problem| self.bad(problem))?;
        let (first, last) = match &node {
            Node::Leaf(leaf) => (leaf.key(0), leaf.key(leaf.len().wrapping_sub(1))),
            Node::Internal(internal) => (internal.key(0), internal.key(internal.len().wrapping_sub(1))),
        };
        if self.first_key.is_some() && self.first_key != first {
            return Err(self.bad(ubtrfs_format::Error::WrongFirstKey));
        }
        if let (Some(upper), Some(key)) = (self.upper, last)
            && key >= upper
        {
            // Invariant 11: the keys of a node are below those of its right neighbour in the
            // parent.
            return Err(Error::KeyBeyondRange { tree: self.tree, bytenr: self.bytenr, key });
        }
        Ok(node)
    }

    pub(crate) fn bad(&self, problem: ubtrfs_format::Error) -> Error {
        Error::Block { tree: self.tree, bytenr: self.bytenr, problem }
    }
}

/// Returns whether nodes of `tree` may have another tree as owner.
fn accepts_other_owners(tree: TreeId) -> bool {
    tree.is_subvolume() || tree == TreeId::LOG || tree == TreeId::RELOC
}

fn owner_fits(tree: TreeId, owner: TreeId) -> bool {
    if tree.is_subvolume() {
        owner.is_subvolume() || owner == TreeId::RELOC
    } else {
        owner == tree || accepts_other_owners(tree)
    }
}
