//! The roots of all trees, as in the root tree, with totals over all of them. A volume may have
//! very many subvolumes, and a commit changes only a few.

use std::ops::{Deref, DerefMut};

use rpds::RedBlackTreeMapSync;
use ubtrfs_format::items::{RootFlags, RootItem};
use ubtrfs_format::{Key, TreeId};
use ubtrfs_tree::Root;

/// A tree's root as recorded in the root tree.
#[derive(Clone, Debug)]
pub(crate) struct TreeRoot {
    /// The root item's key.
    pub(crate) key: Key,
    pub(crate) item: RootItem,
}

impl TreeRoot {
    pub(crate) fn id(&self) -> TreeId {
        TreeId(self.key.objectid)
    }

    /// Whether it is a read-only subvolume.
    pub(crate) fn is_read_only(&self) -> bool {
        self.item.flags & RootFlags::RDONLY != 0
    }

    pub(crate) fn root(&self) -> Root {
        Root { owner: self.id(), bytenr: self.item.bytenr, generation: self.item.generation, level: self.item.level }
    }
}

/// Numbers of subvolumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Subvolumes that may share nodes with others.
    shared: u64,
    read_only: u64,
    /// Subvolumes that were deleted and whose trees are not dropped yet.
    deleted: u64,
}

impl Counts {
    fn of(tree: &TreeRoot) -> Self {
        if !tree.id().is_subvolume() {
            return Self::default();
        }
        Self {
            shared: u64::from(tree.item.last_snapshot.0 != 0),
            read_only: u64::from(tree.is_read_only()),
            deleted: u64::from(tree.item.refs == 0),
        }
    }

    fn replace(&mut self, before: Self, after: Self) {
        self.shared = self.shared + after.shared - before.shared;
        self.read_only = self.read_only + after.read_only - before.read_only;
        self.deleted = self.deleted + after.deleted - before.deleted;
    }
}

/// The roots of trees, by id. Copies share the parts that do not change.
#[derive(Clone, Debug)]
pub(crate) struct TreeRoots {
    by_id: RedBlackTreeMapSync<TreeId, TreeRoot>,
    counts: Counts,
}

/// A root that is being changed.
pub(crate) struct TreeRootMut<'a> {
    root: &'a mut TreeRoot,
    counts: &'a mut Counts,
    before: Counts,
}

impl Deref for TreeRootMut<'_> {
    type Target = TreeRoot;

    fn deref(&self) -> &TreeRoot {
        self.root
    }
}

impl DerefMut for TreeRootMut<'_> {
    fn deref_mut(&mut self) -> &mut TreeRoot {
        self.root
    }
}

impl Drop for TreeRootMut<'_> {
    fn drop(&mut self) {
        self.counts.replace(self.before, Counts::of(self.root));
    }
}

impl TreeRoots {
    pub(crate) fn new() -> Self {
        Self { by_id: RedBlackTreeMapSync::new_sync(), counts: Counts::default() }
    }

    /// Returns a tree's root.
    pub(crate) fn get(&self, id: TreeId) -> Option<&TreeRoot> {
        self.by_id.get(&id)
    }

    /// Returns a tree's root to be changed.
    pub(crate) fn get_mut(&mut self, id: TreeId) -> Option<TreeRootMut<'_>> {
        let root = self.by_id.get_mut(&id)?;
        Some(TreeRootMut { before: Counts::of(root), counts: &mut self.counts, root })
    }

    /// Adds a tree, or gives it another root.
    pub(crate) fn insert(&mut self, root: TreeRoot) {
        let before = self.get(root.id()).map(Counts::of).unwrap_or_default();
        self.counts.replace(before, Counts::of(&root));
        self.by_id.insert_mut(root.id(), root);
    }

    /// Removes a tree.
    pub(crate) fn remove(&mut self, id: TreeId) -> Option<TreeRoot> {
        let removed = self.by_id.get(&id).cloned()?;
        self.counts.replace(Counts::of(&removed), Counts::default());
        self.by_id.remove_mut(&id);
        Some(removed)
    }

    /// Returns all trees, by id.
    pub(crate) fn all(&self) -> impl Iterator<Item = &TreeRoot> {
        self.by_id.values()
    }

    /// Returns the subvolumes, by id. There may be very many: no operation and no commit iterates
    /// over all of them.
    pub(crate) fn subvolumes(&self) -> impl Iterator<Item = &TreeRoot> {
        self.all().filter(|tree| tree.id().is_subvolume())
    }

    /// Returns how many subvolumes may share nodes with others.
    pub(crate) fn shared_subvolumes(&self) -> u64 {
        self.counts.shared
    }

    /// Whether any subvolume is read-only.
    pub(crate) fn has_read_only(&self) -> bool {
        self.counts.read_only > 0
    }

    /// Returns the subvolumes that were deleted and whose trees are not dropped yet, by id.
    pub(crate) fn deleted_subvolumes(&self) -> impl Iterator<Item = TreeId> {
        let deleted = self.subvolumes().filter(|tree| tree.item.refs == 0).map(TreeRoot::id);
        deleted.take(self.counts.deleted as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_format::{Generation, ItemType};

    fn root(id: u64) -> TreeRoot {
        TreeRoot { key: Key::new(id, ItemType::ROOT_ITEM, 0), item: RootItem { refs: 1, ..RootItem::default() } }
    }

    #[test]
    fn counts_follow_every_change() {
        let mut trees = TreeRoots::new();
        for id in [5, 256, 257, 258, 7] {
            trees.insert(root(id));
        }
        trees.get_mut(TreeId(257)).unwrap().item.last_snapshot = Generation(3);
        trees.get_mut(TreeId(258)).unwrap().item.flags |= RootFlags::RDONLY;
        trees.get_mut(TreeId(7)).unwrap().item.refs = 0;
        let recount = |trees: &TreeRoots| {
            let mut counts = Counts::default();
            trees.all().for_each(|tree| counts.replace(Counts::default(), Counts::of(tree)));
            counts
        };
        assert_eq!((trees.counts, trees.shared_subvolumes(), trees.has_read_only()), (recount(&trees), 1, true));
        trees.get_mut(TreeId(256)).unwrap().item.refs = 0;
        assert_eq!(trees.deleted_subvolumes().collect::<Vec<_>>(), [TreeId(256)]);
        trees.insert(root(257));
        assert!(trees.remove(TreeId(258)).is_some() && trees.remove(TreeId(258)).is_none());
        assert_eq!((trees.counts, trees.shared_subvolumes(), trees.has_read_only()), (recount(&trees), 0, false));
        assert_eq!(trees.remove(TreeId(256)).map(|tree| tree.id()), Some(TreeId(256)));
        assert_eq!(trees.deleted_subvolumes().next(), None);
    }
}
