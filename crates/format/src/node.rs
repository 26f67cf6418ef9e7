//! Tree blocks: the header, and leaf and internal blocks searched in place.

use std::ops::Range;

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{ChecksumType, Error, Generation, Key, KeyBytes, Logical, Result, TreeId, Uuid};

/// The size of a block's header in bytes.
pub const HEADER_SIZE: usize = size_of::<HeaderBytes>();
/// The size in bytes of the key, offset and size that each item has in its leaf.
pub const ITEM_HEADER_SIZE: usize = size_of::<ItemHeaderBytes>();
/// The size in bytes of a key pointer of an internal block.
pub const KEY_POINTER_SIZE: usize = size_of::<KeyPointerBytes>();
/// All levels are below this.
pub const MAX_LEVEL: u8 = 8;
/// Bytes at the start of superblock and header that hold the checksum of all that follows.
pub const CHECKSUM_FIELD: usize = 32;
/// The backref revision, in the top byte of a header's flags, that all current writers use.
pub const BACKREF_REV_MIXED: u64 = 1 << 56;

/// Returns how many bytes of a leaf are for items: keys, offsets, sizes and data.
pub const fn leaf_data_size(node_size: usize) -> usize {
    node_size - HEADER_SIZE
}

/// Returns the most bytes that one item's data can have.
pub const fn max_item_size(node_size: usize) -> usize {
    leaf_data_size(node_size) - ITEM_HEADER_SIZE
}

/// Flags of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFlags;

impl NodeFlags {
    /// The block has been written; set in every block on disk.
    pub const WRITTEN: u64 = 1 << 0;
    /// The block is of a relocation tree.
    pub const RELOC: u64 = 1 << 1;
}

/// A block's header as on disk (101 bytes).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HeaderBytes {
    csum: [u8; CHECKSUM_FIELD],
    fsid: Uuid,
    bytenr: U64,
    flags: U64,
    chunk_tree_uuid: Uuid,
    generation: U64,
    owner: U64,
    nritems: U32,
    level: u8,
}

/// A block's header, without its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The file system's id in metadata.
    pub fsid: Uuid,
    /// The block's own address.
    pub bytenr: Logical,
    /// Flags and, in the top byte, the backref revision.
    pub flags: u64,
    /// The id of the chunk tree.
    pub chunk_tree_uuid: Uuid,
    /// The transaction that wrote the block.
    pub generation: Generation,
    /// The tree that the block was made for.
    pub owner: TreeId,
    /// Items or key pointers.
    pub nritems: u32,
    /// 0 for leaves.
    pub level: u8,
}

impl Header {
    /// The header at the start of `block`.
    pub fn parse(block: &[u8]) -> Result<Self> {
        let (bytes, _) = HeaderBytes::ref_from_prefix(block).map_err(|_| Error::TooShort {
            what: "tree block header",
            need: HEADER_SIZE,
            have: block.len(),
        })?;
        Ok(Self {
            fsid: bytes.fsid,
            bytenr: Logical(bytes.bytenr.get()),
            flags: bytes.flags.get(),
            chunk_tree_uuid: bytes.chunk_tree_uuid,
            generation: Generation(bytes.generation.get()),
            owner: TreeId(bytes.owner.get()),
            nritems: bytes.nritems.get(),
            level: bytes.level,
        })
    }

    /// Writes the header, with a zero checksum, to the start of `block` (at least [`HEADER_SIZE`]
    /// bytes).
    pub fn put(self, block: &mut [u8]) {
        block[..HEADER_SIZE].copy_from_slice(self.to_bytes().as_bytes());
    }

