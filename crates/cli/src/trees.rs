//! Reads the trees of a volume without the engine.

use std::sync::Arc;

use ubtrfs_format::items::RootItem;
use ubtrfs_format::{ItemType, Key, NodeExpectation, Superblock, TreeId};
use ubtrfs_tree::{BoxError, Damage, Geometry, NodeCache, NodeSource, Root, Snapshot};
use ubtrfs_volume::Volume;

use crate::failure::{Failure, Result};

/// The most names on a path that is composed of names in trees, since a damaged volume may have a
/// loop.
pub const MAX_NAMES: usize = 4096;
/// The size of the cache for nodes, in bytes.
const CACHE: usize = 64 << 20;

/// Names of trees, for people.
const NAMES: [(&str, TreeId); 15] = [
    ("root", TreeId::ROOT),
    ("extent", TreeId::EXTENT),
    ("chunk", TreeId::CHUNK),
    ("dev", TreeId::DEV),
    ("device", TreeId::DEV),
    ("fs", TreeId::FS),
    ("csum", TreeId::CSUM),
    ("checksum", TreeId::CSUM),
    ("quota", TreeId::QUOTA),
    ("uuid", TreeId::UUID),
    ("free-space", TreeId::FREE_SPACE),
    ("block-group", TreeId::BLOCK_GROUP),
    ("raid-stripe", TreeId::RAID_STRIPE),
    ("log", TreeId::LOG),
    ("data-reloc", TreeId::DATA_RELOC),
];

/// Parses a tree's number or its name.
pub fn parse_id(text: &str) -> Result<TreeId> {
    let named = NAMES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name)).map(|(_, id)| *id);
    let number = || text.parse().ok().map(TreeId);
    let negative = || text.parse::<i64>().ok().map(|number| TreeId(number.cast_unsigned()));
    named.or_else(number).or_else(negative).ok_or_else(|| {
        let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
        Failure::new(format!("there is no tree '{text}': name its number, or {}", names.join(", ")))
    })
}

/// Returns the name of a tree.
pub fn name(id: TreeId) -> String {
    match NAMES.iter().find(|(_, other)| *other == id) {
        Some((name, _)) => format!("{name} tree"),
        None if id.is_subvolume() => format!("subvolume {id}"),
        None => format!("tree {}", id.0.cast_signed()),
    }
}

struct Nodes(Arc<Volume>);

impl NodeSource for Nodes {
    fn read_node(&self, expected: &NodeExpectation) -> std::result::Result<Vec<u8>, BoxError> {
        Ok(self.0.reader().read_node(expected)?.to_vec())
    }
}

/// All trees of the last commit of a volume.
pub struct Trees {
    superblock: Superblock,
    cache: Arc<NodeCache>,
}

impl Trees {
    /// Opens the trees of a volume.
    pub fn new(volume: &Arc<Volume>) -> Self {
        Self::cached(volume, |cache| cache)
    }

    /// Opens the trees of a damaged volume: ranges skip what can't be read, and note it in
    /// `damage`.
    pub fn passing_over(volume: &Arc<Volume>, damage: Arc<Damage>) -> Self {
        Self::cached(volume, |cache| cache.passing_over(damage))
    }

    fn cached(volume: &Arc<Volume>, adapt: impl FnOnce(NodeCache) -> NodeCache) -> Self {
        let superblock = volume.superblocks().current();
        let geometry = Geometry {
            node_size: superblock.node_size,
            sector_size: superblock.sector_size,
            fsid: superblock.metadata_fsid(),
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            checksum: superblock.checksum,
        };
        let cache = Arc::new(adapt(NodeCache::new(Arc::new(Nodes(Arc::clone(volume))), geometry, CACHE)));
        Self { superblock, cache }
    }

    /// Returns the superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the tree under a root.
    pub fn tree(&self, root: Root) -> Snapshot {
        Snapshot::new(Arc::clone(&self.cache), root)
    }

    /// Returns the root tree.
    pub fn root_tree(&self) -> Snapshot {
        let superblock = &self.superblock;
        self.tree(Root {
            owner: TreeId::ROOT,
            bytenr: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        })
    }

    /// Returns the chunk tree.
    pub fn chunk_tree(&self) -> Snapshot {
        let superblock = &self.superblock;
        self.tree(Root {
            owner: TreeId::CHUNK,
            bytenr: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        })
    }

    /// Returns the log root tree, if there is a log. Its generation is that of the commit that was
    /// to follow.
    pub fn log_root_tree(&self) -> Option<Snapshot> {
        let superblock = &self.superblock;
        (superblock.log_root.0 != 0).then(|| {
            self.tree(Root {
                owner: TreeId::LOG,
                bytenr: superblock.log_root,
                generation: superblock.generation.next(),
                level: superblock.log_root_level,
            })
        })
    }

    /// Returns the tree that a root item describes.
    pub fn described(&self, owner: TreeId, item: &RootItem) -> Snapshot {
        self.tree(Root { owner, bytenr: item.bytenr, generation: item.generation, level: item.level })
    }

    /// Returns the root item of a tree from the root tree.
    pub fn root_item(&self, id: TreeId) -> Result<Option<RootItem>> {
        let range = Key::new(id.0, ItemType::ROOT_ITEM, 0)..=Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX);
        let Some(item) = self.root_tree().range(range).next() else { return Ok(None) };
        let item = item.map_err(|error| Failure::of(&error))?;
        RootItem::parse(&item).map(Some).map_err(|error| Failure::about(format_args!("root item of {id}"), &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_found_by_name_and_number() {
        assert_eq!(parse_id("root").unwrap(), TreeId::ROOT);
        assert_eq!(parse_id("CSUM").unwrap(), TreeId::CSUM);
        assert_eq!(parse_id("257").unwrap(), TreeId(257));
        assert_eq!(parse_id("-9").unwrap(), TreeId::DATA_RELOC);
        assert!(parse_id("nonsense").is_err());
        assert_eq!(name(TreeId::CSUM), "csum tree");
        assert_eq!(name(TreeId(257)), "subvolume 257");
        assert_eq!(name(TreeId::RELOC), "tree -8");
    }
}
