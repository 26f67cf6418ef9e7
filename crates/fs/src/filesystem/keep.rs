//! Keeping what a commit refers to.

use std::sync::Arc;

use ubtrfs_format::items::RootItem;
use ubtrfs_format::{Generation, TreeId};
use ubtrfs_space::ReadableCommit;
use ubtrfs_tree::Snapshot;

use super::Filesystem;
use crate::committed::Committed;
use crate::error::{Errno, Result};

/// While it lives, nothing that the commit of its time refers to is overwritten, however many
/// commits follow, but for data that is not copied on write (`chattr +C`, preallocated space).
#[derive(Clone)]
#[must_use = "what the commit refers to is kept as long as this lives"]
pub struct KeptCommit {
    committed: Arc<Committed>,
}

impl KeptCommit {
    /// Which commit it is.
    pub fn generation(&self) -> Generation {
        self.committed.generation
    }

    /// The tree of a subvolume as of this commit. `ENOENT` if there is no such subvolume, or it was
    /// deleted.
    pub fn subvolume(&self, id: TreeId) -> Result<Snapshot> {
        if self.committed.has_subvolume(id) { self.committed.tree(id) } else { Err(Errno::NOENT.into()) }
    }

    /// The root items of all subvolumes as of this commit, by id, with those of deleted ones that
    /// are not gone yet.
    pub fn subvolumes(&self) -> impl Iterator<Item = (TreeId, &RootItem)> {
        self.committed.subvolumes().map(|tree| (tree.id(), &tree.item))
    }

    /// The root item of a tree as of this commit, if there is such a tree.
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
    /// Keeps the space of what the last commit refers to, and of all that later commits free, from
    /// being allocated again, as a reader of the commit does.
    pub fn keep_commit(&self) -> KeptCommit {
        KeptCommit { committed: self.info.committed() }
    }

    /// Keeps the space of what the last commit refers to from being allocated again. What later
    /// commits free that came after it is available again.
    pub fn keep_commit_alone(&self) -> KeptCommit {
        self.committer.between_commits(|| {
            let readers = self.info.committed();
            let readable: ReadableCommit = readers.clone();
            self.info.space.keep(readers.generation, &readable);
            KeptCommit { committed: readers }
        })
    }
}
