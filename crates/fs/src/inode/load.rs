//! Loads inodes from the committed trees.

use ubtrfs_format::items::{InodeItem, Timespec};
use ubtrfs_format::{ItemType, Key};

use super::EMPTY_SUBVOLUME_INO;
use super::MAX_FILE_SIZE;
use super::{Inode, InodeId, InodeState};
use crate::committed::Committed;
use crate::error::{Errno, Error, Result};

/// Reads an inode's attributes, and checks whether it has xattrs.
pub(crate) fn load_inode(committed: &Committed, id: InodeId) -> Result<Inode> {
    if id.ino == EMPTY_SUBVOLUME_INO {
        return Ok(empty_subvolume(committed, id));
    }
    let tree = committed.tree(id.subvolume)?;
    let Some(item) = tree.get(&Key::new(id.ino.0, ItemType::INODE_ITEM, 0))? else {
        return Err(Errno::NOENT.into());
    };
    let item = InodeItem::parse(&item)?;
    if item.size > MAX_FILE_SIZE {
        let key = Key::new(id.ino.0, ItemType::INODE_ITEM, 0);
        return Err(Error::Inconsistent { tree: id.subvolume, key, what: "the size is larger than any file's" });
    }
    let xattrs = Key::new(id.ino.0, ItemType::XATTR_ITEM, 0)..=Key::new(id.ino.0, ItemType::XATTR_ITEM, u64::MAX);
    let no_xattrs = match tree.range(xattrs).next() {
        Some(found) => {
            found?;
            false
        }
        None => true,
    };
    Ok(Inode::new(id, InodeState::new(item, true, no_xattrs, committed.superblock.sector_size)))
}

/// Returns the empty directory to which a snapshot's entry of a subvolume inside its source refers.
fn empty_subvolume(committed: &Committed, id: InodeId) -> Inode {
    let time = committed.trees.get(id.subvolume).map_or_else(Timespec::default, |tree| tree.item.times[1]);
    let item = InodeItem {
        nlink: 1,
        mode: 0o040_755,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    };
    Inode::new(id, InodeState::new(item, true, true, committed.superblock.sector_size))
}
