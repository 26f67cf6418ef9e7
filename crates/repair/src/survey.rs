//! A walk over all trees: which blocks and which data they use, and which blocks can't be read.

use std::collections::HashMap;

use ubtrfs_format::items::{FileExtent, FileExtentKind};
use ubtrfs_format::{Generation, Header, Ino, ItemType, Key, Logical, Node, TreeId};
use ubtrfs_tree::{NodeRef, Root, Walk};

use crate::session::Session;

/// A tree block that a tree uses.
#[derive(Clone, Copy, Debug)]
pub struct BlockFacts {
    pub owner: TreeId,
    pub generation: Generation,
    pub level: u8,
    pub first_key: Key,
    /// Whether the tree of its header reaches it. Otherwise what it refers to has backrefs by its
    /// address.
    pub is_reached_by_owner: bool,
}

/// What uses a tree block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockUser {
    /// A tree, as its root.
    Root(TreeId),
    /// Another block.
    Parent(Logical),
}

/// A use of a data extent by an item of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataUse {
    pub extent: Logical,
    /// The length of the extent on disk, in bytes.
    pub length: u64,
    pub leaf: Logical,
    pub ino: Ino,
    /// The offset in the file at which the extent would start, modulo 2^64.
    pub offset: u64,
    pub generation: Generation,
}

/// The uses that the trees have.
#[derive(Debug, Default)]
pub struct Survey {
    pub blocks: HashMap<Logical, BlockFacts>,
    pub block_uses: Vec<(Logical, BlockUser)>,
    pub data_uses: Vec<DataUse>,
    /// Blocks that can't be read, with the tree in which each was found first.
    pub unreadable: HashMap<Logical, NodeRef>,
    /// The newest generation of a block.
    pub newest: Generation,
}

impl Survey {
    /// Walks all trees of the volume.
    pub fn of(session: &Session) -> Self {
        let mut survey = Self::default();
        for root in session.all_roots() {
            survey.walk(session, root);
        }
        survey
    }

    fn walk(&mut self, session: &Session, root: Root) {
        self.block_uses.push((root.bytenr, BlockUser::Root(root.owner)));
        session.tree(root, false).walk(&mut |at, block| {
            let tree = at.tree;
            if let Some(known) = self.blocks.get_mut(&at.bytenr) {
                // What is below it is known, too. It is visited once more if its owner comes later
                // than another tree that shares it.
                let is_news = known.owner == tree && !known.is_reached_by_owner;
                known.is_reached_by_owner |= known.owner == tree;
                return if is_news { Walk::Descend } else { Walk::Skip };
            }
            let (Ok(block), false) = (block, self.unreadable.contains_key(&at.bytenr)) else {
                self.unreadable.entry(at.bytenr).or_insert(*at);
                return Walk::Skip;
            };
            let (Ok(header), Ok(node)) = (block.header(), block.node()) else { return Walk::Skip };
            self.note(tree, &header, &node);
            Walk::Descend
        });
    }

    fn note(&mut self, tree: TreeId, header: &Header, node: &Node<'_>) {
        let facts = BlockFacts {
            owner: header.owner,
            generation: header.generation,
            level: header.level,
            first_key: node.first_key().unwrap_or_default(),
            is_reached_by_owner: header.owner == tree,
        };
        self.newest = self.newest.max(header.generation);
        self.blocks.insert(header.bytenr, facts);
        match node {
            Node::Internal(node) => {
                let users = node.iter().map(|child| (child.bytenr, BlockUser::Parent(header.bytenr)));
                self.block_uses.extend(users);
            }
            Node::Leaf(leaf) if holds_extents(tree) => {
                for (key, data) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA) {
                    self.data_uses.extend(data_use(&key, data, header.bytenr));
                }
            }
            Node::Leaf(_) => {}
        }
    }

    /// Returns whether some part of a tree that shares no blocks can't be read.
    pub fn is_unreadable(&self, tree: TreeId) -> bool {
        self.unreadable.values().any(|at| at.tree == tree)
    }

    /// Returns whether some part of the trees can't be read.
    pub fn is_incomplete(&self) -> bool {
        !self.unreadable.is_empty()
    }
}

/// Whether leaves of this tree use data. The root tree has the inodes of free-space caches.
fn holds_extents(tree: TreeId) -> bool {
    tree.is_subvolume() || [TreeId::ROOT, TreeId::DATA_RELOC, TreeId::RELOC].contains(&tree)
}

fn data_use(key: &Key, data: &[u8], leaf: Logical) -> Option<DataUse> {
    let extent = FileExtent::parse(data).ok()?;
    let FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, .. } = extent.kind else { return None };
    (disk_bytenr.0 != 0).then(|| DataUse {
        extent: disk_bytenr,
        length: disk_num_bytes,
        leaf,
        ino: Ino(key.objectid),
        offset: key.offset.wrapping_sub(offset),
        generation: extent.generation,
    })
}
