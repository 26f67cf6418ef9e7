//! The volume as of its last commit: the roots of all trees. It is immutable; a commit publishes a
//! new one.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ubtrfs_format::items::RootItem;
use ubtrfs_format::{CompatRo, Generation, ItemType, Key, Logical, Superblock, TreeId};
use ubtrfs_threads::OnceLock;
use ubtrfs_threads::thread::Builder;
use ubtrfs_tree::{Block, NodeCache, NodeRef, Reader, Root, Snapshot};

use crate::error::{Errno, Error, Result};
use crate::options::Rescue;
use crate::tree_roots::{TreeRoot, TreeRoots};

/// How many threads read the root items of a volume with many subvolumes.
const MAX_LOADERS: usize = 8;
/// The fewest leaves of the root tree for which threads are started.
const MIN_LEAVES: usize = 32;

/// The roots of all trees as of one commit.
pub(crate) struct Committed {
    pub(crate) generation: Generation,
    pub(crate) superblock: Superblock,
    pub(crate) root_tree: Root,
    pub(crate) chunk_tree: Root,
    pub(crate) trees: TreeRoots,
    cache: Arc<NodeCache>,
    /// The tree of the subvolume that was used first, with its root node if that was read. All
    /// requests begin at the root node, and would contend for one lock of the node cache. Most
    /// mounts use only one subvolume.
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
        let trees = load_roots(&Snapshot::new(cache.clone(), root_tree), rescue)?;
        Ok(Self::after(superblock, root_tree, chunk_tree, trees, cache))
    }

    /// Creates the state after a commit.
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

    /// Returns a tree. `ESTALE` for a subvolume (other than the top level) that has been dropped.
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
            // Another thread may have set another subvolume first.
            let _ = self.first.set(tree.clone());
        }
        Ok(tree)
    }

    /// Returns the node at this address, of whatever tree.
    pub(crate) fn node_at(&self, bytenr: Logical, generation: Generation, level: u8) -> Result<Block> {
        // This id accepts nodes of any tree, as nodes of the kernel's reloc trees may be.
        let tree = TreeId::RELOC;
        Ok(self.cache.get(&NodeRef { tree, bytenr, generation, level, first_key: None, upper: None })?)
    }

    /// Whether this tree exists.
    pub(crate) fn has_tree(&self, id: TreeId) -> bool {
        self.trees.get(id).is_some()
    }

    /// Whether commits maintain a free-space tree. Without one no empty chunk is ever removed,
    /// since the root tree may contain free-space caches of older kernels, one for each block
    /// group.
    pub(crate) fn keeps_free_space_tree(&self) -> bool {
        self.superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE)
    }

    /// Whether this subvolume exists and is not deleted. One that is being dropped counts as
    /// deleted.
    pub(crate) fn has_subvolume(&self, id: TreeId) -> bool {
        id.is_subvolume() && self.trees.get(id).is_some_and(|tree| tree.item.refs > 0)
    }

    /// Returns the number of children of a tree's root node or, if the root is a leaf, of its
    /// items.
    pub(crate) fn children_of_root(&self, id: TreeId) -> Result<u64> {
        let root = self.trees.get(id).map(TreeRoot::root).ok_or(Errno::NOENT)?;
        let block = self.cache.fetch(&NodeRef::root(&root))?;
        Ok(block.header()?.nritems.into())
    }

    /// Returns the tree that contains the block group items.
    pub(crate) fn block_group_tree_id(&self) -> TreeId {
        if self.superblock.compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
            TreeId::BLOCK_GROUP
        } else {
            TreeId::EXTENT
        }
    }

    /// Returns the subvolumes, by id.
    pub(crate) fn subvolumes(&self) -> impl Iterator<Item = &TreeRoot> {
        self.trees.subvolumes()
    }

    /// Returns the subvolume that is mounted by default.
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

/// Reads all root items. A volume with thousands of snapshots has hundreds of leaves of them, which
/// several threads read at once, since most of the time is spent waiting for the device.
fn load_roots(root_tree: &Snapshot, rescue: &Rescue) -> Result<TreeRoots> {
    // If a node above the leaves can't be read, the range returns the error, or passes over it.
    let parts = root_tree.parts(MAX_LOADERS, MIN_LEAVES).unwrap_or_else(|_| vec![Key::MIN..=Key::MAX]);
    let load = |part: &RangeInclusive<Key>| roots_in(root_tree, part.clone(), rescue);
    let [first, others @ ..] = &*parts else { return Ok(TreeRoots::new()) };
    let found = ubtrfs_threads::thread::scope(|scope| {
        let load = &load;
        let begin = |part| Builder::new().name("roots".into()).spawn_scoped(scope, move || load(part));
        // If this user may have no more threads, this one reads the rest.
        let begun: Vec<_> = others.iter().map(|part| begin(part).map_err(|_| part)).collect();
        let first = load(first);
        let ends = begun.into_iter().map(|begun| match begun {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(part) => load(part),
        });
        std::iter::once(first).chain(ends).collect::<Result<Vec<_>>>()
    })?;
    let mut trees = TreeRoots::new();
    found.into_iter().flatten().for_each(|tree| trees.insert(tree));
    Ok(trees)
}

/// Returns the root items with keys in this range.
fn roots_in(root_tree: &Snapshot, range: RangeInclusive<Key>, rescue: &Rescue) -> Result<Vec<TreeRoot>> {
    let mut roots = Vec::new();
    for item in root_tree.range(range) {
        let item = item?;
        let key = item.key;
        if key.item_type == ItemType::ROOT_ITEM {
            match RootItem::parse(&item) {
                Ok(item) => roots.push(TreeRoot { key, item }),
                Err(error) if rescue.passes_over(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(roots)
}
