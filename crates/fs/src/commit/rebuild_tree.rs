//! Replaces a tree by an empty one without reading the old one.

use ubtrfs_format::items::{ExtentFlags, ExtentItem, InlineRef};
use ubtrfs_format::{ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{EditBatch, FreedNode, NodeAllocator, Snapshot};

use super::roots::NewRoots;
use super::tree_merger::TreeMerger;
use crate::error::Result;

/// Replaces tree `id` by an empty tree, and frees all nodes that the extent tree records as its
/// own.
pub(super) fn rebuild_tree(
    tree: &mut TreeMerger<'_>,
    roots: &mut NewRoots,
    id: TreeId,
    extent_tree: &Snapshot,
) -> Result<()> {
    for node in nodes_of(id, extent_tree)? {
        tree.nodes.free(node)?;
    }
    let root = tree.merge(None, id, &EditBatch::new())?;
    roots.set(id, root);
    Ok(())
}

fn nodes_of(tree: TreeId, extent_tree: &Snapshot) -> Result<Vec<FreedNode>> {
    let mut nodes = Vec::new();
    for item in extent_tree.range(Key::MIN..=Key::MAX) {
        let item = item?;
        let key = item.key;
        if ![ItemType::EXTENT_ITEM, ItemType::METADATA_ITEM].contains(&key.item_type) {
            continue;
        }
        let extent = ExtentItem::parse(&key, &item)?;
        if extent.flags & ExtentFlags::TREE_BLOCK == 0 || extent.inline_refs != [InlineRef::TreeBlock { root: tree }] {
            continue;
        }
        let level = extent.tree_block.map_or(key.offset as u8, |(_, level)| level);
        let (bytenr, generation) = (Logical(key.objectid), extent.generation);
        nodes.push(FreedNode { bytenr, tree, generation, level, born_in_this_commit: false });
    }
    Ok(nodes)
}
