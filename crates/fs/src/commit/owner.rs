//! The commits of a mount.

use std::sync::Arc;

use ubtrfs_threads::{Mutex, Rank};

use super::requests::CommitRequests;
use crate::discard::Discarder;
use crate::file_reader::FileReader;
use crate::fs_info::FsInfo;
use crate::log::Log;
use crate::replacement::Replacement;
use crate::writeback::Writeback;

/// The commits of a mount.
pub(crate) struct Committer {
    pub(super) info: Arc<FsInfo>,
    pub(super) reader: Arc<FileReader>,
    pub(super) writeback: Arc<Writeback>,
    pub(super) log: Arc<Log>,
    pub(super) discards: Arc<Discarder>,
    /// Held for a whole commit.
    pub(super) commit_lock: Mutex<()>,
    pub(super) requests: CommitRequests,
    pub(super) replacement: Arc<Replacement>,
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
        let requests = CommitRequests::new();
        let replacement = Arc::new(Replacement::new(info.clone()));
        Self { info, reader, writeback, log, discards, commit_lock, requests, replacement }
    }

    /// The replacement of a device, whose state commits write.
    pub(crate) fn replacement(&self) -> &Arc<Replacement> {
        &self.replacement
    }

    /// Calls `act` while no commit is in progress.
    pub(crate) fn between_commits<T>(&self, act: impl FnOnce() -> T) -> T {
        let _place = self.commit_lock.lock();
        act()
    }

    /// Waits for the commit in progress, if there is one.
    pub(crate) fn wait(&self) {
        drop(self.commit_lock.lock());
    }
}
