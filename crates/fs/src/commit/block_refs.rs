//! References to tree blocks that several trees may share, and how they change when one tree
//! replaces such a block by a copy.
//!
//! A block points to children (blocks, or data extents from a leaf), and each child has one
//! reference for it. The block's flags decide what this reference names: without `FULL_BACKREF` the
//! tree that owns the block by its header, with the flag the block's address. Before a tree
//! replaces a block by a copy, the references of the children are adjusted for both:
//!
//! | the block | gets the copy's children | and the old block's |
//! |---|---|---|
//! | is used by others too, is this tree's, without the flag | references that were there | new ones by address; it gets the flag |
//! | is used by others too, otherwise | new ones by tree | those that were there |
//! | is used by this tree alone, with the flag | new ones by tree | lose theirs by address |
//! | is used by this tree alone, without the flag | references that were there | – |
//!
//! Then the tree drops its own reference to the old block. So the extent tree has exactly the
//! references that a walk over all trees finds (invariant 20).

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::ExtentFlags;
use ubtrfs_format::{ItemType, Key, Logical, Node, TreeId};
use ubtrfs_tree::{Block, EditBatch, FreedNode, Snapshot};

use super::data_refs::{By, DataRefDeltas};
use super::extent_refs::{ExtentRefs, User};
use crate::error::{Error, Result};

/// The changes that a commit makes to the references of blocks that the committed trees have.
pub(super) struct BlockRefs<'a> {
    extent_tree: &'a Snapshot,
    node_size: usize,
    blocks: BTreeMap<Logical, ExtentRefs>,
    /// Shared blocks whose children have been adjusted already.
    unshared: BTreeSet<Logical>,
    /// The blocks of `blocks` that this commit created and the extent tree does not contain yet.
    new: BTreeSet<Logical>,
    /// The changes of references to data that the unsharing of leaves makes.
    pub(super) data: DataRefDeltas,
}

impl<'a> BlockRefs<'a> {
    pub(super) fn new(extent_tree: &'a Snapshot, node_size: usize) -> Self {
        Self {
            extent_tree,
            node_size,
            blocks: BTreeMap::new(),
            unshared: BTreeSet::new(),
            new: BTreeSet::new(),
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

    /// Adds a node of this commit that becomes shared. From here on its references are counted
    /// here.
    pub(super) fn add_new(&mut self, refs: ExtentRefs, bytenr: Logical) {
        self.blocks.insert(bytenr, refs);
        self.new.insert(bytenr);
    }

    /// Whether the references of a node of this commit are counted here.
    pub(super) fn is_new(&self, bytenr: Logical) -> bool {
        self.new.contains(&bytenr)
    }

    /// Moves a block to another address, with all of its references. `gone` is what the extent tree
    /// gets for the old address, `refs` for the new one.
    pub(super) fn move_block(&mut self, from: Logical, gone: ExtentRefs, to: Logical, refs: ExtentRefs) {
        self.blocks.insert(from, gone);
        self.add_new(refs, to);
    }

    /// Replaces one user of a block that stays where it is by another one.
    pub(super) fn change_user(&mut self, bytenr: Logical, level: u8, gone: User, new: User) -> Result<()> {
        self.change(bytenr, level, new, 1)?;
        self.change(bytenr, level, gone, -1)
    }

    /// Takes the new nodes that became shared, each with whether it has users.
    pub(super) fn take_new(&mut self) -> Vec<(Logical, bool)> {
        let new = std::mem::take(&mut self.new);
        let is_used = |bytenr: &Logical| self.blocks.get(bytenr).is_some_and(|refs| !refs.is_unused());
        new.into_iter().map(|bytenr| (bytenr, is_used(&bytenr))).collect()
    }

    /// Returns the number of users of a block, and whether its children are referred to by its
    /// address.
    pub(super) fn users(&mut self, bytenr: Logical, level: u8) -> Result<(u64, bool)> {
        let refs = self.block(bytenr, level)?;
        Ok((refs.item.refs, refs.item.flags & ExtentFlags::FULL_BACKREF != 0))
    }

    /// Drops a reference to a block whose children have been handled. Returns whether it has no
    /// user any more.
    pub(super) fn drop_reference(&mut self, bytenr: Logical, level: u8, user: User) -> Result<bool> {
        self.change(bytenr, level, user, -1)?;
        Ok(self.block(bytenr, level)?.is_unused())
    }

    /// Lets the children of a block be referred to by its address from here on. The block was made
    /// by `tree`, which is dropped, and others use it.
    pub(super) fn refer_by_address(&mut self, tree: TreeId, block: &Block) -> Result<()> {
        let header = block.header()?;
        self.block(header.bytenr, header.level)?.item.flags |= ExtentFlags::FULL_BACKREF;
        self.change_children(&block.node()?, header.level, By::Address(header.bytenr), 1)?;
        self.change_children(&block.node()?, header.level, By::Tree(tree), -1)
    }

    fn change(&mut self, bytenr: Logical, level: u8, user: User, count: i64) -> Result<()> {
        let (tree, node_size) = (self.extent_tree, self.node_size);
        self.block(bytenr, level)?.change(Some(tree), user, count, node_size)
    }

    /// Changes the references to all children of a block.
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

    /// Adjusts the references of a block that `tree` is about to replace, by the table above. Its
    /// ancestors must have been unshared. Returns whether others use the block too.
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
                // By invariant 20 this does not happen, so the extent tree is damaged.
                let what = "a block of another tree does not refer to its children by address";
                return Err(refs.inconsistent(what));
            }
        }
        self.unshared.insert(bytenr);
        Ok(shared)
    }

    /// Drops a tree's reference to a block. Returns whether no tree uses it any more.
    pub(super) fn free(&mut self, node: &FreedNode) -> Result<bool> {
        self.change(node.bytenr, node.level, User::Tree(node.tree), -1)?;
        let refs = self.block(node.bytenr, node.level)?;
        if refs.is_unused() && refs.item.flags & ExtentFlags::FULL_BACKREF != 0 {
            // By invariant 20 such a block was unshared before it was dropped.
            return Err(refs.inconsistent("a block goes whose children are referred to by its address"));
        }
        let unused = refs.is_unused();
        if !unused && !self.unshared.contains(&node.bytenr) {
            let refs = self.block(node.bytenr, node.level)?;
            // By invariant 20 a shared block is unshared before it is dropped. Here the references
            // of its children were not adjusted for the other users.
            return Err(refs.inconsistent("a block is in use by others that came after the last snapshot"));
        }
        Ok(unused)
    }

    /// Takes the extent tree's edits for all changes since the last call.
    pub(super) fn take_edits(&mut self, edits: &mut EditBatch) {
        for refs in std::mem::take(&mut self.blocks).into_values() {
            refs.emit(edits);
        }
    }
}
