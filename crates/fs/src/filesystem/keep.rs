//! Keeping what a commit refers to.

use std::sync::Arc;

use ubtrfs_format::items::RootItem;
use ubtrfs_format::{Generation, TreeId};
use ubtrfs_space::ReadableCommit;
use ubtrfs_tree::Snapshot;

use super::Filesystem;
use crate::committed::Committed;
use crate::error::{Errno, Result};

/// A reference to a commit. While it lives, no data or metadata that the commit refers to is
/// overwritten, however many commits follow, except data that is not copied on write (`chattr +C`,
/// preallocated space).
#[derive(Clone)]
#[must_use = "what the commit refers to is kept as long as this lives"]
pub struct KeptCommit {
    committed: Arc<Committed>,
}

impl KeptCommit {
    /// Returns the generation of the commit.
    pub fn generation(&self) -> Generation {
        self.committed.generation
    }

    /// Returns the tree of a subvolume as of this commit. `ENOENT` if the subvolume does not exist
    /// or was deleted.
    pub fn subvolume(&self, id: TreeId) -> Result<Snapshot> {
        if self.committed.has_subvolume(id) { self.committed.tree(id) } else { Err(Errno::NOENT.into()) }
    }

    /// Returns the root items of all subvolumes as of this commit, ordered by id, including those
    /// of deleted subvolumes that are not dropped completely.
    pub fn subvolumes(&self) -> impl Iterator<Item = (TreeId, &RootItem)> {
        self.committed.subvolumes().map(|tree| (tree.id(), &tree.item))
    }

    /// Returns the root item of a tree as of this commit, or `None` if there is no such tree.
    pub fn root_item(&self, tree: TreeId) -> Option<&RootItem> {
        self.committed.trees.get(tree).map(|tree| &tree.item)
    }
}

impl std::fmt::Debug for KeptCommit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptCommit").finish_non_exhaustive()
    }
}

impl Filesystem {
    /// Keeps the space that the last commit refers to, and all space that later commits free, from
    /// being allocated again, as a reader of the commit does.
    pub fn keep_commit(&self) -> KeptCommit {
        KeptCommit { committed: self.info.committed() }
    }

    /// Keeps the space that the last commit refers to from being allocated again. Space that later
    /// commits allocate and free again becomes available as usual.
    pub fn keep_commit_alone(&self) -> KeptCommit {
        self.committer.between_commits(|| {
            let readers = self.info.committed();
            let readable: ReadableCommit = readers.clone();
            self.info.space.keep(readers.generation, &readable);
            KeptCommit { committed: readers }
        })
    }
}
