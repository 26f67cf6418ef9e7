//! The rules for a leaf as a whole: for every item by itself, and for each with the one before it.

use super::rules::{ItemContext, require};
use super::{check_item, extent};
use crate::items::{DevExtent, FileExtent};
use crate::{BACKREF_REV_MIXED, Error, Header, Incompat, ItemType, Key, Leaf, NodeFlags, Result, TreeId, Uuid};

/// The top byte of a header's flags.
const BACKREF_REV: u64 = 0xff << 56;

/// Checks a block's header by the rules that [`Node::check`](crate::Node::check) leaves out because
/// blocks that were never written break them.
pub fn check_header(header: &Header, chunk_tree_uuid: Uuid) -> Result<()> {
    require(header.flags & NodeFlags::WRITTEN != 0, "block flags", header.flags)?;
    require(header.flags & BACKREF_REV == BACKREF_REV_MIXED, "block backref revision", header.flags >> 56)?;
    require(header.owner != TreeId(0), "block owner", 0)?;
    require(header.chunk_tree_uuid == chunk_tree_uuid, "block chunk_tree_uuid", header.bytenr.0)
}

/// Returns whether a tree always has items.
fn is_never_empty(owner: TreeId, context: &ItemContext) -> bool {
    match owner {
        TreeId::ROOT | TreeId::CHUNK | TreeId::DEV | TreeId::FS | TreeId::DATA_RELOC => true,
        TreeId::EXTENT => !context.incompat.contains(Incompat::EXTENT_TREE_V2),
        _ => false,
    }
}

/// An item that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("item {slot} {key}")]
pub struct ItemFault {
    /// Its slot.
    pub slot: usize,
    /// Its key.
    pub key: Key,
    /// The rule that it breaks.
    #[source]
    pub error: Error,
}

/// Checks every item of a leaf (whose structure [`Node::check`](crate::Node::check) has approved)
/// by the rules, and against the item before it. `owner` is the header's. Stops at the first fault.
pub fn check_leaf(owner: TreeId, leaf: &Leaf<'_>, context: &ItemContext) -> std::result::Result<(), ItemFault> {
    if leaf.is_empty() && is_never_empty(owner, context) {
        return Err(ItemFault { slot: 0, key: Key::MIN, error: Error::ItemCount(0) });
    }
    let mut last: Option<(Key, &[u8])> = None;
    for slot in 0..leaf.len() {
        let key = leaf.key(slot).unwrap_or_default();
        let fault = |error| ItemFault { slot, key, error };
        let item = leaf.data(slot).ok_or_else(|| fault(Error::ItemPlacement { slot }))?;
        check_item(&key, item, context).map_err(fault)?;
        // A log has only changed items, so it may have an item without those to which that belongs.
        if let Some((last_key, last_item)) = last.filter(|_| owner != TreeId::LOG) {
            after(owner, (&last_key, last_item), &key, context).map_err(fault)?;
        }
        last = Some((key, item));
    }
    Ok(())
}

fn after(owner: TreeId, (last, last_item): (&Key, &[u8]), key: &Key, context: &ItemContext) -> Result<()> {
    let same_type = last.item_type == key.item_type;
    match key.item_type {
        ItemType::XATTR_ITEM
        | ItemType::INODE_REF
        | ItemType::DIR_INDEX
        | ItemType::DIR_ITEM
        | ItemType::EXTENT_DATA
            if (owner.is_subvolume() || owner == TreeId::DATA_RELOC) && last.objectid != key.objectid =>
        {
            Err(Error::UnexpectedItem(key.item_type))
        }
        ItemType::EXTENT_DATA if same_type => {
            let end = last.offset.saturating_add(FileExtent::parse(last_item)?.len());
            // An inline extent ends where the file does, in the middle of a sector; nothing follows
            // in that sector.
            require(end <= key.offset, "start of a file extent inside the one before", key.offset)
        }
        ItemType::EXTENT_CSUM if same_type => {
            let end = extent::csum(last, last_item, context)?;
            require(end.0 <= key.offset, "start of a checksum item inside the one before", key.offset)
        }
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM
            if matches!(last.item_type, ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM) =>
        {
            let end = last.objectid.saturating_add(extent::extent_length(last, context));
            require(end <= key.objectid, "start of an extent inside the one before", key.objectid)
        }
        ItemType::DEV_EXTENT if same_type && last.objectid == key.objectid => {
            let end = last.offset.saturating_add(DevExtent::parse(last_item)?.length);
            require(end <= key.offset, "start of a device extent inside the one before", key.offset)
        }
        _ => Ok(()),
    }
}
