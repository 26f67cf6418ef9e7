//! The chunks and devices of a volume, by its chunk tree, as far as that can be read.

use std::collections::{BTreeMap, HashSet};

use ubtrfs_errors::sentence;
use ubtrfs_format::items::{ChunkItem, DevItem, sys_chunks};
use ubtrfs_format::{
    ChecksumType, DeviceId, Generation, Header, ItemType, LeafBuilder, Logical, MAX_LEVEL, Node, NodeExpectation,
    Superblock, TreeId, Uuid, verify_node_checksum,
};
use ubtrfs_volume::ChunkMap;

use crate::report::Problems;

/// The properties that all blocks of a volume have in common.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) node_size: u32,
    pub(crate) sector_size: u32,
    pub(crate) checksum: ChecksumType,
    /// The ids that blocks may carry: the volume's, and those of seeds.
    pub(crate) fsids: Vec<Uuid>,
}

impl Geometry {
    pub(crate) fn of(superblock: &Superblock) -> Self {
        Self {
            node_size: superblock.node_size,
            sector_size: superblock.sector_size,
            checksum: superblock.checksum,
            fsids: vec![superblock.metadata_fsid()],
        }
    }

    /// Corrects the checksum of a block at this address that has a CRC-32C, though the volume's
    /// checksum is another one: btrfs-image has changed the block and written that.
    pub(crate) fn mend_checksum(&self, at: Logical, block: &mut [u8]) {
        let is_of_volume =
            Header::parse(block).is_ok_and(|header| header.bytenr == at && self.fsids.contains(&header.fsid));
        if self.checksum != ChecksumType::Crc32c
            && is_of_volume
            && verify_node_checksum(block, self.checksum).is_err()
            && verify_node_checksum(block, ChecksumType::Crc32c).is_ok()
        {
            LeafBuilder::seal(block, self.checksum);
        }
    }

    /// Checks that `block` is the expected one and sound in itself, and returns why it is not.
    pub(crate) fn check(&self, block: &[u8], expected: &Expected) -> Result<(), String> {
        verify_node_checksum(block, self.checksum).map_err(|error| sentence(&error))?;
        let found = Header::parse(block).map_err(|error| sentence(&error))?.fsid;
        let fsid = self.fsids.iter().find(|fsid| **fsid == found).or(self.fsids.first());
        let expected = NodeExpectation {
            bytenr: expected.at,
            level: Some(expected.level),
            generation: expected.generation,
            owner: None,
            first_key: None,
            fsid: fsid.copied().unwrap_or(Uuid::NIL),
        };
        Node::check(block, &expected, self.sector_size).map(|_| ()).map_err(|error| sentence(&error))
    }
}

/// A block that another block or the superblock refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) at: Logical,
    pub(crate) level: u8,
    pub(crate) generation: Option<Generation>,
    pub(crate) tree: TreeId,
}

/// The chunks and devices of a volume.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// The chunks.
    pub(crate) map: ChunkMap,
    /// The devices, by their numbers.
    pub(crate) devices: BTreeMap<u64, DevItem>,
}

impl Chunks {
    /// Reads the chunk tree. `load` returns a block if it is good, by the chunks that are known so
    /// far. What can't be read is a problem, and left out.
    pub(crate) fn read(
        superblock: &Superblock,
        problems: &mut Problems,
        mut load: impl FnMut(&ChunkMap, &Expected) -> Option<Vec<u8>>,
    ) -> Self {
        let mut found = Found::default();
        let mut system = ChunkMap::default();
        match sys_chunks(&superblock.sys_chunk_array) {
            Ok(chunks) => {
                for (key, chunk) in chunks {
                    let start = Logical(key.offset);
                    if let Err(error) = system.insert(start, chunk.clone(), superblock.sector_size, |_| Some(u64::MAX))
                    {
                        problems.add(|| format!("a system chunk in the superblock: {}", sentence(&error)));
                    } else {
                        found.chunks.insert(start.0, chunk);
                    }
                }
            }
            Err(error) => problems.add(|| format!("the system chunks in the superblock: {}", sentence(&error))),
        }
        found.devices.insert(superblock.dev_item.devid.0, superblock.dev_item);
        let root = Expected {
            at: superblock.chunk_root,
            level: superblock.chunk_root_level,
            generation: Some(superblock.chunk_root_generation),
            tree: TreeId::CHUNK,
        };
        found.visit(&root, &mut |expected| load(&system, expected), problems);
        let mut map = ChunkMap::default();
        for (start, chunk) in found.chunks {
            let size = |devid: DeviceId| found.devices.get(&devid.0).map(|device| device.total_bytes);
            if let Err(error) = map.insert(Logical(start), chunk, superblock.sector_size, size) {
                problems.add(|| format!("the chunk at {start} is left out: {}", sentence(&error)));
            }
        }
        Self { map, devices: found.devices }
    }
}

#[derive(Default)]
struct Found {
    chunks: BTreeMap<u64, ChunkItem>,
    devices: BTreeMap<u64, DevItem>,
    seen: HashSet<Logical>,
}

impl Found {
    fn visit(
        &mut self,
        expected: &Expected,
        load: &mut dyn FnMut(&Expected) -> Option<Vec<u8>>,
        problems: &mut Problems,
    ) {
        if !self.seen.insert(expected.at) || expected.level >= MAX_LEVEL {
            return;
        }
        let Some(block) = load(expected) else {
            problems.add(|| format!("the chunk tree's block at {} can't be read", expected.at));
            return;
        };
        match Node::view(&block) {
            Ok(Node::Leaf(leaf)) => leaf.iter().for_each(|(key, data)| match key.item_type {
                ItemType::CHUNK_ITEM => match ChunkItem::parse(data) {
                    Ok(chunk) => drop(self.chunks.insert(key.offset, chunk)),
                    Err(error) => problems.add(|| format!("the chunk at {}: {}", key.offset, sentence(&error))),
                },
                ItemType::DEV_ITEM => match DevItem::parse(data) {
                    Ok(device) => drop(self.devices.insert(device.devid.0, device)),
                    Err(error) => problems.add(|| format!("the item of device {}: {}", key.offset, sentence(&error))),
                },
                _ => {}
            }),
            Ok(Node::Internal(node)) => {
                let Some(level) = expected.level.checked_sub(1) else { return };
                for child in node.iter() {
                    let child =
                        Expected { at: child.bytenr, level, generation: Some(child.generation), tree: TreeId::CHUNK };
                    self.visit(&child, load, problems);
                }
            }
            Err(_) => {}
        }
    }
}
