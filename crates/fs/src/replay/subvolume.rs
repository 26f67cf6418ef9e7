//! The replay of one subvolume's log.

use std::collections::BTreeSet;
use std::sync::Arc;

use ubtrfs_file::SumMap;
use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_tree::{Item, NodeCache, Snapshot};

use super::found::{damaged, is_without_links, last_key_of_inodes};
use super::replayer::Replayer;
use crate::committed::Committed;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState};
use crate::transaction::Transaction;

/// The replay of one subvolume's log.
pub(super) struct Replay<'a> {
    pub(super) fs: &'a Replayer,
    pub(super) transaction: &'a Transaction,
    pub(super) committed: &'a Arc<Committed>,
    pub(super) subvolume: TreeId,
    /// The subvolume in the last commit.
    pub(super) tree: Snapshot,
    pub(super) log: &'a Snapshot,
    /// Checksums of the replayed data.
    pub(super) sums: &'a mut SumMap,
    /// Inodes whose names have to be counted.
    pub(super) recount: BTreeSet<Ino>,
    /// Files whose content changed.
    pub(super) files: BTreeSet<Ino>,
}

impl Replay<'_> {
    pub(super) fn run(&mut self) -> Result<()> {
        for item in self.items() {
            let item = item?;
            if item.key.item_type == ItemType::INODE_ITEM {
                self.replay_inode(&item)?;
            }
        }
        for item in self.items() {
            let item = item?;
            if item.key.item_type == ItemType::DIR_INDEX {
                self.replay_entry(&item)?;
            }
        }
        for item in self.items() {
            let item = item?;
            match item.key.item_type {
                ItemType::XATTR_ITEM => self.replay_xattrs(&item)?,
                ItemType::VERITY_DESC_ITEM | ItemType::VERITY_MERKLE_ITEM => self.replay_verity(&item)?,
                ItemType::INODE_REF | ItemType::INODE_EXTREF => self.replay_names(&item)?,
                ItemType::EXTENT_DATA => self.replay_extent(&item)?,
                _ => {}
            }
        }
        self.count_names()?;
        self.count_bytes()
    }

    /// Returns the items of the inodes that are to be replayed.
    pub(super) fn items(&self) -> LiveItems {
        LiveItems { items: self.log.range(Key::MIN..=last_key_of_inodes()), dead: None }
    }

    pub(super) fn id(&self, ino: Ino) -> InodeId {
        InodeId::new(self.subvolume, ino)
    }

    /// Returns the inode with the changes so far, if it exists.
    pub(super) fn inode(&self, ino: Ino) -> Result<Option<Arc<Inode>>> {
        match self.fs.info.inode(self.id(ino)) {
            Ok(inode) => Ok(Some(inode)),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the inode that an item of the log belongs to.
    pub(super) fn owner(&self, key: &Key) -> Result<Arc<Inode>> {
        self.inode(Ino(key.objectid))?.ok_or_else(|| damaged(key, "the item's inode is nowhere"))
    }

    /// Changes an inode in the open transaction.
    pub(super) fn change<T>(&self, inode: &Arc<Inode>, change: impl FnOnce(&mut InodeState) -> T) -> T {
        let mut state = inode.write();
        state.join_alone(inode, self.transaction);
        change(&mut state)
    }

    pub(super) fn generation(&self) -> Generation {
        self.transaction.generation
    }

    pub(super) fn sector(&self) -> u64 {
        u64::from(self.committed.superblock.sector_size)
    }
}

/// The items of a log, except those of inodes that it has without links.
pub(super) struct LiveItems {
    items: ubtrfs_tree::Range<Arc<NodeCache>>,
    dead: Option<u64>,
}

impl Iterator for LiveItems {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let item = match self.items.next()? {
                Ok(item) => item,
                Err(error) => return Some(Err(error.into())),
            };
            match is_without_links(&item.key, &item) {
                Ok(true) => self.dead = Some(item.key.objectid),
                Ok(false) => {}
                Err(error) => return Some(Err(error)),
            }
            if self.dead != Some(item.key.objectid) {
                return Some(Ok(item));
            }
        }
    }
}
