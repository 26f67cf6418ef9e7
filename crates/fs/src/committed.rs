//! The volume as of its last commit: the roots of all trees. Immutable; a commit publishes the next
//! one.

use std::sync::Arc;

use ubtrfs_format::items::RootItem;
use ubtrfs_format::{CompatRo, Generation, ItemType, Key, Logical, Superblock, TreeId};
use ubtrfs_threads::OnceLock;
use ubtrfs_tree::{Block, NodeCache, NodeRef, Reader, Root, Snapshot};

use crate::error::{Errno, Error, Result};
use crate::options::Rescue;
use crate::tree_roots::{TreeRoot, TreeRoots};

/// The roots of all trees as of one commit.
pub(crate) struct Committed {
    pub(crate) generation: Generation,
    pub(crate) superblock: Superblock,
    pub(crate) root_tree: Root,
    pub(crate) chunk_tree: Root,
    pub(crate) trees: TreeRoots,
    cache: Arc<NodeCache>,
    /// The subvolume that was looked at first, and its root node if it was read: all requests begin
    /// there, and would meet at one lock of the node cache. Most mounts have but one in use.
    first: OnceLock<Snapshot>,
}

impl Committed {
    /// Reads all root items.
    pub(crate) fn load(superblock: Superblock, cache: Arc<NodeCache>, rescue: &Rescue) -> Result<Self> {
        let root_tree = Root {
            owner: TreeId::ROOT,
            bytenr: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        };
        let chunk_tree = Root {
            owner: TreeId::CHUNK,
            bytenr: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        };
        let mut trees = TreeRoots::new();
        for item in Snapshot::new(cache.clone(), root_tree).range(Key::MIN..=Key::MAX) {
            let item = item?;
            let key = item.key;
            if key.item_type == ItemType::ROOT_ITEM {
                match RootItem::parse(&item) {
                    Ok(item) => trees.insert(TreeRoot { key, item }),
                    Err(error) if rescue.passes_over(&error) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(Self::after(superblock, root_tree, chunk_tree, trees, cache))
    }

    /// The state after a commit.
    pub(crate) fn after(
        superblock: Superblock,
        root_tree: Root,
        chunk_tree: Root,
        trees: TreeRoots,
        cache: Arc<NodeCache>,
    ) -> Self {
        let (generation, first) = (superblock.generation, OnceLock::new());
        Self { generation, superblock, root_tree, chunk_tree, trees, cache, first }
    }

    /// A tree. `ESTALE` for that of a subvolume inside another one, which has been dropped then.
    pub(crate) fn tree(&self, id: TreeId) -> Result<Snapshot> {
        if let Some(first) = self.first.get().filter(|first| first.root().owner == id) {
            return Ok(first.clone());
        }
        let root = match id {
            TreeId::ROOT => self.root_tree,
            TreeId::CHUNK => self.chunk_tree,
            _ if id.is_subvolume() && id != TreeId::FS && !self.has_tree(id) => return Err(Errno::STALE.into()),
            _ => self
                .trees
                .get(id)
                .map(TreeRoot::root)
                .ok_or(Error::MissingItem { tree: TreeId::ROOT, key: Key::new(id.0, ItemType::ROOT_ITEM, 0) })?,
        };
        let tree = Snapshot::new(self.cache.clone(), root);
        if id.is_subvolume() && self.first.get().is_none() {
            // Another thread may have come first with another subvolume.
            let _ = self.first.set(tree.clone());
        }
        Ok(tree)
    }

    /// The node at this address, of whatever tree.
    pub(crate) fn node_at(&self, bytenr: Logical, generation: Generation, level: u8) -> Result<Block> {
        // Nodes of the trees of a kernel's balance are of any tree.
        let tree = TreeId::RELOC;
        Ok(self.cache.get(&NodeRef { tree, bytenr, generation, level, first_key: None, upper: None })?)
    }

    /// Whether there is such a tree.
    pub(crate) fn has_tree(&self, id: TreeId) -> bool {
        self.trees.get(id).is_some()
    }

    /// Whether commits keep a free-space tree. Without one no empty chunk is ever removed: the root
    /// tree may have older kernels' free-space caches, one for each block group.
    pub(crate) fn keeps_free_space_tree(&self) -> bool {
        self.superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
    }

    /// Whether there is such a tree and it has files. One that is being dropped counts as deleted.
    pub(crate) fn has_subvolume(&self, id: TreeId) -> bool {
        id.is_subvolume() && self.trees.get(id).is_some_and(|tree| tree.item.refs > 0)
    }

    /// Children of the root node of a tree; of a leaf, its items.
    pub(crate) fn children_of_root(&self, id: TreeId) -> Result<u64> {
        let root = self.trees.get(id).map(TreeRoot::root).ok_or(Errno::NOENT)?;
        let block = self.cache.fetch(&NodeRef::root(&root))?;
        Ok(block.header()?.nritems.into())
    }

    /// The tree with the block group items.
    pub(crate) fn block_group_tree_id(&self) -> TreeId {
        if self.superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            TreeId::BLOCK_GROUP
        } else {
            TreeId::EXTENT
        }
    }

    /// The subvolumes, by id.
    pub(crate) fn subvolumes(&self) -> impl Iterator<Item = &TreeRoot> {
        self.trees.subvolumes()
    }

    /// The subvolume that is mounted by default.
    pub(crate) fn default_subvolume(&self) -> Result<TreeId> {
        let hash = ubtrfs_format::name_hash(b"default");
        let key = Key::new(self.superblock.root_dir_objectid, ItemType::DIR_ITEM, hash);
        let Some(item) = self.tree(TreeId::ROOT)?.get(&key)? else { return Ok(TreeId::FS) };
        for entry in ubtrfs_format::items::dir_entries(&item) {
            let entry = entry?;
            if entry.name == b"default" && entry.location.item_type == ItemType::ROOT_ITEM {
                return Ok(TreeId(entry.location.objectid));
            }
        }
        Ok(TreeId::FS)
    }
}
