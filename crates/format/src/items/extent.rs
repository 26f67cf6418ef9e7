//! `EXTENT_ITEM` and `METADATA_ITEM`: allocated extents and the references to them.

use super::slice;
use crate::{Error, Generation, Ino, ItemType, Key, KeyBytes, Logical, Result, TreeId, data_ref_hash};
use zerocopy::{FromBytes, IntoBytes};

/// Flags of an extent.
pub struct ExtentFlags;

impl ExtentFlags {
    /// File data.
    pub const DATA: u64 = 1 << 0;
    /// A tree block.
    pub const TREE_BLOCK: u64 = 1 << 1;
    /// A tree block whose children are referred to by its address, not by its tree.
    pub const FULL_BACKREF: u64 = 1 << 8;
}

/// A file that uses a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataRef {
    /// The subvolume.
    pub root: TreeId,
    /// The inode.
    pub ino: Ino,
    /// File offset at which the extent would start: key offset minus the piece's offset in the
    /// extent, modulo 2^64.
    pub offset: u64,
}

impl DataRef {
    /// Returns the hash by which data references are ordered, and which is in the key of a keyed
    /// one.
    pub fn hash(&self) -> u64 {
        data_ref_hash(self.root.0, self.ino.0, self.offset)
    }
}

/// A reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineRef {
    /// The tree block is used by a tree.
    TreeBlock {
        /// The tree.
        root: TreeId,
    },
    /// The tree block is used by a block.
    SharedBlock {
        /// The parent block's address.
        parent: Logical,
    },
    /// The data is used by a file.
    Data {
        /// The file.
        data: DataRef,
        /// How many pieces of it use the data.
        count: u32,
    },
    /// The data is used by a leaf.
    SharedData {
        /// The leaf's address.
        parent: Logical,
        /// How many items of it use the data.
        count: u32,
    },
    /// Simple quotas: the subvolume that allocated the extent. This is not a reference, and always
    /// comes first.
    Owner {
        /// The subvolume.
        root: TreeId,
    },
}

impl InlineRef {
    /// Returns the item type of this kind of reference.
    pub fn item_type(&self) -> ItemType {
        match self {
            Self::TreeBlock { .. } => ItemType::TREE_BLOCK_REF,
            Self::SharedBlock { .. } => ItemType::SHARED_BLOCK_REF,
            Self::Data { .. } => ItemType::EXTENT_DATA_REF,
            Self::SharedData { .. } => ItemType::SHARED_DATA_REF,
            Self::Owner { .. } => ItemType::EXTENT_OWNER_REF,
        }
    }

    /// Returns the value by which references of one type are ordered (descending), and which is in
    /// the key of a keyed one.
    pub fn sequence(&self) -> u64 {
        match self {
            Self::TreeBlock { root } | Self::Owner { root } => root.0,
            Self::SharedBlock { parent } | Self::SharedData { parent, .. } => parent.0,
            Self::Data { data, .. } => data.hash(),
        }
    }

    /// Returns the number of references.
    pub fn count(&self) -> u64 {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => 1,
            Self::Data { count, .. } | Self::SharedData { count, .. } => u64::from(*count),
            Self::Owner { .. } => 0,
        }
    }

    /// Returns how many bytes it takes in an extent item.
    pub fn size(&self) -> usize {
        match self {
            Self::Data { .. } => 29,
            Self::SharedData { .. } => 13,
            _ => 9,
        }
    }

    fn encode(&self, item: &mut Vec<u8>) {
        item.push(self.item_type().0);
        match self {
            Self::Data { data, count } => item.extend_from_slice(&encode_data_ref(*data, *count)),
            Self::SharedData { parent, count } => {
                item.extend_from_slice(&parent.0.to_le_bytes());
                item.extend_from_slice(&count.to_le_bytes());
            }
            other => item.extend_from_slice(&other.sequence().to_le_bytes()),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "inline reference";
        let kind = *slice(bytes, 0, 1, WHAT)?.first().unwrap_or(&0);
        let first = word(bytes, 1, WHAT)?;
        Ok(match ItemType(kind) {
            ItemType::TREE_BLOCK_REF => Self::TreeBlock { root: TreeId(first) },
            ItemType::SHARED_BLOCK_REF => Self::SharedBlock { parent: Logical(first) },
            ItemType::EXTENT_OWNER_REF => Self::Owner { root: TreeId(first) },
            ItemType::EXTENT_DATA_REF => {
                let (data, count) = decode_data_ref(slice(bytes, 1, 28, WHAT)?)?;
                Self::Data { data, count }
            }
            ItemType::SHARED_DATA_REF => {
                Self::SharedData { parent: Logical(first), count: decode_shared_data_ref(slice(bytes, 9, 4, WHAT)?)? }
            }
            other => return Err(Error::UnexpectedItem(other)),
        })
    }
}

fn word(bytes: &[u8], at: usize, what: &'static str) -> Result<u64> {
    let mut field = [0; 8];
    field.copy_from_slice(slice(bytes, at, 8, what)?);
    Ok(u64::from_le_bytes(field))
}

/// Reads the content of an `EXTENT_DATA_REF`, keyed or inline. Returns the file, and how many
/// pieces of it use the data.
pub fn decode_data_ref(bytes: &[u8]) -> Result<(DataRef, u32)> {
    const WHAT: &str = "data reference";
    let count = decode_shared_data_ref(slice(bytes, 24, 4, WHAT)?)?;
    let data = DataRef {
        root: TreeId(word(bytes, 0, WHAT)?),
        ino: Ino(word(bytes, 8, WHAT)?),
        offset: word(bytes, 16, WHAT)?,
    };
    Ok((data, count))
}

