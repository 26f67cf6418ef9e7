//! Keeping what a commit refers to.

use std::sync::Arc;

use ubtrfs_space::ReadableCommit;

use super::Filesystem;
use crate::committed::Committed;

/// While it lives, nothing that the commit of its time refers to is overwritten, however many
/// commits follow, but for data that is not copied on write (`chattr +C`, preallocated space).
#[derive(Clone)]
#[must_use = "what the commit refers to is kept as long as this lives"]
pub struct KeptCommit {
    _readers: Arc<Committed>,
}

impl std::fmt::Debug for KeptCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptCommit").finish_non_exhaustive()
    }
}

impl Filesystem {
    /// Keeps the space of what the last commit refers to, and of all that later commits free, from
    /// being allocated again, as a reader of the commit does.
    pub fn keep_commit(&self) -> KeptCommit {
        KeptCommit { _readers: self.info.committed() }
    }

    /// Keeps the space of what the last commit refers to from being allocated again. What later
    /// commits free that came after it is available again.
    pub fn keep_commit_alone(&self) -> KeptCommit {
        self.committer.between_commits(|| {
            let readers = self.info.committed();
            let readable: ReadableCommit = readers.clone();
            self.info.space.keep(readers.generation, &readable);
            KeptCommit { _readers: readers }
        })
    }
}
