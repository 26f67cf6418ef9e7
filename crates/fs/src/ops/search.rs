//! Items of the trees, for programs that know the format.

use ubtrfs_format::{Header, Key, TreeId};

use super::operations::Operations;
use crate::error::{Errno, Result};

/// An item of the last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundItem {
    /// Its key.
    pub key: Key,
    /// The commit that wrote the leaf that it is in.
    pub generation: u64,
    /// Its bytes.
    pub data: Vec<u8>,
}

impl Operations {
    /// Calls `visit` with the items of a tree from `first` to `last`, until it returns false.
    /// Changes since the last commit are not visible. `ENOENT` if there is no such tree.
    pub(crate) fn search_tree(
        &self,
        tree: TreeId,
        first: Key,
        last: Key,
        visit: &mut dyn FnMut(FoundItem) -> bool,
    ) -> Result<()> {
        let committed = self.info.committed();
        if !committed.has_tree(tree) && tree != TreeId::ROOT && tree != TreeId::CHUNK {
            return Err(Errno::NOENT.into());
        }
        for item in committed.tree(tree)?.range(first..=last) {
            let item = item?;
            let generation = Header::parse(item.leaf())?.generation.0;
            if !visit(FoundItem { key: item.key, generation, data: item.to_vec() }) {
                break;
            }
        }
        Ok(())
    }
}
