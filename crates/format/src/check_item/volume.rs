//! Trees, chunks, devices, block groups and free space.

use super::rules::{ItemContext, length, multiple, range, require};
use crate::items::{
    BlockGroupFlags, BlockGroupItem, ChunkItem, DevExtent, DevItem, FreeSpaceInfo, RootFlags, RootItem, RootRef,
};
use crate::{Error, Incompat, ItemType, Key, Logical, MAX_LEVEL, Result, TreeId, objectid};

/// Bits in a full free-space bitmap.
const BITMAP_BITS: u64 = 8 * FreeSpaceInfo::BITMAP_BYTES as u64;
/// Bytes of a stripe in a RAID stripe item.
const RAID_STRIPE_SIZE: usize = 16;

pub(super) fn root(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    require(key.objectid != 0, "root item objectid", 0)?;
    let root = RootItem::parse(item)?;
    context.generation("root item generation", root.generation)?;
    context.generation("root item generation_v2", root.generation_v2)?;
    context.generation("root item last_snapshot", root.last_snapshot)?;
    context.aligned("root item bytenr", root.bytenr.0)?;
    require(root.level < MAX_LEVEL, "root item level", root.level.into())?;
    require(root.drop_level < MAX_LEVEL, "root item drop_level", root.drop_level.into())?;
    require(
        root.flags & !(RootFlags::RDONLY | RootFlags::SYNOLOGY | RootFlags::DEAD) == 0,
        "root item flags",
        root.flags,
    )
}

pub(super) fn root_ref(item: &[u8]) -> Result<()> {
    RootRef::parse(item).map(drop)
}

pub(super) fn block_group(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    range("block group length", key.objectid, key.offset)?;
    let group = BlockGroupItem::parse(item)?;
    require(group.chunk_objectid == objectid::FIRST_CHUNK_TREE, "block group chunk_objectid", group.chunk_objectid)?;
    require(group.used <= key.offset, "block group use", group.used)?;
    group_type(BlockGroupFlags(group.flags), "block group type", context)
}

/// Checks that the type is data, metadata, system, or data with metadata if that feature is on, and
/// that there is at most one profile.
fn group_type(flags: BlockGroupFlags, what: &'static str, context: &ItemContext) -> Result<()> {
    let mixed = BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA);
    let known = match flags.types() {
        BlockGroupFlags::DATA | BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM => true,
        types => types == mixed && context.incompat.contains(Incompat::MIXED_GROUPS),
    };
    require(known && flags.profile().0.count_ones() <= 1, what, flags.0)
}

pub(super) fn chunk(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    require(key.objectid == objectid::FIRST_CHUNK_TREE, "chunk item objectid", key.objectid)?;
    check_chunk(Logical(key.offset), &ChunkItem::parse(item)?, context)
}

/// Checks a chunk, from the chunk tree or the superblock, by its rules.
pub fn check_chunk(start: Logical, chunk: &ChunkItem, context: &ItemContext) -> Result<()> {
    context.aligned("chunk address", start.0)?;
    context.aligned("chunk length", chunk.length)?;
    range("chunk length", start.0, chunk.length)?;
    require(chunk.sector_size == context.sector_size, "chunk sector_size", chunk.sector_size.into())?;
    group_type(chunk.flags, "chunk type", context)?;
    let stripes = chunk.stripes.len();
    let fits = match chunk.flags.profile() {
        BlockGroupFlags::DUP | BlockGroupFlags::RAID1 => stripes == 2,
        BlockGroupFlags::RAID1C3 => stripes == 3,
        BlockGroupFlags::RAID1C4 => stripes == 4,
        BlockGroupFlags::RAID10 => stripes >= 2 && stripes.is_multiple_of(2) && chunk.sub_stripes == 2,
        BlockGroupFlags::RAID5 => stripes >= 2,
        BlockGroupFlags::RAID6 => stripes >= 3,
        BlockGroupFlags::RAID0 => stripes >= 1,
        _ => stripes == 1,
    };
    require(fits, "chunk num_stripes", stripes as u64)?;
    chunk.stripes.iter().try_for_each(|stripe| context.aligned("chunk stripe offset", stripe.offset.0))
}

pub(super) fn device(key: &Key, item: &[u8]) -> Result<()> {
    require(key.objectid == objectid::DEV_ITEMS, "device item objectid", key.objectid)?;
    let device = DevItem::parse(item)?;
    require(device.devid.0 == key.offset, "device item devid", device.devid.0)?;
    require(device.bytes_used <= device.total_bytes, "device item use", device.bytes_used)
}

pub(super) fn device_extent(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    let extent = DevExtent::parse(item)?;
    require(extent.chunk_tree == TreeId::CHUNK.0, "device extent chunk_tree", extent.chunk_tree)?;
    require(
        extent.chunk_objectid == objectid::FIRST_CHUNK_TREE,
        "device extent chunk_objectid",
        extent.chunk_objectid,
    )?;
    context.aligned("device extent address", key.offset)?;
    context.aligned("device extent chunk_offset", extent.chunk_offset.0)?;
    context.aligned("device extent length", extent.length)?;
    range("device extent length", key.offset, extent.length)
}

pub(super) fn free_space_info(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    free_range(key, context)?;
    let info = FreeSpaceInfo::parse(item)?;
    require(info.flags & !FreeSpaceInfo::USING_BITMAPS == 0, "free space info flags", info.flags.into())
}

pub(super) fn free_space_extent(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    free_range(key, context)?;
    length("free space extent", item, 0)
}

pub(super) fn free_space_bitmap(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    free_range(key, context)?;
    let sectors = key.offset / u64::from(context.sector_size.max(1));
    require(sectors <= BITMAP_BITS, "free space bitmap length", key.offset)?;
    length("free space bitmap", item, sectors.div_ceil(8) as usize)
}

fn free_range(key: &Key, context: &ItemContext) -> Result<()> {
    context.aligned("free space address", key.objectid)?;
    context.aligned("free space length", key.offset)?;
    range("free space length", key.objectid, key.offset)
}

pub(super) fn raid_stripe(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    if !context.incompat.contains(Incompat::RAID_STRIPE_TREE) {
        return Err(Error::UnexpectedItem(ItemType::RAID_STRIPE));
    }
    context.aligned("RAID stripe address", key.objectid)?;
    multiple("RAID stripe", item, RAID_STRIPE_SIZE)
}
