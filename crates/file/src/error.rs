//! The errors in a file's content.

use ubtrfs_format::{Ino, Logical};

/// A result of reading a file's content or its map.
pub type Result<T> = std::result::Result<T, DataError>;

/// Why a file's content could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The devices failed, or no copy of the data has the right checksum.
    #[error(transparent)]
    Volume(#[from] ubtrfs_volume::Error),
    /// A tree could not be read.
    #[error(transparent)]
    Tree(#[from] ubtrfs_tree::Error),
    /// An item is not valid for its type.
    #[error("{what} at {offset}")]
    Item {
        /// The kind of item.
        what: &'static str,
        /// The offset of its key.
        offset: u64,
        /// What is wrong with it.
        source: ubtrfs_format::Error,
    },
    /// A file extent item is invalid.
    #[error("inode {ino}: the file extent at {offset} {problem}")]
    Extent {
        /// The file.
        ino: Ino,
        /// Where in the file the item is.
        offset: u64,
        /// What is wrong.
        problem: ExtentProblem,
    },
    /// A read went past the end of the extent that should have the data.
    #[error("the extent at {0} ends before the data that a file expects in it")]
    BeyondExtent(Logical),
    /// Data that should have checksums has none.
    #[error("no checksum for the data at {0}")]
    MissingChecksum(Logical),
    /// fs-verity does not confirm the content of a file.
    #[error("fs-verity: inode {ino} {problem}")]
    Verity {
        /// The file.
        ino: Ino,
        /// What is wrong.
        problem: &'static str,
    },
    /// A packed extent does not unpack.
    #[error("packed data {place}: {problem}")]
    Unpack {
        /// Where the packed bytes are.
        place: PackedPlace,
        /// What is wrong with them.
        problem: UnpackProblem,
    },
}

/// Where packed bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedPlace {
    /// In a file extent item.
    Inline,
    /// In an extent at this address.
    Extent(Logical),
}

impl std::fmt::Display for PackedPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inline => f.write_str("in an inline extent"),
            Self::Extent(at) => write!(f, "at {at}"),
        }
    }
}

/// What is impossible about a file extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtentProblem {
    /// Its offset or a length is no multiple of the sector size.
    #[error("is not aligned to sectors")]
    Misaligned,
    /// It covers nothing.
    #[error("is empty")]
    Empty,
    /// It ends beyond the end of the address space.
    #[error("ends beyond all offsets")]
    Overflow,
    /// It covers bytes that the item before it covers.
    #[error("overlaps the one before it")]
    Overlap,
    /// Inline content where only extents may be.
    #[error("is inline, but not at the start of the file")]
    InlineNotFirst,
    /// Inline content of an impossible length.
    #[error("is inline and has an impossible length")]
    InlineLength,
    /// It uses bytes beyond the end of its extent.
    #[error("reaches beyond the end of its extent")]
    BeyondExtent,
    /// A packed extent larger than the format allows.
    #[error("is packed and larger than packed extents can be")]
    PackedTooLarge,
    /// Reserved space can't be packed.
    #[error("is reserved space, yet packed")]
    PackedPrealloc,
}

/// What is wrong with packed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnpackProblem {
    /// Not a stream of the algorithm.
    #[error("{0} can't unpack it")]
    Malformed(&'static str),
    /// The stream is truncated.
    #[error("the {0} stream is truncated")]
    CutShort(&'static str),
    /// The frame around LZO segments is impossible.
    #[error("impossible LZO segment")]
    LzoFrame,
}
