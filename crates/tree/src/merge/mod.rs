//! Bulk update: merging a batch of edits into the tree under a root gives a new root.

mod allocator;
mod changes;
mod contents;
mod join;
mod merger;
mod resolve;
mod root;
mod unshare;
mod update;

use std::ops::RangeInclusive;
use std::sync::Arc;

use ubtrfs_format::{Generation, Key, Leaf, TreeId};

pub use self::allocator::{FreedNode, NodeAllocator};
use self::changes::Changes;
use self::contents::Contents;
use self::merger::{Merger, Rewrite};
use self::unshare::SharedPath;
use crate::block::{NodeRef, Root};
use crate::cache::NodeCache;
use crate::dirty::DirtyNodes;
use crate::edit::EditBatch;
use crate::error::Result;

/// Merges `edits` into the tree under `root`, or makes a new tree, and returns the new root.
///
/// Every touched node is written once, into `dirty`. Nodes that no edit touches are not read
/// (except a neighbour with which an under-full node is joined) and keep their address. So do a
/// leaf whose edits change nothing, and a node that `dirty` already had. New nodes are of `owner`
/// and of the generation of `dirty`. A tree without items is one empty leaf.
///
/// `removed` is called for every item of the tree that a delete or a deleted range removes, that a
/// put replaces (even by the same bytes), or that a patch changes or removes. It gets the bytes
/// that the tree held.
///
/// Before a node of a generation up to `last_snapshot` (if that is not 0), or one that a relocation
/// made, is replaced, the allocator is asked to [unshare](NodeAllocator::unshare) it, after all
/// such nodes above it. After any error, the tree under `root` is as it was, but `dirty` and the
/// allocator are not: the commit has to be aborted.
#[expect(clippy::too_many_arguments, reason = "a merge has that many sides, and each caller has them apart")]
pub fn merge(
    cache: &Arc<NodeCache>,
    root: Option<Root>,
    owner: TreeId,
    edits: &EditBatch,
    dirty: &mut DirtyNodes,
    allocator: &mut dyn NodeAllocator,
    last_snapshot: Generation,
    removed: &mut dyn FnMut(&Key, &[u8]),
) -> Result<Root> {
    let node_size = dirty.geometry().node_size as usize;
    let shared = SharedPath::new(last_snapshot);
    let mut merger = Merger { cache, owner, dirty, allocator, shared, removed, node_size };
    let (keys, ranges) = (edits.iter().map(|(key, edit)| (*key, edit)).collect::<Vec<_>>(), ranges_of(edits));
    let changes = Changes { edits: &keys, ranges: &ranges };
    match root {
        None => {
            let leaf = Leaf::default();
            let contents = Contents::changed(&leaf, &merger.resolve(None, &leaf, changes)?, node_size);
            merger.make_root(0, Rewrite { contents, reusable: Vec::new(), tail: true })
        }
        Some(root) if edits.is_empty() => Ok(root),
        Some(root) => match merger.update(&NodeRef::root(&root), changes)? {
            None => Ok(root),
            Some(open) => merger.make_root(root.level, open),
        },
    }
}

fn ranges_of(edits: &EditBatch) -> Vec<(Key, Key)> {
    edits.deleted_ranges().map(RangeInclusive::into_inner).collect()
}
