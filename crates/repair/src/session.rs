//! A volume that is read for a repair: its trees, as its superblock refers to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ubtrfs_format::items::RootItem;
use ubtrfs_format::{Generation, Incompat, ItemType, Key, NodeExpectation, Superblock, TreeId};
use ubtrfs_tree::{BoxError, Damage, Geometry, NodeCache, NodeSource, Root, Snapshot};
use ubtrfs_volume::{Device, OpenOptions, StagedDevice, Volume};

use crate::error::Result;
use crate::scan::FoundRootTree;

/// How many bytes of tree blocks are kept in memory.
const MAX_CACHED: usize = 64 << 20;

/// Reads tree blocks of a volume.
struct VolumeNodes(Arc<Volume>);

impl NodeSource for VolumeNodes {
    fn read_node(&self, expected: &NodeExpectation) -> std::result::Result<Vec<u8>, BoxError> {
        Ok(self.0.reader().read_node(expected)?.to_vec())
    }
}

/// A volume and its trees.
pub struct Session {
    pub volume: Arc<Volume>,
    /// The superblock that counts.
    pub superblock: Superblock,
    pub geometry: Geometry,
    /// Fails on blocks that can't be read.
    pub cache: Arc<NodeCache>,
    /// Passes over blocks that can't be read.
    pub lenient: Arc<NodeCache>,
    /// The root items of the root tree, by key.
    pub roots: BTreeMap<Key, RootItem>,
    /// Trees among them whose root item the root tree lacks.
    pub found: BTreeSet<TreeId>,
    /// All items of the root tree, if a part of it can't be read.
    pub found_root_tree: Option<BTreeMap<Key, Vec<u8>>>,
}

impl Session {
    /// Opens the volume on these devices.
    pub fn open(devices: &[Arc<StagedDevice>]) -> Result<Self> {
        let devices = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let volume = Arc::new(Volume::open(devices, OpenOptions { read_only: false })?);
        let superblock = volume.superblocks().current();
        let geometry = Geometry {
            node_size: volume.node_size(),
            sector_size: volume.sector_size(),
            fsid: volume.metadata_fsid(),
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            checksum: volume.checksum(),
        };
        let cache = || NodeCache::new(Arc::new(VolumeNodes(Arc::clone(&volume))), geometry, MAX_CACHED);
        let (strict, lenient) = (Arc::new(cache()), Arc::new(cache().passing_over(Arc::new(Damage::default()))));
        let mut session = Self {
            cache: strict,
            lenient,
            superblock,
            geometry,
            roots: BTreeMap::new(),
            found: BTreeSet::new(),
            found_root_tree: None,
            volume: Arc::clone(&volume),
        };
        let items = session.root_items().or_else(|_| session.scan())?;
        session.roots = items;
        Ok(session)
    }

    /// Reads the root items of the root tree.
    fn root_items(&self) -> Result<BTreeMap<Key, RootItem>> {
        let mut roots = BTreeMap::new();
        for item in self.tree(self.root_tree(), false).range(Key::MIN..=Key::MAX) {
            let item = item?;
            if item.key.item_type == ItemType::ROOT_ITEM {
                roots.insert(item.key, RootItem::parse(&item)?);
            }
        }
        Ok(roots)
    }

    /// Finds the items of the root tree in all space of metadata.
    fn scan(&mut self) -> Result<BTreeMap<Key, RootItem>> {
        let found = FoundRootTree::scan(&self.volume, &self.geometry).items;
        let items: BTreeMap<Key, Vec<u8>> = found.into_iter().map(|(key, (_, bytes))| (key, bytes)).collect();
        let roots = items.iter().filter(|(key, _)| key.item_type == ItemType::ROOT_ITEM);
        let roots = roots.map(|(key, bytes)| Ok((*key, RootItem::parse(bytes)?))).collect::<Result<_>>()?;
        self.found_root_tree = Some(items);
        Ok(roots)
    }

    /// The root of the root tree.
    pub fn root_tree(&self) -> Root {
        let superblock = &self.superblock;
        let (bytenr, generation, level) = (superblock.root, superblock.generation, superblock.root_level);
        Root { owner: TreeId::ROOT, bytenr, generation, level }
    }

    /// The root of the chunk tree.
    pub fn chunk_tree(&self) -> Root {
        let superblock = &self.superblock;
        Root {
            owner: TreeId::CHUNK,
            bytenr: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        }
    }

    /// The root of a tree that has one root item.
    pub fn root_of(&self, tree: TreeId) -> Option<Root> {
        match tree {
            TreeId::ROOT => Some(self.root_tree()),
            TreeId::CHUNK => Some(self.chunk_tree()),
            _ => self.root_item(tree).map(|(_, item)| root(tree, item)),
        }
    }

    /// The root item of a tree that has only one.
    pub fn root_item(&self, tree: TreeId) -> Option<(&Key, &RootItem)> {
        let range = Key::new(tree.0, ItemType::ROOT_ITEM, 0)..=Key::new(tree.0, ItemType::ROOT_ITEM, u64::MAX);
        self.roots.range(range).next()
    }

    /// All trees but those of logs. A tree whose deletion is under way is not among them, since a
    /// repair ends its deletion.
    pub fn all_roots(&self) -> Vec<Root> {
        let listed = self.roots.iter().filter(|(key, item)| !is_deleted(key, item));
        let listed = listed.map(|(key, item)| root(TreeId(key.objectid), item));
        [self.root_tree(), self.chunk_tree()].into_iter().chain(listed).collect()
    }

    /// The same volume by other root items.
    pub fn with_roots(&self, roots: BTreeMap<Key, RootItem>) -> Self {
        Self {
            volume: Arc::clone(&self.volume),
            superblock: self.superblock.clone(),
            geometry: self.geometry,
            cache: Arc::clone(&self.cache),
            lenient: Arc::clone(&self.lenient),
            roots,
            found: self.found.clone(),
            found_root_tree: self.found_root_tree.clone(),
        }
    }

    /// Whether extent items of tree blocks have the short form.
    pub fn has_skinny_metadata(&self) -> bool {
        self.superblock.incompat.contains(Incompat::SKINNY_METADATA)
    }

    /// A tree. `lenient` says that its ranges pass over blocks that can't be read.
    pub fn tree(&self, root: Root, lenient: bool) -> Snapshot {
        Snapshot::new(Arc::clone(if lenient { &self.lenient } else { &self.cache }), root)
    }
}

/// Whether a root item is of a subvolume that is being deleted.
pub fn is_deleted(key: &Key, item: &RootItem) -> bool {
    TreeId(key.objectid).is_subvolume() && item.refs == 0
}

fn root(owner: TreeId, item: &RootItem) -> Root {
    Root { owner, bytenr: item.bytenr, generation: item.generation, level: item.level }
}

/// The generation of the commit that a repair writes.
pub fn next_generation(session: &Session, newest: Generation) -> Generation {
    session.superblock.generation.max(newest).next()
}
