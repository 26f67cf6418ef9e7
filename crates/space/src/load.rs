//! Loading the block groups and the free space of a volume that is being opened.

use std::collections::BTreeMap;

use ubtrfs_format::items::{BlockGroupFlags, BlockGroupItem, ChunkItem, DevExtent, DevItem};
use ubtrfs_format::{DeviceId, ItemType, Key, Logical, TreeId, Uuid, objectid};
use ubtrfs_tree::Snapshot;

use crate::chunks::Chunks;
use crate::device_map::DeviceMap;
use crate::error::{Error, Result};
use crate::free_map::FreeMap;
use crate::free_space_tree::FreeSpaceReader;
use crate::group::{BlockGroup, FreeSpaceForm, Giving};
use crate::groups::Groups;
use crate::profiles::Profiles;
use crate::space::SpaceState;
use crate::stripe_length;

/// The sources from which the state of space is read.
pub struct SpaceSources<'a> {
    /// The last commit's extent tree.
    pub extent_tree: &'a Snapshot,
    /// The tree with the block group items: the block-group tree, or the extent tree.
    pub block_group_tree: &'a Snapshot,
    /// The tree of device extents.
    pub dev_tree: &'a Snapshot,
    /// The free-space tree, if there is a valid one.
    pub free_space_tree: Option<&'a Snapshot>,
    /// The volume has a free-space tree, valid or not. It will be valid after the next commit.
    pub keeps_free_space_tree: bool,
    /// All chunks, in the order of their logical addresses.
    pub chunks: &'a [(Logical, ChunkItem)],
    /// All devices, missing ones and those of seeds included.
    pub devices: &'a [DevItem],
    /// Devices on which no chunks are made.
    pub closed_devices: &'a [DeviceId],
    /// Devices on which nothing is allocated, though chunks on them have room.
    pub seed_devices: &'a [DeviceId],
    /// Bytes of a node.
    pub node_size: u64,
    /// Bytes of a sector.
    pub sector_size: u64,
    /// The most bytes of a new chunk, if that is limited.
    pub max_chunk: Option<u64>,
    /// Data and metadata share block groups.
    pub mixed: bool,
    /// The UUID of the chunk tree.
    pub chunk_tree_uuid: Uuid,
}

impl SpaceSources<'_> {
    fn is_on_seeds(&self, chunk: &ChunkItem) -> bool {
        chunk.stripes.iter().any(|stripe| self.seed_devices.contains(&stripe.devid))
    }

    /// Returns a profile, or single if it needs more devices than are open for chunks.
    fn profile_for_own_devices(&self, flags: BlockGroupFlags) -> BlockGroupFlags {
        let open = self.devices.iter().filter(|item| !self.closed_devices.contains(&item.devid)).count();
        let is_enough = flags.raid().is_some_and(|raid| raid.least_devices <= open);
        if is_enough { flags.profile() } else { BlockGroupFlags(0) }
    }
}

/// Reads block groups and their free space.
pub fn load_space(sources: &SpaceSources<'_>) -> Result<SpaceState> {
    let mut devices = DeviceMap::new(sources.devices, sources.closed_devices.iter().copied());
    check_device_extents(sources.dev_tree, sources.chunks)?;
    let mut groups = Groups::default();
    let mut free_space = sources.free_space_tree.map(FreeSpaceReader::new);
    for (start, chunk) in sources.chunks {
        if !devices.occupy(chunk) {
            // A write to one chunk would overwrite the other.
            return Err(Error::Inconsistent {
                tree: TreeId::CHUNK,
                key: Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0),
                what: "another chunk has some of its space on a device",
            });
        }
        groups.insert(load_group(sources, free_space.as_mut(), *start, chunk)?);
    }
    let profile_of = |kind: BlockGroupFlags, fallback: BlockGroupFlags| {
        let mut chunks = sources.chunks.iter().rev().map(|(_, chunk)| chunk).filter(|chunk| chunk.flags.contains(kind));
        let newest = chunks.clone().next();
        if let Some(own) = chunks.find(|chunk| !sources.is_on_seeds(chunk)) {
            return own.flags.profile();
        }
        // The profile of a seed, if the volume's own devices are enough for it; else a single copy.
        newest.map_or(fallback, |chunk| sources.profile_for_own_devices(chunk.flags))
    };
    let metadata = profile_of(BlockGroupFlags::METADATA, BlockGroupFlags::DUP);
    let data = profile_of(BlockGroupFlags::DATA, BlockGroupFlags(0));
    let system = profile_of(BlockGroupFlags::SYSTEM, metadata);
    Ok(SpaceState {
        groups,
        devices,
        chunks: Chunks::new(sources.chunk_tree_uuid, sources.max_chunk),
        profiles: Profiles::new(data, metadata, system, sources.mixed),
        ..SpaceState::empty(sources.node_size, sources.sector_size)
    })
}

