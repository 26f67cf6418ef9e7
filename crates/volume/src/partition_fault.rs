//! Why a partition can't be used.

use crate::buffer::ALIGNMENT;

/// Why a partition can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionFault {
    /// It has no bytes.
    #[error("it ends before it begins")]
    Empty,
    /// The device is smaller.
    #[error("it reaches beyond the end of the device")]
    BeyondDevice,
    /// Another one has bytes of it.
    #[error("it overlaps partition {0}")]
    Overlaps(u32),
    /// It begins where no device of a volume can.
    #[error("it begins at {start}, which is no multiple of {ALIGNMENT}")]
    Misaligned {
        /// Where it begins, in bytes.
        start: u64,
    },
}
