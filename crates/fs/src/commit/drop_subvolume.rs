//! The trees of deleted subvolumes, dropped a part in each commit.
//!
//! The walk goes from left to right. A block that the tree alone uses is freed after what it points
//! to; of one that others use, too, the tree gives its reference back. Where the tree has made such
//! a block, what that points to is referred to in the name of the tree: all of these references are
//! moved to the blocks' addresses first, down to the leaves. The subtree may be large, so that work
//! is divided, too, also by the kernel: a block whose references were moved says so by its flags.
//!
//! How far a commit has come is in the root item: `drop_progress` is the key of the next child, in
//! the node of level `drop_level` on the way to it. What lies to the left is gone, though the nodes
//! on the way still point there. The kernel goes on from there, and so does this from where the
//! kernel was.
//!
//! No commit drops a tree that it or a later one merges into (invariant 66).
//!
//! A block of the tree that can't be read ends its dropping for this mount: what is gone by then is
//! noted as after any commit, and the rest waits for the next mount. Nothing that is alive is lost
//! with it, so it is no reason to fail the commit.

use ubtrfs_format::items::RootFlags;
use ubtrfs_format::{Generation, ItemType, Key, Node, TreeId, objectid};
use ubtrfs_tree::{Block, Error as TreeError, NodeRef, Reader};

use super::data_refs::By;
use super::extent_refs::User;
use super::merge_trees::Merging;
use crate::error::{Error, Result, Step};

/// Whether a part of the tree is dropped.
pub(super) enum Progress {
    Done,
    /// The budget is used up, or a block can't be read: the next child is the one with this key, in
    /// a node of this level.
    Stopped(Key, u8),
}

/// A tree that is being dropped.
pub(super) struct Dropped {
    tree: TreeId,
    /// Blocks of earlier generations were made before the tree was: they are of others. Those of
    /// this one are of the tree or, if it is a snapshot, of its source: their headers tell.
    made: Generation,
    /// Nodes and references that may yet be changed; those of one node more at the most.
    budget: u64,
    /// Why a block of it can't be read.
    unreadable: Option<Error>,
}

impl Dropped {
    /// With this budget.
    pub(super) fn new(tree: TreeId, made: Generation, budget: u64) -> Self {
        Self { tree, made, budget, unreadable: None }
    }

    /// Why a block of it can't be read, if one can't.
    pub(super) fn into_error(self) -> Option<Error> {
        self.unreadable
    }
}

