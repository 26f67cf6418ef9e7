//! Searches in the trees of a volume.

use rustix::io::Errno;
use ubtrfs_format::{Generation, Key, TreeId};

use super::on_mount::OnMount;
use crate::failure::{Failure, Result};
use crate::ioctls::{Item, about_mount};
use crate::place::Image;

/// Searches the trees of a volume.
pub trait Search {
    /// Commits earlier changes, so that the trees contain them.
    fn settle(&self) -> Result<()>;

    /// Passes the items of a tree from `first` to `last` to `visit`, until that returns false. Only
    /// leaves count that the commit `oldest` or a later one wrote.
    fn search_since(
        &self,
        tree: TreeId,
        oldest: Generation,
        range: (Key, Key),
        visit: &mut dyn FnMut(Item) -> bool,
    ) -> Result<()>;

    /// Returns the items of a tree from `first` to `last`.
    fn search(&self, tree: TreeId, first: Key, last: Key) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        self.search_since(tree, Generation(0), (first, last), &mut |item| {
            items.push(item);
            true
        })?;
        Ok(items)
    }
}

impl Search for OnMount {
    fn settle(&self) -> Result<()> {
        // On a read-only mount there is nothing to commit.
        let _ = self.opened()?.commit();
        Ok(())
    }

    fn search_since(
        &self,
        tree: TreeId,
        oldest: Generation,
        range: (Key, Key),
        visit: &mut dyn FnMut(Item) -> bool,
    ) -> Result<()> {
        let mounted = self.opened()?;
        mounted.search_since(tree, oldest, range, visit).map_err(|errno| match errno {
            Errno::PERM => Failure::new("only root, or the user who has mounted it, may list a volume"),
            errno => about_mount(mounted.path().display(), errno),
        })
    }
}

impl Search for Image {
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    fn search_since(
        &self,
        tree: TreeId,
        oldest: Generation,
        range: (Key, Key),
        visit: &mut dyn FnMut(Item) -> bool,
    ) -> Result<()> {
        let visit = &mut |item: ubtrfs::FoundItem| visit(Item { key: item.key, data: item.data });
        self.fs.search_tree_since(tree, oldest, range, visit).map_err(|error| self.failed(&error))
    }
}
