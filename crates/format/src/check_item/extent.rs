//! Allocated extents, references to them, and data checksums.

use super::rules::{ItemContext, holds_data, is_file, length, multiple, range, require};
use crate::items::{CsumItem, DataRef, ExtentFlags, ExtentItem, InlineRef, decode_data_ref, decode_shared_data_ref};
use crate::{Error, Incompat, ItemType, Key, Logical, MAX_LEVEL, Result, TreeId, objectid};

/// Bytes of the content of a keyed `EXTENT_DATA_REF`.
const DATA_REF_SIZE: usize = 28;

/// Checks a checksum item, and returns the address where it ends.
pub(super) fn csum(key: &Key, item: &[u8], context: &ItemContext) -> Result<Logical> {
    require(key.objectid == objectid::EXTENT_CSUM, "checksum item objectid", key.objectid)?;
    let sums = CsumItem::parse(Logical(key.offset), item, context.checksum, context.sector_size)?;
    range("checksum item range", key.offset, sums.end().0.saturating_sub(key.offset))?;
    Ok(sums.end())
}

/// Returns the bytes of the extent that the key names.
pub(super) fn extent_length(key: &Key, context: &ItemContext) -> u64 {
    if key.item_type == ItemType::METADATA_ITEM { context.node_size.into() } else { key.offset }
}

pub(super) fn extent(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    let skinny = key.item_type == ItemType::METADATA_ITEM;
    if skinny && !context.incompat.contains(Incompat::SKINNY_METADATA) {
        return Err(Error::UnexpectedItem(key.item_type));
    }
    context.aligned("extent address", key.objectid)?;
    let size = extent_length(key, context);
    range("extent length", key.objectid, size)?;
    context.aligned("extent length", size)?;
    if skinny {
        require(key.offset < u64::from(MAX_LEVEL), "extent level", key.offset)?;
    }
    let extent = ExtentItem::parse(key, item)?;
    context.generation("extent generation", extent.generation)?;
    let is_data = match extent.flags & (ExtentFlags::DATA | ExtentFlags::TREE_BLOCK) {
        ExtentFlags::DATA => true,
        ExtentFlags::TREE_BLOCK => false,
        _ => return Err(Error::BadValue { what: "extent flags", value: extent.flags }),
    };
    if is_data {
        require(!skinny, "extent flags of a metadata item", extent.flags)?;
        require(extent.flags == ExtentFlags::DATA, "data extent flags", extent.flags)?;
    } else {
        require(size == u64::from(context.node_size), "tree block length", size)?;
        let known = ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF;
        require(extent.flags & !known == 0, "tree block flags", extent.flags)?;
        if let Some((_, level)) = extent.tree_block {
            require(level < MAX_LEVEL, "extent level", level.into())?;
        }
    }
    inline_refs(&extent, is_data, context)
}

fn inline_refs(extent: &ExtentItem, is_data: bool, context: &ItemContext) -> Result<()> {
    let mut total: u64 = 0;
    let mut last: Option<(ItemType, u64)> = None;
    for reference in &extent.inline_refs {
        let (item_type, sequence) = (reference.item_type(), reference.sequence());
        let for_data = !matches!(reference, InlineRef::TreeBlock { .. } | InlineRef::SharedBlock { .. });
        if for_data != is_data {
            return Err(Error::UnexpectedItem(item_type));
        }
        match reference {
            InlineRef::TreeBlock { root } => require(root.0 != 0, "reference root", 0)?,
            InlineRef::SharedBlock { parent } => context.aligned("reference parent", parent.0)?,
            InlineRef::Data { data, count } => data_ref(*data, *count, context)?,
            InlineRef::SharedData { parent, count } => {
                context.aligned("reference parent", parent.0)?;
                require(*count != 0, "reference count", 0)?;
            }
            InlineRef::Owner { .. } => {
                let allowed = context.incompat.contains(Incompat::SIMPLE_QUOTA) && last.is_none();
                require(allowed, "place of an owner reference", total)?;
            }
        }
        // Types ascend; within a type the sequence descends.
        let ordered = last.is_none_or(|(last_type, last_sequence)| {
            item_type > last_type || (item_type == last_type && sequence <= last_sequence)
        });
        require(ordered, "order of inline references", sequence)?;
        last = Some((item_type, sequence));
        total = total.saturating_add(reference.count());
    }
    require(total <= extent.refs, "extent reference count", extent.refs)
}

fn data_ref(data: DataRef, count: u32, context: &ItemContext) -> Result<()> {
    require(holds_data(data.root), "data reference root", data.root.0)?;
    let known = is_file(data.ino.0) || data.ino.0 == objectid::FREE_INO;
    require(known, "data reference inode", data.ino.0)?;
    context.aligned("data reference offset", data.offset)?;
    require(count != 0, "reference count", 0)
}

pub(super) fn keyed_ref(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    context.aligned("extent address", key.objectid)?;
    match key.item_type {
        ItemType::TREE_BLOCK_REF => {
            require(TreeId(key.offset) != TreeId(0), "reference root", key.offset)?;
            length("tree block reference", item, 0)
        }
        ItemType::SHARED_BLOCK_REF => {
            context.aligned("reference parent", key.offset)?;
            length("shared block reference", item, 0)
        }
        ItemType::SHARED_DATA_REF => {
            context.aligned("reference parent", key.offset)?;
            length("shared data reference", item, 4)?;
            require(decode_shared_data_ref(item)? != 0, "reference count", 0)
        }
        ItemType::EXTENT_OWNER_REF => {
            let allowed = context.incompat.contains(Incompat::SIMPLE_QUOTA);
            if allowed { length("owner reference", item, 8) } else { Err(Error::UnexpectedItem(key.item_type)) }
        }
        _ => {
            multiple("data reference", item, DATA_REF_SIZE)?;
            item.chunks_exact(DATA_REF_SIZE).try_for_each(|piece| {
                let (data, count) = decode_data_ref(piece)?;
                data_ref(data, count, context)
            })
        }
    }
}
