pub use ubtrfs_errors::BoxError;
use ubtrfs_format::{Generation, Key, Logical, TreeId};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a tree could not be read or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation would have to wait, but this thread is in [non-blocking
    /// mode](crate::nonblocking).
    #[error("that takes waiting for a device or a commit")]
    WouldBlock,
    /// The source of blocks failed.
    #[error("tree {tree}: block {bytenr} cannot be read")]
    Read {
        /// The tree that was walked.
        tree: TreeId,
        /// The block.
        bytenr: Logical,
        /// The source's error.
        #[source]
        source: BoxError,
    },
    /// A block is not the one that its parent refers to, or its structure is broken.
    #[error("tree {tree}: block {bytenr}")]
    Block {
        /// The tree that was walked.
        tree: TreeId,
        /// The block.
        bytenr: Logical,
        /// What is wrong with it.
        #[source]
        problem: ubtrfs_format::Error,
    },
    /// A block holds a key that belongs in its right neighbour.
    #[error("tree {tree}: block {bytenr}: key {key} lies beyond the range that the parent gives the block")]
    KeyBeyondRange {
        /// The tree that was walked.
        tree: TreeId,
        /// The block.
        bytenr: Logical,
        /// The block's last key.
        key: Key,
    },
    /// An item that a patch has to change is malformed.
    #[error("tree {tree}: block {bytenr}: item {key}")]
    Corrupt {
        /// The tree.
        tree: TreeId,
        /// The leaf.
        bytenr: Logical,
        /// The item.
        key: Key,
        /// What is wrong with it.
        #[source]
        problem: ubtrfs_format::Error,
    },
    /// A patch that does not suit the item it is meant for, or that follows a put of malformed
    /// bytes.
    #[error("patch of item {key}")]
    BadPatch {
        /// The item.
        key: Key,
        /// What is wrong.
        #[source]
        problem: ubtrfs_format::Error,
    },
    /// An item that no leaf can hold.
    #[error("tree {tree}: item {key} of {size} bytes is larger than the {max} that a leaf holds")]
    ItemTooLarge {
        /// The tree.
        tree: TreeId,
        /// The item.
        key: Key,
        /// Its bytes.
        size: usize,
        /// The most bytes that an item can have.
        max: usize,
    },
    /// The tree would need more levels than the format has.
    #[error("tree {tree}: no room for another level")]
    TooDeep {
        /// The tree.
        tree: TreeId,
    },
    /// A node to be changed may be in use by another tree as well.
    #[error("tree {tree}: block {bytenr} of generation {generation} may be shared with a snapshot")]
    Shared {
        /// The tree that was to change.
        tree: TreeId,
        /// The block.
        bytenr: Logical,
        /// Its generation.
        generation: Generation,
    },
    /// An item to be overwritten in place does not exist, is not in a node of this commit, or has
    /// another length.
    #[error("tree {tree}: item {key} cannot be overwritten in place")]
    NotInPlace {
        /// The tree.
        tree: TreeId,
        /// The item.
        key: Key,
    },
    /// The allocator found no space for a node, or could not note that one is free.
    #[error("space for a node")]
    Allocator(#[source] BoxError),
}

impl Error {
    /// Wraps an allocator's own error.
    pub fn allocator(error: impl Into<BoxError>) -> Self {
        Self::Allocator(error.into())
    }
}
