//! Drops the trees of deleted subvolumes, a part in each commit.
//!
//! The walk goes from left to right. A block that only this tree uses is freed after its children
//! have been dropped. Of a block that others use, too, the tree drops its reference. If this tree
//! owns such a block, the references of the block's children name the tree, so they are first
//! changed to name the block's address, down to the leaves. The subtree may be large, so that this
//! work is divided, too, as in the kernel: the flags of a block say that its references were
//! changed.
//!
//! The root item records how far the drop has come: `drop_progress` is the key of the next child,
//! in the node of level `drop_level` on the path to it. Everything to the left is dropped, although
//! the nodes on the path still point to it. The kernel resumes from there, and this code resumes
//! where the kernel stopped.
//!
//! No commit drops a tree that the same commit or a later one merges into (invariant 50).
//!
//! If a block of the tree can't be read, the drop stops for this mount: the progress is recorded as
//! after any commit, and the rest waits for the next mount. Only a deleted tree is affected, so
//! this is no reason to fail the commit.

use ubtrfs_format::items::RootFlags;
use ubtrfs_format::{Generation, ItemType, Key, Node, TreeId, objectid};
use ubtrfs_tree::{Block, Error as TreeError, NodeRef, Reader};

use super::data_refs::By;
use super::extent_refs::User;
use super::merge_trees::Merging;
use crate::error::{Error, Result, Step};

/// Whether a part of the tree is dropped completely.
pub(super) enum Progress {
    Done,
    /// The budget is used up, or a block can't be read: the next child is the one with this key, in
    /// a node of this level.
    Stopped(Key, u8),
}

/// A tree that is being dropped.
pub(super) struct Dropped {
    tree: TreeId,
    /// Blocks of earlier generations are older than the tree, so they belong to others. Blocks of
    /// this generation belong to the tree or, if it is a snapshot, to its source; their headers say
    /// which.
    made: Generation,
    /// The number of nodes and references that may still be changed. It may be exceeded by those of
    /// one node.
    budget: u64,
    /// The error of the block that can't be read, if there is one.
    unreadable: Option<Error>,
}

impl Dropped {
    /// Begins a drop with this budget.
    pub(super) fn new(tree: TreeId, made: Generation, budget: u64) -> Self {
        Self { tree, made, budget, unreadable: None }
    }

    /// Returns the error of the block that can't be read, if there is one.
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

    /// Drops a tree or a part of it, and returns the remaining budget.
    fn drop_subvolume(&mut self, id: TreeId, budget: u64) -> Result<u64> {
        let root = self.roots.get(id)?;
        assert!(!self.roots.has_new_root(id), "invariant 50: a commit drops a tree that it has merged into");
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
                    // If even the root could not be read, nothing is dropped.
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
                // No part of it is dropped yet.
                return Ok(Progress::Stopped(at.first_key.unwrap_or(Key::MIN), at.level + 1));
            }
        } else {
            let Some(block) = self.read_block(dropped, at)? else {
                // The part that an earlier commit has dropped stays dropped.
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

    /// Reads a block of the tree. `None` if this fails, or if the block is not the one that its
    /// parent describes.
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

    /// Changes the references that blocks of the tree hold to their children: they name the blocks'
    /// addresses instead of the tree. Starts at a block that others use, too, and goes down.
    /// Returns whether this is completed.
    ///
    /// A block is changed before those below it, as in the kernel, so the flag of a block says
    /// nothing about those below it.
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

/// Returns the number of references that a node holds, to blocks or to data.
fn references_of(node: &Node<'_>) -> u64 {
    match node {
        Node::Leaf(leaf) => leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA).count() as u64,
        Node::Internal(node) => node.len() as u64,
    }
}

fn malformed(tree: TreeId) -> Error {
    Error::Inconsistent { tree, key: Key::MIN, what: "a node of the deleted subvolume can't be walked" }
}
