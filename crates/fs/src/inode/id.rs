//! Identifies an inode by its subvolume and its number.

use ubtrfs_format::{Ino, TreeId};

/// The number of the empty directory that stands for a subvolume that can't be reached through this
/// entry.
pub(crate) const EMPTY_SUBVOLUME_INO: Ino = Ino(2);

/// The largest file size, in bytes.
pub(crate) const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Identifies an inode in the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// The subvolume.
    pub subvolume: TreeId,
    /// The inode's number in it.
    pub ino: Ino,
}

impl InodeId {
    /// The inode `ino` of `subvolume`.
    pub fn new(subvolume: TreeId, ino: Ino) -> Self {
        Self { subvolume, ino }
    }

    /// Whether it is only the placeholder of a subvolume that is elsewhere: an empty directory that
    /// can't be changed.
    pub fn is_placeholder(self) -> bool {
        self.ino == EMPTY_SUBVOLUME_INO
    }

    /// The root directory of a subvolume.
    pub fn root_of(subvolume: TreeId) -> Self {
        Self { subvolume, ino: Ino::ROOT_DIR }
    }
}