/// Fails unless the device tree has exactly the device extents of the chunks: otherwise a write to
/// a chunk could overwrite something else. The kernel does not mount a volume for which this does
/// not hold.
fn check_device_extents(dev_tree: &Snapshot, chunks: &[(Logical, ChunkItem)]) -> Result<()> {
    let wrong = |key, what| Err(Error::Inconsistent { tree: TreeId::DEV, key, what });
    let key = |devid: u64, at: u64| Key::new(devid, ItemType::DEV_EXTENT, at);
    let stripes = chunks.iter().flat_map(|(start, chunk)| {
        let length = stripe_length(chunk);
        chunk.stripes.iter().map(move |stripe| (key(stripe.devid.0, stripe.offset.0), (*start, length)))
    });
    let mut missing: BTreeMap<Key, (Logical, u64)> = stripes.collect();
    for item in dev_tree.range(key(1, 0)..=key(u64::MAX, u64::MAX)) {
        let item = item?;
        if item.key.item_type != ItemType::DEV_EXTENT {
            continue;
        }
        let extent = DevExtent::parse(&item)?;
        if missing.remove(&item.key) != Some((extent.chunk_offset, extent.length)) {
            return wrong(item.key, "a device extent is of no chunk");
        }
    }
    missing.first_key_value().map_or(Ok(()), |(key, _)| wrong(*key, "the device extent of a chunk is missing"))
}

fn load_group(
    sources: &SpaceSources<'_>,
    free_space: Option<&mut FreeSpaceReader>,
    start: Logical,
    chunk: &ChunkItem,
) -> Result<BlockGroup> {
    let mut group = BlockGroup::empty(start, chunk.length, chunk.flags);
    let key = Key::new(start.0, ItemType::BLOCK_GROUP_ITEM, chunk.length);
    let item = sources
        .block_group_tree
        .get(&key)?
        .ok_or(Error::MissingItem { tree: sources.block_group_tree.root().owner, key })?;
    let item = BlockGroupItem::parse(&item)?;
    // By invariant 9 both come from one commit, so a group that contradicts its chunk is refused.
    if item.used > chunk.length || BlockGroupFlags(item.flags) != chunk.flags {
        return Err(Error::Inconsistent {
            tree: sources.block_group_tree.root().owner,
            key,
            what: "the block group contradicts its chunk",
        });
    }
    let recorded = match free_space {
        Some(reader) => reader.read_group(start, chunk.length, sources.sector_size)?,
        None => None,
    };
    if let Some((free, form)) = recorded.filter(|(free, _)| free.total() == chunk.length - item.used) {
        group.recorded_free = free;
        group.form = form;
    } else {
        group.recorded_free = complement_of_extents(sources, start, chunk.length)?;
        group.form = FreeSpaceForm::Extents;
        group.rewrite_free_space = sources.keeps_free_space_tree;
        group.touched = sources.keeps_free_space_tree;
    }
    Ok(with_available(group, chunk, sources.is_on_seeds(chunk)))
}

/// Completes a group with what follows from its recorded free space.
fn with_available(mut group: BlockGroup, chunk: &ChunkItem, is_on_seeds: bool) -> BlockGroup {
    group.recorded_used = chunk.length - group.recorded_free.total();
    group.available = group.recorded_free.clone();
    for (at, len) in DeviceMap::superblock_ranges(group.start, chunk) {
        group.available.remove_any(at.0, len);
    }
    if is_on_seeds {
        group.giving = Giving::Closed;
        group.held = Some(std::mem::take(&mut group.available));
    }
    group
}

fn complement_of_extents(sources: &SpaceSources<'_>, start: Logical, length: u64) -> Result<FreeMap> {
    let mut free = FreeMap::default();
    free.insert(start.0, length);
    let end = start.0.saturating_add(length);
    let range = Key::new(start.0, ItemType(0), 0)..=Key::new(end - 1, ItemType(u8::MAX), u64::MAX);
    for item in sources.extent_tree.range(range) {
        let item = item?;
        let key = item.key;
        let extent_length = match key.item_type {
            ItemType::EXTENT_ITEM => key.offset,
            ItemType::METADATA_ITEM => sources.node_size,
            _ => continue,
        };
        if !free.remove(key.objectid, extent_length) {
            return Err(Error::Inconsistent {
                tree: TreeId::EXTENT,
                key,
                what: "the extent overlaps another one or leaves its block group",
            });
        }
    }
    Ok(free)
}
