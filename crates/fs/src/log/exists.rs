//! The item of an inode that is in the log only so that it exists.

use ubtrfs_format::Generation;
use ubtrfs_format::items::{FileType, InodeItem};

use crate::inode::InodeState;

/// Returns the item of an inode that is in the log only so that it exists. If the last commit has
/// the inode, replay copies nothing from an item of generation 0, and no size if that is 0.
pub(super) fn exists_item(state: &InodeState, known: bool, generation: Generation) -> InodeItem {
    let item = InodeItem { transid: generation, ..state.item };
    // Replay would skip an inode without names.
    let item = InodeItem { nlink: item.nlink.max(1), ..item };
    if known {
        InodeItem { generation: Generation(0), size: 0, nbytes: 0, ..item }
    } else if state.file_type() == FileType::Regular {
        InodeItem { size: 0, nbytes: 0, ..item }
    } else {
        item
    }
}
