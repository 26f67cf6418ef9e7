//! What changed between subvolumes.

use std::sync::Arc;

use ubtrfs_format::{Generation, TreeId};

use super::Filesystem;
use crate::changes::{self, FileChange};
use crate::committed::Committed;
use crate::error::{Errno, Error, Result};

impl Filesystem {
    /// Shows every inode that two subvolumes don't have alike, in the order of their numbers, until
    /// `visit` returns false. Commits first, and compares what that committed.
    ///
    /// Tree nodes that both share are not read: of a snapshot and its source this costs what
    /// changed, not what is there. `ENOENT` if there is no such subvolume; `ESTALE` if one of them
    /// was changed or deleted meanwhile, and the state that was compared is no more.
    pub fn changes(&self, old: TreeId, new: TreeId, mut visit: impl FnMut(FileChange) -> bool) -> Result<()> {
        self.of_last_commit(|committed| changes::compare(committed, (old, new), &mut visit))
    }

    /// Shows every inode of a subvolume that the commit `generation` or a later one changed, until
    /// `visit` returns false. Commits first. Errors are those of [`Self::changes`].
    ///
    /// Only what is there can be shown: no removed files, names and xattrs, no holes where data
    /// was, nothing of the old state. Which attributes changed is not known, and not listed.
    pub fn changes_since(
        &self,
        subvolume: TreeId,
        generation: Generation,
        mut visit: impl FnMut(FileChange) -> bool,
    ) -> Result<()> {
        self.of_last_commit(|committed| changes::since(committed, (subvolume, generation), &mut visit))
    }

    fn of_last_commit(&self, read: impl FnOnce(&Committed) -> Result<()>) -> Result<()> {
        self.sync()?;
        let committed: Arc<Committed> = self.info.committed();
        read(&committed).map_err(|error| match error {
            // Later commits reuse the space of the nodes that an earlier one freed.
            Error::Tree(_) if self.info.generation() != committed.generation => Errno::STALE.into(),
            error => error,
        })
    }
}