impl Merging<'_> {
    /// Drops deleted subvolumes as far as the transaction may.
    pub(super) fn drop_subvolumes(&mut self) -> Result<()> {
        let mut budget = self.transaction.subvolumes().may_drop;
        if budget == 0 {
            return Ok(());
        }
        let (info, committed) = (&self.committer.info, self.committed);
        for id in info.deleted.to_drop(committed, self.transaction.generation) {
            if budget == 0 {
                return Ok(());
            }
            budget = self.drop_subvolume(id, budget)?;
        }
        Ok(())
    }

    /// Drops a tree or a part of it; returns what is left of the budget.
    fn drop_subvolume(&mut self, id: TreeId, budget: u64) -> Result<u64> {
        let root = self.roots.get(id)?;
        assert!(!self.roots.has_new_root(id), "invariant 66: a commit drops a tree that it has merged into");
        let Some(tree) = self.roots.trees().get(id) else { return Ok(budget) };
        let resume =
            (tree.item.drop_progress != Key::default()).then_some((tree.item.drop_progress, tree.item.drop_level));
        let made = Generation(tree.item.transids[1]);
        let mut dropped = Dropped::new(id, made, budget);
        let progress = self.drop_node(&mut dropped, &NodeRef::root(&root), User::Tree(id), resume)?;
        self.refs.append(self.tree.nodes.take_data_refs());
        if let Some(error) = dropped.unreadable {
            self.committer.info.deleted.leave(id);
            self.committer.info.writability.note_error(&error.at(Step::DropSubvolume(id)));
        }
        match progress {
            Progress::Stopped(key, level) => {
                if let Some(mut tree) = self.roots.change(id) {
                    let item = &mut tree.item;
                    item.flags |= RootFlags::DEAD;
                    // Nothing is gone where even the root could not be read.
                    (item.drop_progress, item.drop_level) = (key, if key == Key::default() { 0 } else { level });
                }
            }
            Progress::Done => {
                if let Some(gone) = self.roots.remove(id) {
                    self.root_edits.delete(gone.key);
                }
                self.root_edits.delete(Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, id.0));
            }
        }
        Ok(dropped.budget)
    }

    /// Drops the reference of `user` to a node, and the node if it was the last one.
    pub(super) fn drop_node(
        &mut self,
        dropped: &mut Dropped,
        at: &NodeRef,
        user: User,
        resume: Option<(Key, u8)>,
    ) -> Result<Progress> {
        let (users, by_address) = self.tree.nodes.block_refs().users(at.bytenr, at.level)?;
        let here = resume.filter(|(_, level)| *level <= at.level);
        if users > 1 {
            if !self.move_references(dropped, at)? {
                // Nothing of it is dropped yet.
                return Ok(Progress::Stopped(at.first_key.unwrap_or(Key::MIN), at.level + 1));
            }
        } else {
            let Some(block) = self.read_block(dropped, at)? else {
                // What an earlier commit has dropped of it stays dropped.
                let (key, level) = here.unwrap_or((at.first_key.unwrap_or(Key::MIN), at.level + 1));
                return Ok(Progress::Stopped(key, level));
            };
            let by = if by_address { By::Address(at.bytenr) } else { By::Tree(dropped.tree) };
            match at.view(&block)? {
                leaf @ Node::Leaf(_) => {
                    dropped.budget = dropped.budget.saturating_sub(references_of(&leaf));
                    self.tree.nodes.block_refs().change_children(&leaf, at.level, by, -1)?;
                }
                Node::Internal(node) => {
                    let first = here.map_or(0, |(key, _)| node.slot_for(&key));
                    for slot in first..node.len() {
                        let child = at.child(&node, slot).ok_or_else(|| malformed(dropped.tree))?;
                        let key = child.first_key.unwrap_or(Key::MIN);
                        if dropped.budget == 0 {
                            return Ok(Progress::Stopped(key, at.level));
                        }
                        let user = match by {
                            By::Tree(tree) => User::Tree(tree),
                            By::Address(parent) => User::Block(parent),
                        };
                        let below = here.filter(|(_, level)| slot == first && *level < at.level);
                        if let stopped @ Progress::Stopped(..) = self.drop_node(dropped, &child, user, below)? {
                            return Ok(stopped);
                        }
                    }
                }
            }
        }
        dropped.budget = dropped.budget.saturating_sub(1);
        if self.tree.nodes.block_refs().drop_reference(at.bytenr, at.level, user)? {
            self.tree.nodes.free_old(dropped.tree, at.bytenr);
        }
        Ok(Progress::Done)
    }

    /// Reads a block of the tree. `None` if that fails, or if the block is not what its parent
    /// says.
    fn read_block(&self, dropped: &mut Dropped, at: &NodeRef) -> Result<Option<Block>> {
        let cache = &self.committer.info.cache;
        match cache.fetch(at).and_then(|block| at.view(&block).map(drop).map(|()| block)) {
            Ok(block) => Ok(Some(block)),
            Err(error @ (TreeError::Read { .. } | TreeError::Block { .. } | TreeError::KeyBeyondRange { .. })) => {
                dropped.unreadable = Some(error.into());
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Moves the references that blocks of the tree hold to what they point to from the tree's name
    /// to the blocks' addresses, below a block that others use, too. Returns whether that is done.
    ///
    /// A block goes before those below it, as with the kernel: one whose references were moved says
    /// nothing of those.
    fn move_references(&mut self, dropped: &mut Dropped, at: &NodeRef) -> Result<bool> {
        let (_, by_address) = self.tree.nodes.block_refs().users(at.bytenr, at.level)?;
        if at.generation < dropped.made || (by_address && at.level == 0) {
            return Ok(true);
        }
        let Some(block) = self.read_block(dropped, at)? else { return Ok(false) };
        if block.header()?.owner != dropped.tree {
            return Ok(true);
        }
        let node = at.view(&block)?;
        if !by_address {
            if dropped.budget == 0 {
                return Ok(false);
            }
            dropped.budget = dropped.budget.saturating_sub(2 * references_of(&node));
            self.tree.nodes.block_refs().refer_by_address(dropped.tree, &block)?;
        }
        if let Node::Internal(node) = node {
            for slot in 0..node.len() {
                let child = at.child(&node, slot).ok_or_else(|| malformed(dropped.tree))?;
                if !self.move_references(dropped, &child)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The references that a node holds, to blocks or to data.
fn references_of(node: &Node<'_>) -> u64 {
    match node {
        Node::Leaf(leaf) => leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA).count() as u64,
        Node::Internal(node) => node.len() as u64,
    }
}

fn malformed(tree: TreeId) -> Error {
    Error::Inconsistent { tree, key: Key::MIN, what: "a node of the deleted subvolume can't be walked" }
}
