//! Items of the trees, for programs that know the format.

use ubtrfs_format::{Generation, Header, Key, TreeId};
use ubtrfs_tree::{Item, Snapshot};

use super::Filesystem;
use crate::committed::Committed;
use crate::error::{Errno, Result};

/// An item of the last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundItem {
    /// Its key.
    pub key: Key,
    /// The generation of the leaf that contains it.
    pub generation: u64,
    /// Its bytes.
    pub data: Vec<u8>,
}

impl Filesystem {
    /// Calls `visit` with the items of a tree from `first` to `last`, until it returns false.
    /// Changes since the last commit are not visible. `ENOENT` if there is no such tree.
    pub fn search_tree(
        &self,
        tree: TreeId,
        first: Key,
        last: Key,
        visit: &mut dyn FnMut(FoundItem) -> bool,
    ) -> Result<()> {
        let committed = self.info.committed();
        show(searched(&committed, tree)?.range(first..=last), visit)
    }

    /// Does the same for items in leaves that the commit `oldest` or a later one wrote, and does
    /// not read other leaves.
    pub fn search_tree_since(
        &self,
        tree: TreeId,
        oldest: Generation,
        (first, last): (Key, Key),
        visit: &mut dyn FnMut(FoundItem) -> bool,
    ) -> Result<()> {
        // Only [`Self::search_tree`] passes over unreadable nodes in a rescue mount.
        if oldest == Generation(0) {
            return self.search_tree(tree, first, last, visit);
        }
        let committed = self.info.committed();
        show(searched(&committed, tree)?.written_since(oldest, &(first..=last)), visit)
    }
}

fn searched(committed: &Committed, tree: TreeId) -> Result<Snapshot> {
    if !committed.has_tree(tree) && tree != TreeId::ROOT && tree != TreeId::CHUNK {
        return Err(Errno::NOENT.into());
    }
    committed.tree(tree)
}

fn show(
    items: impl Iterator<Item = ubtrfs_tree::Result<Item>>,
    visit: &mut dyn FnMut(FoundItem) -> bool,
) -> Result<()> {
    for item in items {
        let item = item?;
        let generation = Header::parse(item.leaf())?.generation.0;
        if !visit(FoundItem { key: item.key, generation, data: item.to_vec() }) {
            break;
        }
    }
    Ok(())
}
