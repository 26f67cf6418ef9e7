//! Finds the nodes that point to a node or to data, by the references in the extent tree.

use ubtrfs_format::items::{DataRef, FileExtent, FileExtentKind};
use ubtrfs_format::{ItemType, Key, Logical, Node, TreeId};
use ubtrfs_tree::Root;

use super::super::extent_refs::User;
use super::plan::RelocationPlan;
use crate::error::{Error, Result};

/// The most bytes of a file in a compressed extent.
const MAX_PACKED: u64 = 128 << 10;

impl RelocationPlan {
    /// Returns the root of a tree.
    pub(super) fn root(&self, id: TreeId) -> Result<Root> {
        Ok(*self.committed.tree(id)?.root())
    }

    /// Adds what points to a node: its parent in a tree, the node at the given address, or the root
    /// item.
    pub(super) fn add_parent(&mut self, at: Logical, level: u8, user: User) -> Result<()> {
        match user {
            User::Block(parent) => self.queue_node(parent, level.saturating_add(1)),
            User::Tree(id) => {
                let root = self.root(id)?;
                if (root.bytenr, root.level) == (at, level) {
                    self.roots.insert(id);
                    return Ok(());
                }
                let parent = self.parent_in(id, at, level)?;
                self.queue_node(parent, level.saturating_add(1))
            }
            User::File(_) | User::Leaf(_) => Err(inconsistent(at, level, "a tree block is referred to as data")),
        }
    }

    /// Returns the node of a tree that points to this one.
    fn parent_in(&self, id: TreeId, at: Logical, level: u8) -> Result<Logical> {
        let wrong = || inconsistent(at, level, "the tree that the reference names does not use the block");
        let first = self.nodes.get(&at).and_then(|node| match node.block.node() {
            Ok(Node::Leaf(leaf)) => leaf.key(0),
            Ok(Node::Internal(node)) => node.key(0),
            Err(_) => None,
        });
        // The first keys of a half-dropped node may be gone.
        let first = first.ok_or_else(wrong)?.max(self.half_dropped.first_key(id));
        let path = self.committed.tree(id)?.path_to(&first)?;
        let position = path.iter().position(|node| (node.bytenr, node.level) == (at, level)).ok_or_else(wrong)?;
        let parent = position.checked_sub(1).and_then(|parent| path.get(parent)).ok_or_else(wrong)?;
        Ok(parent.bytenr)
    }

    /// Adds the leaves that point to data.
    pub(super) fn add_users_of_data(&mut self, start: Logical, length: u64, user: User) -> Result<()> {
        match user {
            User::Leaf(leaf) => self.queue_node(leaf, 0),
            User::File(file) => self.add_leaves_of(start, length, file),
            User::Tree(_) | User::Block(_) => {
                let key = Key::new(start.0, ItemType::EXTENT_ITEM, length);
                Err(Error::Inconsistent { tree: TreeId::EXTENT, key, what: "data is referred to as a tree block" })
            }
        }
    }

    /// Adds the leaves that contain pieces of a file that refer to an extent.
    fn add_leaves_of(&mut self, start: Logical, length: u64, file: DataRef) -> Result<()> {
        let tree = self.committed.tree(file.root)?;
        // The extent may begin before the start of the file.
        let end = file.offset.wrapping_add(length.max(MAX_PACKED));
        let from = if file.offset > end { 0 } else { file.offset };
        let key = |offset| Key::new(file.ino.0, ItemType::EXTENT_DATA, offset);
        let mut last = Logical(0);
        let first = key(from).max(self.half_dropped.first_key(file.root));
        if first > key(end) {
            return Ok(());
        }
        for item in tree.range(first..=key(end)) {
            let item = item?;
            let FileExtentKind::Regular { disk_bytenr, offset, .. } = FileExtent::parse(&item)?.kind else { continue };
            if disk_bytenr != start || item.key.offset.wrapping_sub(offset) != file.offset {
                continue;
            }
            let leaf = item.leaf().header()?.bytenr;
            if leaf != last {
                self.queue_node(leaf, 0)?;
                last = leaf;
            }
        }
        Ok(())
    }
}

fn inconsistent(at: Logical, level: u8, what: &'static str) -> Error {
    let key = Key::new(at.0, ItemType::METADATA_ITEM, level.into());
    Error::Inconsistent { tree: TreeId::EXTENT, key, what }
}
