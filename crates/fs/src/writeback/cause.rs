//! Why data is written back, and what follows from that.

use ubtrfs_format::items::InodeFlags;

/// Why data that is dirty in the open transaction is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An fsync: the file is written as it is, a small one to its metadata.
    Fsync,
    /// There is enough of it, or a commit or a reflink needs it on disk; the file may yet grow.
    Pressure,
    /// The file is defragmented: its data gets new places whatever its flags say.
    Defragmentation,
}

impl Cause {
    /// The inode flags by which data is written of a file with these.
    pub(super) fn flags(self, flags: u64) -> u64 {
        match self {
            Self::Fsync | Self::Pressure => flags,
            Self::Defragmentation => flags & !(InodeFlags::NODATACOW | InodeFlags::PREALLOC),
        }
    }
}
