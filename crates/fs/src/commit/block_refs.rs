//! References to tree blocks that several trees may use, and what becomes of them when one tree
//! replaces its own.
//!
//! A block's entries lead to children (blocks, or data from a leaf), and each child counts one
//! reference for it. Whose name that carries depends on the block's flags: without `FULL_BACKREF`
//! it is the tree's that owns the block by its header; with it, it is the block's address. Before a
//! tree replaces a block by a copy, the references are set right for both:
//!
//! | the block | gets the copy's children | and the old block's |
//! |---|---|---|
//! | is used by others too, is this tree's, without the flag | references that were there | new ones by address; it gets the flag |
//! | is used by others too, otherwise | new ones by tree | those that were there |
//! | is used by this tree alone, with the flag | new ones by tree | lose theirs by address |
//! | is used by this tree alone, without the flag | references that were there | – |
//!
//! Then the tree gives up its own reference to the old block.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::ExtentFlags;
use ubtrfs_format::{ItemType, Key, Logical, Node, TreeId};
use ubtrfs_tree::{Block, EditBatch, FreedNode, Snapshot};

use super::data_refs::{By, DataRefDeltas};
use super::extent_refs::{ExtentRefs, User};
use crate::error::{Error, Result};

/// What a commit changes of the references to blocks that the committed trees have.
pub(super) struct BlockRefs<'a> {
    extent_tree: &'a Snapshot,
    node_size: usize,
    blocks: BTreeMap<Logical, ExtentRefs>,
    /// Blocks whose entries lead to what has the right references, though others use the block too.
    unshared: BTreeSet<Logical>,
    /// What unsharing of leaves changes of the references to data.
    pub(super) data: DataRefDeltas,
}

impl<'a> BlockRefs<'a> {
    pub(super) fn new(extent_tree: &'a Snapshot, node_size: usize) -> Self {
        Self {
            extent_tree,
            node_size,
            blocks: BTreeMap::new(),
            unshared: BTreeSet::new(),
            data: DataRefDeltas::default(),
        }
    }

    fn block(&mut self, bytenr: Logical, level: u8) -> Result<&mut ExtentRefs> {
        let entry = match self.blocks.entry(bytenr) {
            std::collections::btree_map::Entry::Occupied(found) => return Ok(found.into_mut()),
            std::collections::btree_map::Entry::Vacant(vacant) => vacant,
        };
        let skinny = Key::new(bytenr.0, ItemType::METADATA_ITEM, level.into());
        let full = Key::new(bytenr.0, ItemType::EXTENT_ITEM, self.node_size as u64);
        let found = match ExtentRefs::load(self.extent_tree, skinny)? {
            Some(found) => Some(found),
            None => ExtentRefs::load(self.extent_tree, full)?,
        };
        let found = found.ok_or(Error::MissingItem { tree: TreeId::EXTENT, key: skinny })?;
        if found.item.flags & ExtentFlags::TREE_BLOCK == 0 {
            return Err(found.inconsistent("a tree block is in use as data"));
        }
        Ok(entry.insert(found))
    }

    fn change(&mut self, bytenr: Logical, level: u8, user: User, count: i64) -> Result<()> {
        let (tree, node_size) = (self.extent_tree, self.node_size);
        self.block(bytenr, level)?.change(Some(tree), user, count, node_size)
    }

    /// Changes the references to all that the entries of a block lead to.
    pub(super) fn change_children(&mut self, node: &Node<'_>, level: u8, by: By, count: i64) -> Result<()> {
        match node {
            Node::Leaf(leaf) => self.data.add_leaf(leaf, by, count),
            Node::Internal(node) => {
                let user = match by {
                    By::Tree(tree) => User::Tree(tree),
                    By::Address(parent) => User::Block(parent),
                };
                node.iter().try_for_each(|child| self.change(child.bytenr, level.saturating_sub(1), user, count))
            }
        }
    }

    /// `tree` is about to replace a block: see above. Its ancestors must have been unshared.
    /// Returns whether others use the block too.
    pub(super) fn unshare(&mut self, tree: TreeId, block: &Block) -> Result<bool> {
        let header = block.header()?;
        let (bytenr, level) = (header.bytenr, header.level);
        let refs = self.block(bytenr, level)?;
        let (full, shared) = (refs.item.flags & ExtentFlags::FULL_BACKREF != 0, refs.item.refs > 1);
        let (by_tree, by_address) = (By::Tree(tree), By::Address(bytenr));
        match (shared, full) {
            (true, false) if header.owner == tree => {
                refs.item.flags |= ExtentFlags::FULL_BACKREF;
                self.change_children(&block.node()?, level, by_address, 1)?;
            }
            (true, _) => self.change_children(&block.node()?, level, by_tree, 1)?,
            (false, true) => {
                refs.item.flags &= !ExtentFlags::FULL_BACKREF;
                self.change_children(&block.node()?, level, by_tree, 1)?;
                self.change_children(&block.node()?, level, by_address, -1)?;
            }
            (false, false) if header.owner == tree => {}
            (false, false) => {
                let what = "a block of another tree does not refer to its children by address";
                return Err(refs.inconsistent(what));
            }
        }
        self.unshared.insert(bytenr);
        Ok(shared)
    }

    /// A tree no longer uses a block; returns whether nobody does.
    pub(super) fn free(&mut self, node: &FreedNode) -> Result<bool> {
        self.change(node.bytenr, node.level, User::Tree(node.tree), -1)?;
        let refs = self.block(node.bytenr, node.level)?;
        if refs.is_unused() && refs.item.flags & ExtentFlags::FULL_BACKREF != 0 {
            return Err(refs.inconsistent("a block goes whose children are referred to by its address"));
        }
        let unused = refs.is_unused();
        if !unused && !self.unshared.contains(&node.bytenr) {
            let refs = self.block(node.bytenr, node.level)?;
            return Err(refs.inconsistent("a block is in use by others that came after the last snapshot"));
        }
        Ok(unused)
    }

    /// Takes the extent tree's edits for all that changed since the last call.
    pub(super) fn take_edits(&mut self, edits: &mut EditBatch) {
        for refs in std::mem::take(&mut self.blocks).into_values() {
            refs.emit(edits);
        }
    }
}
