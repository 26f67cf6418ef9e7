//! Finds inodes by their own items, also those to which no directory refers any more.

use ubtrfs_format::items::{InodeItem, inode_backrefs};
use ubtrfs_format::{Ino, ItemType, Key, TreeId};

use super::Filesystem;
use crate::error::Result;

/// An inode as its own items describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundInode {
    /// Its number.
    pub ino: Ino,
    /// Whether its attributes can be read and its link count is not zero.
    pub is_alive: bool,
    /// Its names, each with the directory that should have it.
    pub names: Vec<(Ino, Vec<u8>)>,
}

/// A subvolume as the root tree describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundSubvolume {
    /// Its number.
    pub id: TreeId,
    /// Whether it was made as a snapshot of another subvolume.
    pub is_snapshot: bool,
}

impl Filesystem {
    /// Returns the inodes of a subvolume in the last commit, at most `limit` of them, from the
    /// number `from` on. Leaves out items that can't be parsed.
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

    /// Returns all subvolumes that are not deleted, by number.
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
