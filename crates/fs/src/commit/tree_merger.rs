//! Merges edits into the trees of one commit.

use ubtrfs_format::{Generation, TreeId};
use ubtrfs_tree::{DirtyNodes, EditBatch, Root, Snapshot, merge};

use super::nodes::CommitNodes;
use super::owner::Committer;
use super::roots::NewRoots;
use crate::committed::Committed;
use crate::error::Result;

/// Merges edits into the trees of one commit.
pub(super) struct TreeMerger<'a> {
    committer: &'a Committer,
    pub(super) dirty: DirtyNodes,
    pub(super) nodes: CommitNodes<'a>,
}

impl<'a> TreeMerger<'a> {
    /// Creates the merger of the commit of this generation, on top of `committed` with its extent
    /// tree.
    pub(super) fn new(
        committer: &'a Committer,
        committed: &Committed,
        extent_tree: &'a Snapshot,
        generation: Generation,
    ) -> Self {
        let nodes = CommitNodes::new(committer, extent_tree, generation, committed.superblock.incompat);
        Self { committer, dirty: DirtyNodes::new(generation, committer.info.geometry()), nodes }
    }

    pub(super) fn merge(&mut self, root: Option<Root>, owner: TreeId, edits: &EditBatch) -> Result<Root> {
        let cache = &self.committer.info.cache;
        Ok(merge(cache, root, owner, edits, &mut self.dirty, &mut self.nodes, Generation(0), &mut |_, _| {})?)
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
