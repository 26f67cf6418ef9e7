//! What a balance of the kernel leaves where a crash interrupts it in the middle of a chunk.
//!
//! For each subvolume it has a reloc tree, which shares all nodes with the subvolume but those that
//! lead to what it moves; and in the data reloc tree an inode that holds the new places of data.
//! Once it has all of them it merges each reloc tree into its subvolume, and says so before: the
//! root items of reloc trees that wait for that have a reference, and how far one is merged is in
//! its root item. Before the first is merged no subvolume has changed, and after the last each has
//! what it shall have. Then what is left can be dropped, and what the subvolumes share stays
//! shared. In between it would not.

use std::sync::Arc;

use ubtrfs_format::items::RootItem;
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_tree::{EditBatch, NodeRef, Root};

use super::drop_subvolume::{Dropped, Progress};
use super::extent_refs::User;
use super::merge_trees::Merging;
use super::owner::Committer;
use crate::committed::Committed;
use crate::error::{Error, Result};

/// The root items of all reloc trees, with their keys.
fn reloc_roots(committed: &Committed) -> Result<Vec<(Key, RootItem)>> {
    if !committed.has_tree(TreeId::RELOC) {
        return Ok(Vec::new());
    }
    let of = |offset| Key::new(TreeId::RELOC.0, ItemType::ROOT_ITEM, offset);
    let items = committed.tree(TreeId::ROOT)?.range(of(0)..=of(u64::MAX));
    items.map(|item| item.map_err(Into::into).and_then(|item| Ok((item.key, RootItem::parse(&item)?)))).collect()
}

/// Whether some reloc trees are merged, and others are not yet.
pub(crate) fn merges_reloc_trees(committed: &Committed) -> Result<bool> {
    let roots = reloc_roots(committed)?;
    let waits = |item: &RootItem| item.refs > 0 && item.drop_progress == Key::default();
    let are_merged = roots.iter().all(|(_, item)| item.refs == 0);
    Ok(!are_merged && !roots.iter().all(|(_, item)| waits(item)))
}

/// The keys of all that the data reloc tree has besides its directory.
fn data_left(committed: &Committed) -> Result<Vec<Key>> {
    if !committed.has_tree(TreeId::DATA_RELOC) {
        return Ok(Vec::new());
    }
    let first = Key::new(Ino::ROOT_DIR.0 + 1, ItemType(0), 0);
    let items = committed.tree(TreeId::DATA_RELOC)?.range(first..=Key::MAX);
    items.map(|item| Ok(item?.key)).collect()
}

impl Committer {
    /// Whether a balance of the kernel has left anything.
    pub(crate) fn has_reloc_trees(&self) -> Result<bool> {
        let committed = self.info.committed();
        Ok(!reloc_roots(&committed)?.is_empty() || !data_left(&committed)?.is_empty())
    }

    /// Drops what a balance of the kernel has left, in a commit of its own, if it has left
    /// anything. Nothing else changes the volume meanwhile.
    pub(crate) fn drop_reloc_trees(&self) -> Result<()> {
        if !self.has_reloc_trees()? {
            return Ok(());
        }
        self.info.space.lock().may_use_all_of_global_reserve();
        self.requests.set_drops_reloc_trees(true);
        let done = self.commit_anyway();
        self.requests.set_drops_reloc_trees(false);
        done
    }
}

impl Merging<'_> {
    /// Drops all reloc trees and what the data reloc tree has, if this commit is for that.
    pub(super) fn drop_reloc_trees(&mut self) -> Result<()> {
        if !self.committer.requests.drops_reloc_trees() {
            return Ok(());
        }
        let committed: &Arc<Committed> = self.committed;
        for (key, item) in reloc_roots(committed)? {
            let root =
                Root { owner: TreeId::RELOC, bytenr: item.bytenr, generation: item.generation, level: item.level };
            self.drop_reloc_tree(&root, &item)?;
            self.root_edits.delete(key);
        }
        self.roots.remove(TreeId::RELOC);
        let mut edits = EditBatch::new();
        data_left(committed)?.into_iter().for_each(|key| edits.delete(key));
        if !edits.is_empty() {
            self.merge_subvolume(TreeId::DATA_RELOC, &edits)?;
        }
        Ok(())
    }

    fn drop_reloc_tree(&mut self, root: &Root, item: &RootItem) -> Result<()> {
        let mut dropped = Dropped::new(TreeId::RELOC, Generation(0), u64::MAX);
        let resume = (item.drop_progress != Key::default()).then_some((item.drop_progress, item.drop_level));
        // Its root node is referred to by its own address.
        let user = User::Block(root.bytenr);
        let progress = self.drop_node(&mut dropped, &NodeRef::root(root), user, resume)?;
        self.refs.append(self.tree.nodes.take_data_refs());
        match (progress, dropped.into_error()) {
            (_, Some(error)) => Err(error),
            (Progress::Stopped(key, _), None) => {
                Err(Error::Inconsistent { tree: TreeId::RELOC, key, what: "a reloc tree can't be dropped" })
            }
            (Progress::Done, None) => Ok(()),
        }
    }
}
