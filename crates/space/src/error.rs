//! The errors of a volume whose block groups can't be read or contradict its chunks.

use ubtrfs_format::{Key, TreeId};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tree can't be read, or two edits of an item contradict each other.
    #[error(transparent)]
    Tree(#[from] ubtrfs_tree::Error),
    /// The volume does not take a chunk.
    #[error(transparent)]
    Volume(#[from] ubtrfs_volume::Error),
    /// A structure is malformed.
    #[error(transparent)]
    Format(#[from] ubtrfs_format::Error),
    /// A required item is missing.
    #[error("tree {tree} lacks the item {key}")]
    MissingItem {
        /// The tree.
        tree: TreeId,
        /// The item's key.
        key: Key,
    },
    /// Items contradict each other.
    #[error("tree {tree}, {key}: {what}")]
    Inconsistent {
        /// The tree.
        tree: TreeId,
        /// The item's key.
        key: Key,
        /// What is wrong.
        what: &'static str,
    },
}
