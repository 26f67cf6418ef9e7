//! Leftovers of a balance by the kernel that a crash has interrupted in the middle of a chunk.
//!
//! For each subvolume the kernel's balance makes a reloc tree. It shares all nodes with the
//! subvolume except those on the paths to moved blocks. An inode in the data reloc tree contains
//! the new places of data. Once all reloc trees are complete, the balance merges each one into its
//! subvolume, and records this first: the root items of reloc trees that wait for their merge have
//! a reference, and the root item of a reloc tree says how far it is merged. Before the first merge
//! no subvolume has changed, and after the last one each subvolume is complete. In both cases the
//! leftovers can be dropped, and the subvolumes go on sharing what they share. In between, dropping
//! them would end the sharing.

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

/// Returns the root items of all reloc trees, with their keys.
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

/// Returns the keys of all items of the data reloc tree besides those of its directory.
fn data_left(committed: &Committed) -> Result<Vec<Key>> {
    if !committed.has_tree(TreeId::DATA_RELOC) {
        return Ok(Vec::new());
    }
    let first = Key::new(Ino::ROOT_DIR.0 + 1, ItemType(0), 0);
    let items = committed.tree(TreeId::DATA_RELOC)?.range(first..=Key::MAX);
    items.map(|item| Ok(item?.key)).collect()
}

impl Committer {
    /// Whether a balance of the kernel has left reloc trees or items in the data reloc tree.
    pub(crate) fn has_reloc_trees(&self) -> Result<bool> {
        let committed = self.info.committed();
        Ok(!reloc_roots(&committed)?.is_empty() || !data_left(&committed)?.is_empty())
    }

    /// Drops the leftovers of a balance of the kernel, if there are any, in a commit of their own.
    /// Nothing else changes the volume meanwhile.
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
    /// Drops all reloc trees and the items of the data reloc tree, if this commit is for that.
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
        // The reference to its root node names the node's own address.
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
