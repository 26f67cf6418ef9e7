//! Helpers for items of a log: errors about unexpected ones, and the range of expected keys.

use ubtrfs_format::items::InodeItem;
use ubtrfs_format::{Ino, ItemType, Key, Logical, TreeId};

use crate::error::{Error, Result};

/// Whether this is the inode item of an inode without links. It is the first item of its inode.
pub(super) fn is_without_links(key: &Key, item: &[u8]) -> Result<bool> {
    Ok(key.item_type == ItemType::INODE_ITEM && InodeItem::parse(item)?.nlink == 0)
}

/// The highest key that an item of an inode can have.
pub(super) const fn last_key_of_inodes() -> Key {
    Key::new(Ino::LAST_FREE.0, ItemType(u8::MAX), u64::MAX)
}

pub(super) fn damaged(key: &Key, what: &'static str) -> Error {
    Error::Inconsistent { tree: TreeId::LOG, key: *key, what }
}

pub(super) fn misplaced(at: Logical, what: &'static str) -> Error {
    damaged(&Key::new(at.0, ItemType::EXTENT_ITEM, 0), what)
}