/// Returns the content of an `EXTENT_DATA_REF`.
pub fn encode_data_ref(data: DataRef, count: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..8].copy_from_slice(&data.root.0.to_le_bytes());
    bytes[8..16].copy_from_slice(&data.ino.0.to_le_bytes());
    bytes[16..24].copy_from_slice(&data.offset.to_le_bytes());
    bytes[24..].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// Reads the count of a `SHARED_DATA_REF`.
pub fn decode_shared_data_ref(bytes: &[u8]) -> Result<u32> {
    let mut count = [0; 4];
    count.copy_from_slice(slice(bytes, 0, 4, "shared data reference")?);
    Ok(u32::from_le_bytes(count))
}

/// An allocated extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentItem {
    /// All references, inline and keyed.
    pub refs: u64,
    /// The transaction that allocated it.
    pub generation: Generation,
    /// [`ExtentFlags`].
    pub flags: u64,
    /// First key and level of a tree block described by an `EXTENT_ITEM` (not by a
    /// `METADATA_ITEM`).
    pub tree_block: Option<(Key, u8)>,
    /// References in the item itself.
    pub inline_refs: Vec<InlineRef>,
}

impl ExtentItem {
    /// Returns the level of the tree block that the item with this key describes.
    pub fn level(&self, key: &Key) -> u8 {
        self.tree_block.map_or(u8::try_from(key.offset).unwrap_or(u8::MAX), |(_, level)| level)
    }

    /// Reads the item with this key.
    pub fn parse(key: &Key, item: &[u8]) -> Result<Self> {
        const WHAT: &str = "extent item";
        let flags = word(item, 16, WHAT)?;
        let mut at = 24;
        let mut tree_block = None;
        if key.item_type == ItemType::EXTENT_ITEM && flags & ExtentFlags::TREE_BLOCK != 0 {
            let bytes = slice(item, at, 18, WHAT)?;
            let (first, _) = KeyBytes::read_from_prefix(bytes).map_err(|_| Error::TooShort {
                what: WHAT,
                need: 42,
                have: item.len(),
            })?;
            tree_block = Some((first.into(), bytes[17]));
            at += 18;
        }
        let mut inline_refs = Vec::new();
        while at < item.len() {
            let reference = InlineRef::parse(&item[at..])?;
            at += reference.size();
            inline_refs.push(reference);
        }
        Ok(Self {
            refs: word(item, 0, WHAT)?,
            generation: Generation(word(item, 8, WHAT)?),
            flags,
            tree_block,
            inline_refs,
        })
    }

    /// Returns the size of the item in bytes.
    pub fn size(&self) -> usize {
        let tree_block = if self.tree_block.is_some() { size_of::<KeyBytes>() + 1 } else { 0 };
        24 + tree_block + self.inline_refs.iter().map(InlineRef::size).sum::<usize>()
    }

    /// Returns the item's bytes; references are sorted as the format requires.
    ///
    /// # Panics
    ///
    /// If their number differs from [`Self::size`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut refs = self.inline_refs.clone();
        refs.sort_by_key(|reference| {
            let first = !matches!(reference, InlineRef::Owner { .. });
            (first, reference.item_type(), std::cmp::Reverse(reference.sequence()))
        });
        let mut item = Vec::with_capacity(self.size());
        item.extend_from_slice(&self.refs.to_le_bytes());
        item.extend_from_slice(&self.generation.0.to_le_bytes());
        item.extend_from_slice(&self.flags.to_le_bytes());
        if let Some((first, level)) = self.tree_block {
            item.extend_from_slice(KeyBytes::from(first).as_bytes());
            item.push(level);
        }
        for reference in &refs {
            reference.encode(&mut item);
        }
        assert_eq!(item.len(), self.size(), "an extent item has another size than there is room for");
        item
    }

    /// Returns the most bytes an item may have with its inline references; further ones are keyed
    /// items.
    pub const fn max_inline_size(node_size: usize) -> usize {
        // The documented limit of the item: (nodesize - header) / 16 less one item header.
        ((node_size - crate::HEADER_SIZE) >> 4) - crate::ITEM_HEADER_SIZE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_written_in_the_order_of_the_format() {
        let one = InlineRef::Data { data: DataRef { root: TreeId(5), ino: Ino(257), offset: 0 }, count: 2 };
        let two = InlineRef::Data { data: DataRef { root: TreeId(5), ino: Ino(258), offset: 4096 }, count: 1 };
        let shared = InlineRef::SharedData { parent: Logical(1 << 20), count: 1 };
        let item = ExtentItem {
            refs: 4,
            generation: Generation(7),
            flags: ExtentFlags::DATA,
            tree_block: None,
            inline_refs: vec![shared, one, two],
        };
        let key = Key::new(1 << 20, ItemType::EXTENT_ITEM, 4096);
        let back = ExtentItem::parse(&key, &item.to_bytes()).unwrap();
        assert_eq!(back.inline_refs[2], shared);
        assert!(back.inline_refs[0].sequence() > back.inline_refs[1].sequence());
        assert_eq!(ExtentItem::max_inline_size(16384), 992);
    }
}
