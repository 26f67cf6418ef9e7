//! Bytes that items take in a leaf, including their headers. Operations reserve metadata by them.

use ubtrfs_format::ITEM_HEADER_SIZE;
use ubtrfs_format::items::{DIR_ENTRY_HEADER, EXTREF_HEADER, INLINE_DATA_OFFSET};

const HEADER: u64 = ITEM_HEADER_SIZE as u64;

/// An `INODE_ITEM`.
pub(crate) const INODE_ITEM: u64 = HEADER + 160;
/// An `ORPHAN_ITEM`, which is empty.
pub(crate) const ORPHAN_ITEM: u64 = HEADER;
/// An `EXTENT_DATA` item that refers to an extent.
pub(crate) const FILE_EXTENT_ITEM: u64 = HEADER + 53;
/// An `EXTENT_DATA` item with inline data, without the data.
pub(crate) const INLINE_EXTENT_ITEM: u64 = HEADER + INLINE_DATA_OFFSET as u64;
/// The items of a data extent in the extent tree and the free-space tree: an `EXTENT_ITEM` with an
/// inline `EXTENT_DATA_REF`, and a `FREE_SPACE_EXTENT`.
pub(crate) const DATA_EXTENT_ITEMS: u64 = HEADER + 24 + 1 + 28 + HEADER;

/// A `DIR_ITEM` or `DIR_INDEX` of an entry.
pub(crate) const fn dir_entry_item(name: &[u8]) -> u64 {
    HEADER + (DIR_ENTRY_HEADER + name.len()) as u64
}

/// An `XATTR_ITEM` with a value of `value_len` bytes.
pub(crate) const fn xattr_item(name: &[u8], value_len: usize) -> u64 {
    HEADER + (DIR_ENTRY_HEADER + name.len() + value_len) as u64
}

/// An `INODE_EXTREF` of a name; an `INODE_REF` is smaller.
pub(crate) const fn inode_ref_item(name: &[u8]) -> u64 {
    HEADER + (EXTREF_HEADER + name.len()) as u64
}

/// All items that a name adds: its entry by hash and by index, and the inode's reference.
pub(crate) const fn name_items(name: &[u8]) -> u64 {
    2 * dir_entry_item(name) + inode_ref_item(name)
}
