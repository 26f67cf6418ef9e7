//! Small trees that keep a chunk from being given back: they are written anew elsewhere.
//!
//! When a volume that was full has been emptied, most of its metadata has been rewritten in the
//! first chunks. What lies in the others is mostly the one leaf of a tree that `lazy_box` changes:
//! that of devices, which changes with each new chunk and so comes to lie in one, or that of
//! checksums.

use ubtrfs_format::{Generation, ItemType, Key, TreeId};
use ubtrfs_tree::EditBatch;

use super::owner::Committer;
use super::roots::NewRoots;
use super::tree_merger::TreeMerger;
use crate::committed::Committed;
use crate::error::Result;

/// The trees of one leaf that are (nearly) alone in their chunk.
pub(super) fn trees_to_relocate(committer: &Committer, committed: &Committed) -> Vec<TreeId> {
    let sparse = committer.info.space.lock().sparse_metadata();
    if sparse.is_empty() {
        return Vec::new();
    }
    let is_small = |tree: &&crate::committed::TreeRoot| tree.item.level == 0 && !tree.id().is_subvolume();
    let is_there = |tree: &&crate::committed::TreeRoot| sparse.iter().any(|range| range.contains(&tree.item.bytenr.0));
    committed.trees.values().filter(is_small).filter(is_there).map(crate::committed::TreeRoot::id).collect()
}

/// Writes these trees anew, unless the commit has done so already.
pub(super) fn relocate_trees(
    tree: &mut TreeMerger<'_, '_>,
    roots: &mut NewRoots,
    trees_to_relocate: &[TreeId],
    generation: Generation,
) -> Result<()> {
    // An item that comes and goes: the leaf is another one then, with the same content.
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