    /// Returns the header's bytes with a zero checksum.
    pub fn to_bytes(self) -> HeaderBytes {
        HeaderBytes {
            csum: [0; CHECKSUM_FIELD],
            fsid: self.fsid,
            bytenr: self.bytenr.0.into(),
            flags: self.flags.into(),
            chunk_tree_uuid: self.chunk_tree_uuid,
            generation: self.generation.0.into(),
            owner: self.owner.0.into(),
            nritems: self.nritems.into(),
            level: self.level,
        }
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ItemHeaderBytes {
    pub(crate) key: KeyBytes,
    /// From the end of the block's header.
    pub(crate) offset: U32,
    pub(crate) size: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct KeyPointerBytes {
    pub(crate) key: KeyBytes,
    pub(crate) bytenr: U64,
    pub(crate) generation: U64,
}

/// What a reader knows about a block before it reads it.
#[derive(Clone, Copy, Debug)]
pub struct NodeExpectation {
    /// Its address.
    pub bytenr: Logical,
    /// Its level, if known.
    pub level: Option<u8>,
    /// Its generation, if known.
    pub generation: Option<Generation>,
    /// Its owner, if that must be a certain tree (subvolumes share blocks, so theirs is not
    /// checked).
    pub owner: Option<TreeId>,
    /// Its first key, if known.
    pub first_key: Option<Key>,
    /// The id that metadata carries.
    pub fsid: Uuid,
}

/// Checks that the checksum at the start of `block` is that of the rest.
pub fn verify_node_checksum(block: &[u8], checksum: ChecksumType) -> Result<()> {
    let (Some(stored), Some(content)) = (block.get(..CHECKSUM_FIELD), block.get(CHECKSUM_FIELD..)) else {
        return Err(Error::TooShort { what: "tree block", need: HEADER_SIZE, have: block.len() });
    };
    if checksum.matches(content, stored) { Ok(()) } else { Err(Error::BadChecksum { what: "tree block" }) }
}

/// A tree block, viewed in place.
#[derive(Clone, Copy, Debug)]
pub enum Node<'a> {
    /// Level 0.
    Leaf(Leaf<'a>),
    /// Level 1 and up.
    Internal(Internal<'a>),
}

impl<'a> Node<'a> {
    /// Views a whole block (node size bytes) whose structure [`Node::check`] has approved. It never
    /// panics on other blocks, either.
    pub fn view(block: &'a [u8]) -> Result<Self> {
        if Header::parse(block)?.level == 0 {
            Leaf::view(block).map(Self::Leaf)
        } else {
            Internal::view(block).map(Self::Internal)
        }
    }

    /// Views a block, and checks everything in its structure that needs no other block: that it is
    /// the expected block, the order of keys, the placement of items, and pointers. The checksum is
    /// checked separately, by [`verify_node_checksum`].
    pub fn check(block: &'a [u8], expected: &NodeExpectation, sector_size: u32) -> Result<Self> {
        let header = Header::parse(block)?;
        if header.bytenr != expected.bytenr {
            return Err(Error::WrongBlock { expected: expected.bytenr, found: header.bytenr });
        }
        if header.fsid != expected.fsid {
            return Err(Error::WrongFsid);
        }
        if header.level >= MAX_LEVEL {
            return Err(Error::BadValue { what: "block level", value: header.level.into() });
        }
        if let Some(level) = expected.level.filter(|level| *level != header.level) {
            return Err(Error::WrongLevel { expected: level, found: header.level });
        }
        if let Some(generation) = expected.generation.filter(|generation| *generation != header.generation) {
            return Err(Error::WrongGeneration { expected: generation, found: header.generation });
        }
        if let Some(owner) = expected.owner.filter(|owner| *owner != header.owner) {
            return Err(Error::WrongOwner { expected: owner, found: header.owner });
        }
        let node = Self::view(block)?;
        match &node {
            Self::Leaf(leaf) => leaf.check()?,
            Self::Internal(internal) => internal.check(sector_size)?,
        }
        if let Some(first) = expected.first_key
            && node.first_key() != Some(first)
        {
            return Err(Error::WrongFirstKey);
        }
        Ok(node)
    }

    /// Returns the lowest key, if there is any item.
    pub fn first_key(&self) -> Option<Key> {
        match self {
            Self::Leaf(leaf) => leaf.key(0),
            Self::Internal(internal) => internal.key(0),
        }
    }
}

/// A leaf, viewed in place. The default one has no items.
#[derive(Clone, Copy, Default)]
pub struct Leaf<'a> {
    items: &'a [ItemHeaderBytes],
    /// All bytes after the header, which item offsets count from.
    data: &'a [u8],
}

impl std::fmt::Debug for Leaf<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leaf").field("items", &self.items.len()).finish()
    }
}

impl<'a> Leaf<'a> {
    fn view(block: &'a [u8]) -> Result<Self> {
        let header = Header::parse(block)?;
        let data = &block[HEADER_SIZE..];
        let (items, _) = <[ItemHeaderBytes]>::ref_from_prefix_with_elems(data, header.nritems as usize)
            .map_err(|_| Error::ItemCount(header.nritems))?;
        Ok(Self { items, data })
    }

    /// Returns how many items the leaf has.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the key in this slot.
    pub fn key(&self, slot: usize) -> Option<Key> {
        self.items.get(slot).map(|item| item.key.into())
    }

    /// Returns the data in this slot.
    pub fn data(&self, slot: usize) -> Option<&'a [u8]> {
        let item = self.items.get(slot)?;
        let start = item.offset.get() as usize;
        self.data.get(start..start.checked_add(item.size.get() as usize)?)
    }

    /// Returns key and data in this slot.
    pub fn item(&self, slot: usize) -> Option<(Key, &'a [u8])> {
        Some((self.key(slot)?, self.data(slot)?))
    }

