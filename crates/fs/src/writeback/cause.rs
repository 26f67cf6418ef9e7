//! Why data is written back, and how this affects the writeback.

use ubtrfs_format::items::InodeFlags;

/// Why data that is dirty in the open transaction is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An fsync. The file is written as it is, and a small one becomes inline.
    Fsync,
    /// There is enough dirty data, or a commit or a reflink needs it on disk. The file may grow
    /// later.
    Pressure,
    /// A defragmentation. The data gets new places whatever the flags of the file say.
    Defragmentation,
}

impl Cause {
    /// Returns the inode flags that apply to the writeback of a file with the flags `flags`.
    pub(super) fn flags(self, flags: u64) -> u64 {
        match self {
            Self::Fsync | Self::Pressure => flags,
            Self::Defragmentation => flags & !(InodeFlags::NODATACOW | InodeFlags::PREALLOC),
        }
    }
}
