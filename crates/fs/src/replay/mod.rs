//! Replay: what a log says becomes pending changes, as if operations had made them.
//!
//! Nothing is written before the whole log has been read, held against all rules and turned into
//! changes; a read-write mount then commits them, and with that the log is gone. A read-only mount
//! keeps them in memory: reads find them there, and not one byte is written.
//!
//! Logs of all kernels have to be understood, and what comes out has to be what their replay makes
//! of them. So the order is theirs. Over each subvolume's log, from the highest id down, three
//! passes are made:
//!
//! 1. [`inodes`]: attributes. What the log does not have goes: xattrs, entries in the ranges that a
//!    directory's log answers for, content beyond the end of a file.
//! 2. [`names`]: entries of directories, as far as the names of their inodes are not in the log
//!    themselves.
//! 3. [`names`], [`content`]: names of inodes, where each takes the tree_log of what contradicts it;
//!    xattrs; extents.
//!
//! In the end names are counted ([`links`]): what has none left is an orphan. An inode that is in
//! the log without links is not replayed at all: what took its names away speaks for itself.

mod content;
mod inodes;
mod links;
mod names;
mod read;

use std::collections::BTreeSet;
use std::sync::Arc;

use ubtrfs_format::items::InodeItem;
use ubtrfs_format::{Generation, Ino, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{Item, NodeCache, Snapshot};

use crate::committed::Committed;
use crate::error::{Errno, Error, Refusal, Result};
use crate::file::sum_map::SumMap;
use crate::inode::{Inode, InodeId, InodeState};
use crate::ops::Operations;
use crate::space::{Demand, UseOfKept};
use crate::transaction::Transaction;
use read::FoundLog;

/// FoundLog blocks and new extents are not in the trees: what goes into them is estimated by what the
/// log holds.
const EDITS_PER_LOG_BLOCK: u64 = 8;

impl Operations {
    /// Replays the volume's log; of a file system that is written to, durably. To be called before
    /// anybody else uses the file system.
    pub(crate) fn replay_log(&self) -> Result<()> {
        let bad = |error: Error| Error::Refused(Refusal::BadLog(error.to_string()));
        let log = FoundLog::read(self).map_err(bad)?;
        self.apply_log(&log).map_err(bad)?;
        tracing::info!(blocks = log.blocks.len(), subvolumes = log.subvolumes.len(), "replayed the log");
        if self.info.is_read_only() {
            return Ok(());
        }
        self.reserve_for_replay(&log)?;
        self.reserver.commit()?;
        // No superblock leads there any more.
        for block in &log.blocks {
            self.info.space.release(*block, self.info.space.node_size);
        }
        Ok(())
    }

    fn apply_log(&self, log: &FoundLog) -> Result<()> {
        // Nobody else is there yet, so that no commit can end the transaction meanwhile.
        let transaction = self.info.gate.current();
        let committed = self.info.committed();
        let mut sums = SumMap::new(committed.superblock.sector_size, committed.superblock.checksum.size());
        for logged in &log.subvolumes {
            let mut replay = Replay {
                fs: self,
                transaction: &transaction,
                committed: &committed,
                subvolume: logged.id,
                tree: committed.tree(logged.id)?,
                log: &logged.tree,
                sums: &mut sums,
                recount: BTreeSet::new(),
                files: BTreeSet::new(),
            };
            replay.run()?;
        }
        transaction.set_logged_sums(sums);
        Ok(())
    }

    /// Makes room for the commit of what was replayed. No commit may come before that one, so that
    /// what is short now stays short; it is tried all the same, since the estimate is high and a
    /// commit that fails leaves the log as it was.
    fn reserve_for_replay(&self, log: &FoundLog) -> Result<()> {
        let node_size = self.info.space.node_size;
        let blocks = log.blocks.len() as u64;
        let edits = self.info.gate.current().changes() * 2 + blocks * EDITS_PER_LOG_BLOCK;
        let demand = Demand { edits, item_bytes: 2 * blocks * node_size, kept: UseOfKept::All, ..Demand::default() };
        let mut space = self.info.space.lock();
        space.may_use_all_kept();
        while space.reserve(demand).is_err() {
            let Some(made) = space.add_chunk(ubtrfs_format::items::BlockGroupFlags::METADATA) else { break };
            self.info.volume.add_chunk(made.start, made.chunk)?;
        }
        Ok(())
    }
}

/// The replay of one subvolume's log.
struct Replay<'a> {
    fs: &'a Operations,
    transaction: &'a Transaction,
    committed: &'a Arc<Committed>,
    subvolume: TreeId,
    /// The subvolume as of the last commit.
    tree: Snapshot,
    log: &'a Snapshot,
    /// Checksums of the data that was replayed.
    sums: &'a mut SumMap,
    /// Inodes whose names have to be counted.
    recount: BTreeSet<Ino>,
    /// Files whose content changed.
    files: BTreeSet<Ino>,
}

impl Replay<'_> {
    fn run(&mut self) -> Result<()> {
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
                ItemType::INODE_REF | ItemType::INODE_EXTREF => self.replay_names(&item)?,
                ItemType::EXTENT_DATA => self.replay_extent(&item)?,
                _ => {}
            }
        }
        self.count_names()?;
        self.count_bytes()
    }

    /// The items of inodes that are to be replayed.
    fn items(&self) -> LiveItems {
        LiveItems { items: self.log.range(Key::MIN..=last_key_of_inodes()), dead: None }
    }

    fn id(&self, ino: Ino) -> InodeId {
        InodeId::new(self.subvolume, ino)
    }

    /// The inode as it is by now, if there is such a one.
    fn inode(&self, ino: Ino) -> Result<Option<Arc<Inode>>> {
        match self.fs.info.inode(self.id(ino)) {
            Ok(inode) => Ok(Some(inode)),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The inode that an item of the log belongs to.
    fn owner(&self, key: &Key) -> Result<Arc<Inode>> {
        self.inode(Ino(key.objectid))?.ok_or_else(|| damaged(key, "the item's inode is nowhere"))
    }

    /// Changes an inode in the open transaction.
    fn change<T>(&self, inode: &Arc<Inode>, change: impl FnOnce(&mut InodeState) -> T) -> T {
        let mut state = inode.write();
        state.join(inode, self.transaction);
        change(&mut state)
    }

    fn generation(&self) -> Generation {
        self.transaction.generation
    }

    fn sector(&self) -> u64 {
        u64::from(self.committed.superblock.sector_size)
    }
}

/// The items of a log but those of inodes that it has without links.
struct LiveItems {
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

/// Whether this is the inode item of an inode without links. It is the first of the inode's items.
fn is_without_links(key: &Key, item: &[u8]) -> Result<bool> {
    Ok(key.item_type == ItemType::INODE_ITEM && InodeItem::parse(item)?.nlink == 0)
}

/// The highest key that an item of an inode can have.
const fn last_key_of_inodes() -> Key {
    Key::new(Ino::LAST_FREE.0, ItemType(u8::MAX), u64::MAX)
}

fn damaged(key: &Key, what: &'static str) -> Error {
    Error::Inconsistent { tree: TreeId::LOG, key: *key, what }
}

fn misplaced(at: Logical, what: &'static str) -> Error {
    damaged(&Key::new(at.0, ItemType::EXTENT_ITEM, 0), what)
}
