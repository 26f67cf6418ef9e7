//! Rules that can be checked for an item by itself, or with its neighbour in the leaf.
//!
//! They are the rules by which the kernel refuses a block when it reads one, so a block that
//! satisfies them can be relied on for sizes, ranges and alignment. Rules that need other blocks
//! (references, counts, names that must exist) are not checked here. Rules that are stricter than
//! the kernel's are marked.

mod extent;
mod file;
mod leaf;
mod rules;
mod volume;

#[cfg(test)]
mod tests;

pub use leaf::{ItemFault, check_header, check_leaf};
pub use rules::ItemContext;
pub use volume::check_chunk;

use self::rules::{length, multiple, require};
use crate::{ItemType, Key, Result, objectid};

/// Checks an item by every rule that needs nothing but the item. Items of unknown type pass.
pub fn check_item(key: &Key, item: &[u8], context: &ItemContext) -> Result<()> {
    match key.item_type {
        ItemType::INODE_ITEM => file::inode(key, item, context),
        ItemType::INODE_REF => file::inode_ref(item),
        ItemType::INODE_EXTREF => file::extref(item),
        ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => file::entries(key, item, context),
        ItemType::DIR_LOG_INDEX => length("directory log range", item, 8),
        ItemType::ORPHAN_ITEM => {
            require(key.objectid == objectid::ORPHAN, "orphan item objectid", key.objectid)?;
            length("orphan item", item, 0)
        }
        ItemType::EXTENT_DATA => file::extent_data(key, item, context),
        ItemType::EXTENT_CSUM => extent::csum(key, item, context).map(drop),
        ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => extent::extent(key, item, context),
        ItemType::TREE_BLOCK_REF
        | ItemType::SHARED_BLOCK_REF
        | ItemType::EXTENT_DATA_REF
        | ItemType::SHARED_DATA_REF
        | ItemType::EXTENT_OWNER_REF => extent::keyed_ref(key, item, context),
        ItemType::ROOT_ITEM => volume::root(key, item, context),
        ItemType::ROOT_REF | ItemType::ROOT_BACKREF => volume::root_ref(item),
        ItemType::BLOCK_GROUP_ITEM => volume::block_group(key, item, context),
        ItemType::CHUNK_ITEM => volume::chunk(key, item, context),
        ItemType::DEV_ITEM => volume::device(key, item),
        ItemType::DEV_EXTENT => volume::device_extent(key, item, context),
        ItemType::FREE_SPACE_INFO => volume::free_space_info(key, item, context),
        ItemType::FREE_SPACE_EXTENT => volume::free_space_extent(key, item, context),
        ItemType::FREE_SPACE_BITMAP => volume::free_space_bitmap(key, item, context),
        ItemType::RAID_STRIPE => volume::raid_stripe(key, item, context),
        ItemType::UUID_KEY_SUBVOL | ItemType::UUID_KEY_RECEIVED_SUBVOL => multiple("uuid item", item, 8),
        _ => Ok(()),
    }
}
