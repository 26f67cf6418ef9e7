//! Keys: every item in every tree is found by `(objectid, type, offset)`, compared in that order.

use std::fmt;

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The type of an item: the middle part of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemType(pub u8);

macro_rules! item_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal),+ $(,)?) => {
        impl ItemType {
            $($(#[$doc])* pub const $name: Self = Self($value);)+

            /// Returns the format's own name of the type, if it is known.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

item_types! {
    /// Attributes of an inode.
    INODE_ITEM = 1,
    /// Names of an inode in one directory.
    INODE_REF = 12,
    /// Names of an inode that did not fit its `INODE_REF`.
    INODE_EXTREF = 13,
    /// Extended attributes, by hash of their name.
    XATTR_ITEM = 24,
    /// fs-verity descriptor.
    VERITY_DESC_ITEM = 36,
    /// fs-verity Merkle tree.
    VERITY_MERKLE_ITEM = 37,
    /// An inode to delete, or a root to drop.
    ORPHAN_ITEM = 48,
    /// Log only, no longer used.
    DIR_LOG_ITEM = 60,
    /// Log only: a range of a directory for which the log is authoritative.
    DIR_LOG_INDEX = 72,
    /// Directory entries by hash of their name.
    DIR_ITEM = 84,
    /// A directory entry by its sequence number.
    DIR_INDEX = 96,
    /// A piece of a file's content.
    EXTENT_DATA = 108,
    /// Checksums of data sectors.
    EXTENT_CSUM = 128,
    /// The root of a tree.
    ROOT_ITEM = 132,
    /// From a subvolume to the one that holds its entry.
    ROOT_BACKREF = 144,
    /// From a subvolume to one whose entry it holds.
    ROOT_REF = 156,
    /// An allocated extent; the key's offset is its length.
    EXTENT_ITEM = 168,
    /// An allocated tree block; the key's offset is its level.
    METADATA_ITEM = 169,
    /// Simple quotas: the subvolume that allocated the extent.
    EXTENT_OWNER_REF = 172,
    /// A tree block is used by a tree.
    TREE_BLOCK_REF = 176,
    /// A data extent is used by a file.
    EXTENT_DATA_REF = 178,
    /// A tree block is used by a block.
    SHARED_BLOCK_REF = 182,
    /// A data extent is used by a leaf.
    SHARED_DATA_REF = 184,
    /// Use of a block group.
    BLOCK_GROUP_ITEM = 192,
    /// How a block group's free space is stored.
    FREE_SPACE_INFO = 198,
    /// A free range.
    FREE_SPACE_EXTENT = 199,
    /// A bitmap of free sectors.
    FREE_SPACE_BITMAP = 200,
    /// An allocated range of a device.
    DEV_EXTENT = 204,
    /// A device.
    DEV_ITEM = 216,
    /// A chunk's mapping.
    CHUNK_ITEM = 228,
    /// RAID stripe tree.
    RAID_STRIPE = 230,
    /// Quota status.
    QGROUP_STATUS = 240,
    /// Quota use.
    QGROUP_INFO = 242,
    /// Quota limits.
    QGROUP_LIMIT = 244,
    /// Quota hierarchy.
    QGROUP_RELATION = 246,
    /// A balance in progress, among others.
    TEMPORARY_ITEM = 248,
    /// Device statistics.
    PERSISTENT_ITEM = 249,
    /// A device replacement.
    DEV_REPLACE = 250,
    /// Subvolume id by UUID.
    UUID_KEY_SUBVOL = 251,
    /// Subvolume id by the UUID it was received from.
    UUID_KEY_RECEIVED_SUBVOL = 252,
    /// A string.
    STRING_ITEM = 253,
}

impl fmt::Display for ItemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "UNKNOWN.{}", self.0),
        }
    }
}

