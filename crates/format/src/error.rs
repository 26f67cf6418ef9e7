use crate::{Generation, ItemType, Logical, TreeId};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The error in bytes that should have been a btrfs structure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A structure needs more bytes than there are.
    #[error("{what}: {have} bytes where {need} are needed")]
    TooShort {
        /// The structure.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes found.
        have: usize,
    },
    /// An item's length isn't what its content requires.
    #[error("{what}: length {have} where {need} is right")]
    WrongLength {
        /// The structure.
        what: &'static str,
        /// Bytes that are right.
        need: usize,
        /// Bytes found.
        have: usize,
    },
    /// A field has a value that the format does not allow.
    #[error("{what} has the impossible value {value}")]
    BadValue {
        /// Structure and field.
        what: &'static str,
        /// The value found.
        value: u64,
    },
    /// The superblock's magic is missing.
    #[error("no btrfs superblock (wrong magic)")]
    BadMagic,
    /// The stored checksum does not match the content.
    #[error("{what}: checksum does not match")]
    BadChecksum {
        /// The structure.
        what: &'static str,
    },
    /// A checksum type that is not known.
    #[error("unknown checksum type {0}")]
    UnknownChecksumType(u16),
    /// A block is not the expected one.
    #[error("block says it lives at {found}, but it was read at {expected}")]
    WrongBlock {
        /// The address read.
        expected: Logical,
        /// The address in the header.
        found: Logical,
    },
    /// A block belongs to another file system.
    #[error("block carries another file system's id")]
    WrongFsid,
    /// A block has another level than its parent says.
    #[error("level {found} where the parent says {expected}")]
    WrongLevel {
        /// The value in the parent.
        expected: u8,
        /// The value in the header.
        found: u8,
    },
    /// A block has another generation than its parent says.
    #[error("generation {found} where the parent says {expected}")]
    WrongGeneration {
        /// The value in the parent.
        expected: Generation,
        /// The value in the header.
        found: Generation,
    },
    /// A block belongs to another tree.
    #[error("owned by tree {found} where tree {expected} is right")]
    WrongOwner {
        /// The tree that was walked.
        expected: TreeId,
        /// The value in the header.
        found: TreeId,
    },
    /// A block's first key is not the one in its parent.
    #[error("first key differs from the parent's")]
    WrongFirstKey,
    /// Keys are not strictly ascending.
    #[error("keys out of order at slot {slot}")]
    KeyOrder {
        /// The slot whose key is not above the key before it.
        slot: usize,
    },
    /// Item data is not packed from the end of the leaf without gaps and overlaps.
    #[error("item data of slot {slot} is misplaced")]
    ItemPlacement {
        /// The slot.
        slot: usize,
    },
    /// A block has more items than it can hold, or none though some are required.
    #[error("impossible item count {0}")]
    ItemCount(u32),
    /// A pointer that no block can have.
    #[error("bad block pointer {0}")]
    BadPointer(Logical),
    /// A builder got more than a block has room for.
    #[error("an item of {size} bytes does not fit")]
    NoRoom {
        /// Bytes of the item.
        size: usize,
    },
    /// An item type where it can't be.
    #[error("unexpected item type {0}")]
    UnexpectedItem(ItemType),
}
