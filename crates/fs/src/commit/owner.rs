//! The commits of a mount.

use std::sync::Arc;

use ubtrfs_format::LABEL_SIZE;
use ubtrfs_format::items::BalanceItem;
use ubtrfs_threads::atomic::AtomicBool;
use ubtrfs_threads::{Mutex, Rank};

use super::replacement_item::Replacement;
use crate::discard::Discarder;
use crate::file_reader::FileReader;
use crate::fs_info::FsInfo;
use crate::log::Log;
use crate::writeback::Writeback;

/// What the next commit does with the item of a balance.
pub(super) enum BalanceEdit {
    Put(Box<BalanceItem>),
    Remove,
}

/// The commits of a mount.
pub(crate) struct Committer {
    pub(super) info: Arc<FsInfo>,
    pub(super) reader: Arc<FileReader>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) log: Arc<Log>,
    pub(super) discards: Arc<Discarder>,
    /// Held for a whole commit.
    pub(super) commit_lock: Mutex<()>,
    /// The next commit is made even if nothing has changed.
    pub(super) commit_wanted: AtomicBool,
    /// The volume's next label.
    pub(super) new_label: Mutex<Option<[u8; LABEL_SIZE]>>,
    /// What the next commit does with the item of a balance.
    pub(super) new_balance: Mutex<Option<BalanceEdit>>,
    pub(super) replacement: Mutex<Replacement>,
    /// The next commit drops what a balance of the kernel has left.
    pub(super) drops_reloc_trees: AtomicBool,
}

impl Committer {
    pub(crate) fn new(
        info: Arc<FsInfo>,
        reader: Arc<FileReader>,
        writeback: Arc<Writeback>,
        log: Arc<Log>,
        discards: Arc<Discarder>,
    ) -> Self {
        let commit_lock = Mutex::new(Rank::Commit, ());
        let new_label = Mutex::new(Rank::NewLabel, None);
        let new_balance = Mutex::new(Rank::NewBalance, None);
        let commit_wanted = AtomicBool::new(false);
        let replacement = Mutex::with_default(Rank::Replacement);
        let drops_reloc_trees = AtomicBool::new(false);
        Self {
            info,
            reader,
            writeback,
            log,
            discards,
            commit_lock,
            commit_wanted,
            new_label,
            new_balance,
            replacement,
            drops_reloc_trees,
        }
    }

    /// Does something while no commit is in progress.
    pub(crate) fn between_commits<T>(&self, act: impl FnOnce() -> T) -> T {
        let _place = self.commit_lock.lock();
        act()
    }

    /// Waits for the commit in progress, if there is one.
    pub(crate) fn wait(&self) {
        drop(self.commit_lock.lock());
    }
}
