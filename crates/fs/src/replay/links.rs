//! Link counts, and orphans.

use ubtrfs_format::{DirIndex, ItemType, Key, objectid};

use super::subvolume::Replay;
use crate::error::Result;
use crate::inode::OrphanEdit;

impl Replay<'_> {
    /// Sets the link counts of all inodes whose names changed. A directory without a name loses its
    /// entries, whose inodes may then have no names either; all inodes without names become
    /// orphans.
    pub(super) fn count_names(&mut self) -> Result<()> {
        while let Some(ino) = self.recount.pop_last() {
            let Some(inode) = self.inode(ino)? else { continue };
            let names = self.names(&inode)?.len() as u32;
            let (is_dir, committed) = {
                let state = inode.read();
                (state.is_dir(), state.committed)
            };
            let orphan = Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, ino.0);
            let was_orphan = committed && self.tree.get(&orphan)?.is_some();
            self.change(&inode, |state| {
                state.item.nlink = names;
                state.pending.orphan = match (names == 0, was_orphan) {
                    (true, false) => OrphanEdit::Add,
                    (false, true) => OrphanEdit::Remove,
                    _ => OrphanEdit::None,
                };
            });
            if is_dir && names == 0 {
                for entry in self.entries(&inode, DirIndex(0)..=DirIndex(u64::MAX))? {
                    self.unlink(&inode, entry)?;
                }
            }
        }
        Ok(())
    }
}