    /// Returns the headers of a run of items, and their data, which is contiguous from the last
    /// item's to the first one's.
    pub(crate) fn run(&self, slots: Range<usize>) -> Option<(&'a [ItemHeaderBytes], &'a [u8])> {
        let items = self.items.get(slots)?;
        let data = match items {
            [] => &[],
            [first, ..] => {
                let end = (first.offset.get() as usize).checked_add(first.size.get() as usize)?;
                self.data.get(items.last()?.offset.get() as usize..end)?
            }
        };
        Some((items, data))
    }

    /// Returns all items in order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &'a [u8])> + use<'a> {
        let this = *self;
        (0..self.len()).filter_map(move |slot| this.item(slot))
    }

    /// Returns the slot with this key, or the one at which it would be inserted.
    pub fn search(&self, key: &Key) -> std::result::Result<usize, usize> {
        self.items.binary_search_by(|item| Key::from(item.key).cmp(key))
    }

    /// Returns how many bytes items' data and headers take.
    pub fn used(&self) -> usize {
        self.items.iter().map(|item| item.size.get() as usize + ITEM_HEADER_SIZE).sum()
    }

    fn check(&self) -> Result<()> {
        let mut end = self.data.len();
        for (slot, item) in self.items.iter().enumerate() {
            let (start, size) = (item.offset.get() as usize, item.size.get() as usize);
            if start.checked_add(size) != Some(end) || start < (self.items.len()) * ITEM_HEADER_SIZE {
                // By invariant 14 no accessor looks beyond the block, whatever its headers say.
                return Err(Error::ItemPlacement { slot });
            }
            end = start;
        }
        check_order(self.items.iter().map(|item| item.key.into()))
    }
}

/// The pointer to an internal block's child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildPointer {
    /// The child's lowest key.
    pub key: Key,
    /// The child's address.
    pub bytenr: Logical,
    /// The child's generation.
    pub generation: Generation,
}

/// An internal block, viewed in place.
#[derive(Clone, Copy)]
pub struct Internal<'a> {
    pointers: &'a [KeyPointerBytes],
}

impl std::fmt::Debug for Internal<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Internal").field("children", &self.pointers.len()).finish()
    }
}

impl<'a> Internal<'a> {
    fn view(block: &'a [u8]) -> Result<Self> {
        let header = Header::parse(block)?;
        let (pointers, _) =
            <[KeyPointerBytes]>::ref_from_prefix_with_elems(&block[HEADER_SIZE..], header.nritems as usize)
                .map_err(|_| Error::ItemCount(header.nritems))?;
        Ok(Self { pointers })
    }

    /// Returns how many children the block has.
    pub fn len(&self) -> usize {
        self.pointers.len()
    }

    /// Returns whether there is no child.
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    /// Returns the lowest key of the child in this slot.
    pub fn key(&self, slot: usize) -> Option<Key> {
        self.pointers.get(slot).map(|pointer| pointer.key.into())
    }

    /// Returns the child in this slot.
    pub fn child(&self, slot: usize) -> Option<ChildPointer> {
        self.pointers.get(slot).map(|pointer| ChildPointer {
            key: pointer.key.into(),
            bytenr: Logical(pointer.bytenr.get()),
            generation: Generation(pointer.generation.get()),
        })
    }

    /// Returns all children in order.
    pub fn iter(&self) -> impl Iterator<Item = ChildPointer> + use<'a> {
        let this = *self;
        (0..self.len()).filter_map(move |slot| this.child(slot))
    }

    /// Returns the slot of the child whose range holds `key` (the first child also holds all that
    /// is below it).
    pub fn slot_for(&self, key: &Key) -> usize {
        self.pointers.partition_point(|pointer| Key::from(pointer.key) <= *key).saturating_sub(1)
    }

    fn check(&self, sector_size: u32) -> Result<()> {
        if self.pointers.is_empty() {
            return Err(Error::ItemCount(0));
        }
        for pointer in self.pointers {
            let bytenr = pointer.bytenr.get();
            if bytenr == 0 || !bytenr.is_multiple_of(sector_size.max(1).into()) {
                return Err(Error::BadPointer(Logical(bytenr)));
            }
        }
        check_order(self.pointers.iter().map(|pointer| pointer.key.into()))
    }
}

fn check_order(mut keys: impl Iterator<Item = Key>) -> Result<()> {
    let Some(mut last) = keys.next() else { return Ok(()) };
    for (index, key) in keys.enumerate() {
        if key <= last {
            return Err(Error::KeyOrder { slot: index + 1 });
        }
        last = key;
    }
    Ok(())
}