/// Well-known object ids that are not trees.
pub mod objectid {
    /// Devices in the chunk tree.
    pub const DEV_ITEMS: u64 = 1;
    /// Device statistics in the device tree.
    pub const DEV_STATS: u64 = 0;
    /// All chunks of the chunk tree.
    pub const FIRST_CHUNK_TREE: u64 = 256;
    /// A balance in progress, in the root tree.
    pub const BALANCE: u64 = 4_u64.wrapping_neg();
    /// Orphan items.
    pub const ORPHAN: u64 = 5_u64.wrapping_neg();
    /// All items of the checksum tree.
    pub const EXTENT_CSUM: u64 = 10_u64.wrapping_neg();
    /// v1 free-space cache headers in the root tree.
    pub const FREE_SPACE: u64 = 11_u64.wrapping_neg();
    /// The inode cache's inode.
    pub const FREE_INO: u64 = 12_u64.wrapping_neg();
}

/// The key of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What the item belongs to: an inode, a tree, an address …
    pub objectid: u64,
    /// What kind of item it is.
    pub item_type: ItemType,
    /// Meaning by type.
    pub offset: u64,
}

impl Key {
    /// The lowest key.
    pub const MIN: Self = Self::new(0, ItemType(0), 0);
    /// The highest key.
    pub const MAX: Self = Self::new(u64::MAX, ItemType(u8::MAX), u64::MAX);

    /// A key of these parts.
    pub const fn new(objectid: u64, item_type: ItemType, offset: u64) -> Self {
        Self { objectid, item_type, offset }
    }

    /// Returns the key right after this one, or `None` after the highest.
    pub fn successor(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(item_type) = self.item_type.0.checked_add(1) {
            return Some(Self::new(self.objectid, ItemType(item_type), 0));
        }
        self.objectid.checked_add(1).map(|objectid| Self::new(objectid, ItemType(0), 0))
    }

    /// Returns the key right before this one, or `None` before the lowest.
    pub fn predecessor(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_sub(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(item_type) = self.item_type.0.checked_sub(1) {
            return Some(Self::new(self.objectid, ItemType(item_type), u64::MAX));
        }
        self.objectid.checked_sub(1).map(|objectid| Self::new(objectid, ItemType(u8::MAX), u64::MAX))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} {} {})", self.objectid, self.item_type, self.offset)
    }
}

/// A key as on disk (17 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct KeyBytes {
    objectid: U64,
    item_type: u8,
    offset: U64,
}

impl From<Key> for KeyBytes {
    fn from(key: Key) -> Self {
        Self { objectid: key.objectid.into(), item_type: key.item_type.0, offset: key.offset.into() }
    }
}

impl From<KeyBytes> for Key {
    fn from(key: KeyBytes) -> Self {
        Self::new(key.objectid.get(), ItemType(key.item_type), key.offset.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_carries_into_type_and_objectid() {
        let key = Key::new(5, ItemType(7), u64::MAX);
        assert_eq!(key.successor(), Some(Key::new(5, ItemType(8), 0)));
        let key = Key::new(5, ItemType(255), u64::MAX);
        assert_eq!(key.successor(), Some(Key::new(6, ItemType(0), 0)));
        assert_eq!(Key::MAX.successor(), None);
        for key in
            [Key::new(5, ItemType(7), u64::MAX), Key::new(5, ItemType(u8::MAX), u64::MAX), Key::new(5, ItemType(7), 3)]
        {
            assert_eq!(key.successor().and_then(Key::predecessor), Some(key));
        }
        assert_eq!(Key::MIN.predecessor(), None);
    }

    #[test]
    fn keys_compare_by_objectid_then_type_then_offset() {
        assert!(Key::new(1, ItemType(200), 9) < Key::new(2, ItemType(0), 0));
        assert!(Key::new(1, ItemType(1), 9) < Key::new(1, ItemType(2), 0));
        assert!(KeyBytes::from(Key::new(1, ItemType(1), 9)).as_bytes().len() == 17);
    }
}
