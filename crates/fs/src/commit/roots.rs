//! Root items of a commit: placeholders while trees still change, and the final items that replace
//! them.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::{Generation, TreeId};
use ubtrfs_tree::{DirtyNodes, EditBatch, Root, patch_in_place};

use crate::committed::Committed;
use crate::error::{Error, Result};
use crate::tree_roots::{TreeRoot, TreeRootMut, TreeRoots};
use ubtrfs_format::items::Timespec;
use ubtrfs_format::{ItemType, Key};

/// The roots of all trees but the root tree and the chunk tree, as a commit changes them.
pub(super) struct NewRoots {
    trees: TreeRoots,
    /// Roots that differ from the root items, which are updated at the end.
    roots: BTreeMap<TreeId, Root>,
    /// Trees whose root item this commit writes.
    changed: BTreeSet<TreeId>,
    /// The trees of `changed` that were only moved.
    moved: BTreeSet<TreeId>,
    generation: Generation,
    /// Whether a default subvolume was chosen.
    pub(super) has_default_subvolume: bool,
}

impl NewRoots {
    pub(super) fn new(committed: &Committed, generation: Generation) -> Self {
        Self {
            trees: committed.trees.clone(),
            roots: BTreeMap::new(),
            changed: BTreeSet::new(),
            moved: BTreeSet::new(),
            generation,
            has_default_subvolume: false,
        }
    }

    pub(super) fn get(&self, id: TreeId) -> Result<Root> {
        let missing = || Error::MissingItem { tree: TreeId::ROOT, key: Key::new(id.0, ItemType::ROOT_ITEM, 0) };
        self.root(id).ok_or_else(missing)
    }

    pub(super) fn last_snapshot(&self, id: TreeId) -> Result<Generation> {
        self.get(id)?;
        Ok(self.trees.get(id).map_or(Generation(0), |tree| tree.item.last_snapshot))
    }

    pub(super) fn set(&mut self, id: TreeId, root: Root) {
        if self.root(id) != Some(root) {
            self.roots.insert(id, root);
            self.changed.insert(id);
        }
    }

    /// Whether this commit has changed the tree.
    pub(super) fn has_new_root(&self, id: TreeId) -> bool {
        self.roots.contains_key(&id)
    }

    /// Sets the root to one at another address, for a tree in which nothing else has changed.
    pub(super) fn set_moved(&mut self, id: TreeId, root: Root) {
        self.moved.insert(id);
        self.set(id, root);
    }

    /// Lets the tree's root item be written in any case.
    pub(super) fn will_change(&mut self, id: TreeId) {
        self.changed.insert(id);
    }

    /// Adds a tree that this commit creates.
    pub(super) fn add(&mut self, tree: TreeRoot, root: Root) {
        let id = tree.id();
        self.trees.insert(tree);
        let before = self.roots.insert(id, root);
        assert!(before.is_none(), "tree {id} is made, and this commit has changed it");
        self.changed.insert(id);
    }

    /// Removes a tree. The caller deletes its root item.
    pub(super) fn remove(&mut self, id: TreeId) -> Option<TreeRoot> {
        self.changed.remove(&id);
        self.roots.remove(&id);
        self.trees.remove(id)
    }

    /// Returns a tree in whose root item other fields than those of the root change.
    pub(super) fn change(&mut self, id: TreeId) -> Option<TreeRootMut<'_>> {
        self.changed.insert(id);
        self.trees.get_mut(id)
    }

    /// The trees, by number.
    pub(super) fn trees(&self) -> &TreeRoots {
        &self.trees
    }

    /// Returns edits that copy the leaves with all changed root items into this commit, so that the
    /// final items can be patched in place.
    pub(super) fn placeholders(&self) -> Result<EditBatch> {
        let mut edits = EditBatch::new();
        for id in &self.changed {
            let root = self.get(*id)?;
            let Some(tree) = self.trees.get(*id) else { continue };
            let mut item = tree.item.clone();
            item.generation = self.generation;
            item.generation_v2 = self.generation;
            item.bytenr = root.bytenr;
            edits.put(tree.key, item.to_bytes());
        }
        Ok(edits)
    }

    /// Writes the final root items into the root tree's new leaves. `balance` is the change of the
    /// number of nodes, by tree. A subvolume that was read-only before has only lost orphans, which
    /// does not count as a change of it, as in the kernel's driver.
    pub(super) fn write_final(
        &mut self,
        before: &Committed,
        root_tree: &Root,
        balance: &BTreeMap<TreeId, i64>,
        dirty: &mut DirtyNodes,
        time: Timespec,
    ) -> Result<()> {
        let node_size = i64::from(dirty.geometry().node_size);
        for id in &self.changed {
            let root = self.root(*id);
            let (Some(root), Some(mut tree)) = (root, self.trees.get_mut(*id)) else { continue };
            let key = tree.key;
            let item = &mut tree.item;
            item.generation = root.generation;
            item.generation_v2 = root.generation;
            item.bytenr = root.bytenr;
            item.level = root.level;
            let change = balance.get(id).copied().unwrap_or(0) * node_size;
            item.bytes_used = item.bytes_used.saturating_add_signed(change);
            let is_new = root.generation == self.generation && !self.moved.contains(id);
            let was_read_only = before.trees.get(*id).is_some_and(TreeRoot::is_read_only);
            if id.is_subvolume() && is_new && !was_read_only && item.transids[1] != self.generation.0 {
                item.transids[0] = self.generation.0;
                item.times[0] = time;
            }
            patch_in_place(root_tree, &key, &item.to_bytes(), dirty)?;
        }
        Ok(())
    }

    pub(super) fn root(&self, id: TreeId) -> Option<Root> {
        self.roots.get(&id).copied().or_else(|| self.trees.get(id).map(TreeRoot::root))
    }

    pub(super) fn into_trees(self) -> TreeRoots {
        self.trees
    }
}
