//! Rules that an item can be held against by itself, or against its neighbour in the leaf.
//!
//! They are those by which the kernel refuses a block when it reads one, so a block that passes
//! them can be relied on for sizes, ranges and alignment; what needs other blocks (references,
//! counts, names that must exist) is not judged here. A rule that is stricter than the kernel's
//! says so.

mod extent;
mod file;
mod leaf;
mod volume;

#[cfg(test)]
mod tests;

pub use leaf::{ItemFault, check_header, check_leaf};
pub use volume::check_chunk;

use crate::{ChecksumType, Error, Generation, Incompat, Ino, ItemType, Key, Result, Superblock, TreeId, objectid};

/// What the rules need to know of the volume.
#[derive(Clone, Copy, Debug)]
pub struct ItemContext {
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Bytes of a tree block.
    pub node_size: u32,
    /// The checksum algorithm, whose size decides that of checksum items.
    pub checksum: ChecksumType,
    /// The superblock's generation. Items may be one ahead of it: those of a log are.
    pub generation: Generation,
    /// The features that some items ask for.
    pub incompat: Incompat,
}

impl From<&Superblock> for ItemContext {
    fn from(superblock: &Superblock) -> Self {
        Self {
            sector_size: superblock.sector_size,
            node_size: superblock.node_size,
            checksum: superblock.checksum,
            generation: superblock.generation,
            incompat: superblock.incompat,
        }
    }
}

impl ItemContext {
    fn aligned(&self, what: &'static str, value: u64) -> Result<()> {
        require(value.is_multiple_of(u64::from(self.sector_size.max(1))), what, value)
    }

    fn generation(&self, what: &'static str, generation: Generation) -> Result<()> {
        require(generation <= self.generation.next(), what, generation.0)
    }
}

/// Holds an item against every rule that needs nothing but the item. Items of unknown type pass.
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

fn require(holds: bool, what: &'static str, value: u64) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::BadValue { what, value }) }
}

fn length(what: &'static str, item: &[u8], need: usize) -> Result<()> {
    if item.len() == need { Ok(()) } else { Err(Error::WrongLength { what, need, have: item.len() }) }
}

/// The item is one or more pieces of `size` bytes.
fn multiple(what: &'static str, item: &[u8], size: usize) -> Result<()> {
    let holds = !item.is_empty() && item.len().is_multiple_of(size);
    if holds { Ok(()) } else { Err(Error::WrongLength { what, need: size, have: item.len() }) }
}

/// `start + length` stays below 2^64, and there is a length.
fn range(what: &'static str, start: u64, length: u64) -> Result<()> {
    require(length != 0 && start.checked_add(length).is_some(), what, length)
}

fn is_file(ino: u64) -> bool {
    (Ino::FIRST_FREE.0..=Ino::LAST_FREE.0).contains(&ino)
}

/// Whether data can belong to the tree: subvolumes, data relocation and, for v1 caches, the root
/// tree.
fn holds_data(tree: TreeId) -> bool {
    tree.is_subvolume() || tree == TreeId::DATA_RELOC || tree == TreeId::ROOT
}
