//! Replays attributes and xattrs.

use std::sync::Arc;

use ubtrfs_format::items::{FileType, InodeItem, dir_entries};
use ubtrfs_format::{Generation, Ino, ItemType, Key};
use ubtrfs_tree::Item;

use super::found::damaged;
use super::subvolume::Replay;
use crate::error::Result;
use crate::inode::{Inode, InodeState, Name};

impl Replay<'_> {
    /// Replays an inode item.
    pub(super) fn replay_inode(&mut self, item: &Item) -> Result<()> {
        let logged = InodeItem::parse(item)?;
        let ino = Ino(item.key.objectid);
        let inode = match self.inode(ino)? {
            Some(inode) => {
                self.merge_inode(&inode, &item.key, &logged)?;
                inode
            }
            None => self.make_inode(ino, logged),
        };
        if FileType::from_mode(logged.mode) == FileType::Regular {
            self.truncate_content(&inode);
        }
        self.recount.insert(ino);
        Ok(())
    }

    fn make_inode(&self, ino: Ino, logged: InodeItem) -> Arc<Inode> {
        let is_dir = FileType::from_mode(logged.mode) == FileType::Directory;
        let created = logged.generation;
        let item = InodeItem {
            // The log's value is meaningless; the replayed extents add up to the correct one.
            nbytes: 0,
            size: if is_dir { 0 } else { logged.size },
            // The generation is 0 for an inode that is in the log only so that it exists.
            generation: if created == Generation(0) { self.generation() } else { created },
            ..logged
        };
        let state = InodeState::new(item, false, true, self.committed.superblock.sector_size);
        let inode = Arc::new(Inode::new(self.id(ino), state));
        self.change(&inode, |_| {});
        self.fs.info.inodes.insert(inode)
    }

    /// Updates an inode that exists in the subvolume.
    fn merge_inode(&mut self, inode: &Arc<Inode>, key: &Key, logged: &InodeItem) -> Result<()> {
        let file_type = inode.read().file_type();
        if file_type != FileType::from_mode(logged.mode) {
            return Err(damaged(key, "the inode is of another type than at the last commit"));
        }
        self.drop_unlogged_xattrs(inode)?;
        if file_type == FileType::Directory {
            self.drop_unlogged_entries(inode)?;
        }
        self.change(inode, |state| {
            let old = state.item;
            if logged.generation == Generation(0) {
                // The inode is in the log only so that it exists. A size there is that of a
                // truncation or a write in the log.
                if file_type == FileType::Regular && logged.size != 0 {
                    state.item.size = logged.size;
                }
                return;
            }
            // The size of a directory follows from its names.
            let size = if file_type == FileType::Directory { old.size } else { logged.size };
            state.item = InodeItem { nbytes: old.nbytes, size, transid: old.transid, ..*logged };
        });
        Ok(())
    }

    /// Drops xattrs that the log lacks: it contains all xattrs of a logged inode, so the others
    /// were removed.
    fn drop_unlogged_xattrs(&self, inode: &Arc<Inode>) -> Result<()> {
        let ino = inode.id.ino;
        let mut deleted: Vec<Name> = Vec::new();
        let all = Key::new(ino.0, ItemType::XATTR_ITEM, 0)..=Key::new(ino.0, ItemType::XATTR_ITEM, u64::MAX);
        for item in self.tree.range(all) {
            let item = item?;
            let logged = self.log.get(&item.key)?;
            let mut kept: Vec<&[u8]> = Vec::new();
            for entry in logged.iter().flat_map(|item| dir_entries(item)) {
                kept.push(entry?.name);
            }
            for entry in dir_entries(&item) {
                let name = entry?.name;
                if !kept.contains(&name) {
                    deleted.push(name.into());
                }
            }
        }
        if !deleted.is_empty() {
            self.change(inode, |state| deleted.into_iter().for_each(|name| state.pending.xattrs.insert(name, None)));
        }
        Ok(())
    }

    /// Replays an item of fs-verity, without which the file could not be read.
    pub(super) fn replay_verity(&mut self, item: &Item) -> Result<()> {
        let inode = self.owner(&item.key)?;
        self.change(&inode, |state| state.pending.verity.get_or_insert_default().insert(&item.key, item));
        Ok(())
    }

    /// Replays the xattrs in an item.
    pub(super) fn replay_xattrs(&mut self, item: &Item) -> Result<()> {
        let inode = self.owner(&item.key)?;
        for entry in dir_entries(item) {
            let entry = entry?;
            self.change(&inode, |state| {
                state.no_xattrs = false;
                state.pending.xattrs.insert(entry.name.into(), Some(entry.value.into()));
            });
        }
        Ok(())
    }
}
