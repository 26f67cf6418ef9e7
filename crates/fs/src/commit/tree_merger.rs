//! Merging edits into the trees of one commit.

use ubtrfs_format::{Generation, TreeId};
use ubtrfs_tree::{DirtyNodes, EditBatch, Root, merge};

use super::nodes::CommitNodes;
use super::owner::Committer;
use super::roots::NewRoots;
use crate::error::Result;

/// Merges into the trees of one commit.
pub(super) struct TreeMerger<'a, 'b> {
    pub(super) committer: &'a Committer,
    pub(super) dirty: &'a mut DirtyNodes,
    pub(super) nodes: &'a mut CommitNodes<'b>,
}

impl TreeMerger<'_, '_> {
    pub(super) fn merge(&mut self, root: Option<Root>, owner: TreeId, edits: &EditBatch) -> Result<Root> {
        let cache = &self.committer.info.cache;
        Ok(merge(cache, root, owner, edits, self.dirty, self.nodes, Generation(0), &mut |_, _| {})?)
    }

    pub(super) fn update(&mut self, roots: &mut NewRoots, id: TreeId, edits: &EditBatch) -> Result<()> {
        if edits.is_empty() {
            return Ok(());
        }
        let root = self.merge(Some(roots.get(id)?), id, edits)?;
        roots.set(id, root);
        Ok(())
    }
}
