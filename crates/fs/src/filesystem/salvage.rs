//! Inodes by their own items, to find those to which no directory refers any more.

use ubtrfs_format::items::{InodeItem, inode_backrefs};
use ubtrfs_format::{Ino, ItemType, Key, TreeId};

use super::Filesystem;
use crate::error::Result;

/// An inode as its own items describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundInode {
    /// Its number.
    pub ino: Ino,
    /// Its attributes can be read, and it is not one that was deleted.
    pub is_alive: bool,
    /// Its names, each with the directory that should have it.
    pub names: Vec<(Ino, Vec<u8>)>,
}

/// A subvolume as the root tree describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundSubvolume {
    /// Its number.
    pub id: TreeId,
    /// It was made as a snapshot of another one.
    pub is_snapshot: bool,
}

impl Filesystem {
    /// Inodes of a subvolume numbered from `from` on, at most `limit` of them, as the last commit
    /// has them; items that can't be understood are left out.
    pub fn find_inodes(&self, subvolume: TreeId, from: Ino, limit: usize) -> Result<Vec<FoundInode>> {
        let tree = self.info.committed().tree(subvolume)?;
        let mut found: Vec<FoundInode> = Vec::new();
        let first = from.max(Ino::ROOT_DIR);
        let range =
            Key::new(first.0, ItemType::INODE_ITEM, 0)..=Key::new(Ino::LAST_FREE.0, ItemType(u8::MAX), u64::MAX);
        for item in tree.range(range) {
            let item = item?;
            let ino = Ino(item.key.objectid);
            if found.last().is_none_or(|last| last.ino != ino) {
                if found.len() == limit {
                    break;
                }
                found.push(FoundInode { ino, is_alive: false, names: Vec::new() });
            }
            let Some(inode) = found.last_mut() else { break };
            if item.key.item_type == ItemType::INODE_ITEM {
                inode.is_alive = InodeItem::parse(&item).is_ok_and(|item| item.nlink > 0);
            }
            let names = inode_backrefs(&item.key, &item).map_while(std::result::Result::ok);
            inode.names.extend(names.map(|entry| (entry.parent, entry.name.to_vec())));
        }
        Ok(found)
    }

    /// All subvolumes that were not deleted, by number.
    pub fn find_subvolumes(&self) -> Vec<FoundSubvolume> {
        let committed = self.info.committed();
        let alive = committed.subvolumes().filter(|subvolume| subvolume.item.refs > 0);
        alive
            .map(|subvolume| FoundSubvolume {
                id: subvolume.id(),
                is_snapshot: subvolume.item.parent_uuid != ubtrfs_format::Uuid::NIL,
            })
            .collect()
    }
}
