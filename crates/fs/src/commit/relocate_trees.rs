//! Relocates small trees that prevent the removal of a chunk.
//!
//! When a volume that was full has been emptied, most of its metadata has been rewritten in the
//! first chunks. Most of the other chunks contain only the single leaf of a tree that rarely
//! changes: the checksum tree, or the device tree, which changes with each new chunk and so is
//! allocated in one.

use ubtrfs_format::{Generation, ItemType, Key, TreeId};
use ubtrfs_tree::EditBatch;

use super::owner::Committer;
use super::roots::NewRoots;
use super::tree_merger::TreeMerger;
use crate::committed::Committed;
use crate::error::Result;
use crate::tree_roots::TreeRoot;

/// Returns the trees of one leaf that are (nearly) alone in their chunk, or none if chunks are
/// never removed.
pub(super) fn trees_to_relocate(committer: &Committer, committed: &Committed) -> Vec<TreeId> {
    if !committed.keeps_free_space_tree() {
        return Vec::new();
    }
    let sparse = committer.info.space.lock().sparse_metadata();
    if sparse.is_empty() {
        return Vec::new();
    }
    let is_small = |tree: &&TreeRoot| tree.item.level == 0 && !tree.id().is_subvolume();
    let is_there = |tree: &&TreeRoot| sparse.iter().any(|range| range.contains(&tree.item.bytenr.0));
    committed.trees.all().filter(is_small).filter(is_there).map(TreeRoot::id).collect()
}

/// Rewrites these trees, except those that the commit has rewritten already.
pub(super) fn relocate_trees(
    tree: &mut TreeMerger<'_>,
    roots: &mut NewRoots,
    trees_to_relocate: &[TreeId],
    generation: Generation,
) -> Result<()> {
    // An item is inserted and deleted again, so the leaf is replaced by one with the same content.
    let passing = Key::new(u64::MAX, ItemType(u8::MAX), u64::MAX);
    for id in trees_to_relocate {
        if roots.get(*id)?.generation == generation {
            continue;
        }
        let (mut come, mut go) = (EditBatch::new(), EditBatch::new());
        come.put(passing, Vec::new());
        go.delete(passing);
        tree.update(roots, *id, &come)?;
        tree.update(roots, *id, &go)?;
    }
    Ok(())
}
