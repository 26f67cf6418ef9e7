//! Which inode: its subvolume and its number.

use ubtrfs_format::{Ino, TreeId};

/// The inode in place of a subvolume that can't be reached through its entry: an empty directory.
pub(crate) const EMPTY_SUBVOLUME_INO: Ino = Ino(2);

/// The largest size that programs can ask for.
pub(crate) const MAX_FILE_SIZE: u64 = i64::MAX as u64;

/// Names an inode in the volume.
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
    /// nothing can change.
    pub fn is_placeholder(self) -> bool {
        self.ino == EMPTY_SUBVOLUME_INO
    }

    /// The root directory of a subvolume.
    pub fn root_of(subvolume: TreeId) -> Self {
        Self { subvolume, ino: Ino::ROOT_DIR }
    }
}
