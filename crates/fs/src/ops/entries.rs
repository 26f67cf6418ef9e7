//! Entries of directories. They are looked up before inodes are locked, and verified with the locks
//! held.

use std::sync::Arc;

use ubtrfs_format::DirIndex;
use ubtrfs_threads::{Mutex, MutexGuard};

use super::checks::{check_mutable, check_real};
use super::room::ItemRoom;
use crate::error::{Errno, Result};
use crate::fs_info::FsInfo;
use crate::inode::EMPTY_SUBVOLUME_INO;
use crate::inode::{Inode, InodeId, InodeState, Target};
use crate::item_sizes::{INODE_ITEM, ORPHAN_ITEM, name_items};
use crate::names::{Found, LookupResult, Names};
use ubtrfs_space::Demand;

/// Returns the upper bound of what a change of a name takes: the entry by hash and by index, the
/// reference, two inode items and an orphan item.
pub(crate) fn name_demand(name: &[u8]) -> Demand {
    Demand { edits: 6, item_bytes: name_items(name) + 2 * INODE_ITEM + ORPHAN_ITEM, ..Demand::default() }
}

/// An entry of a directory together with its inode, found before either was locked for a change.
pub(crate) struct Named {
    lookup: LookupResult,
    pub(crate) target: Target,
    pub(crate) inode: Arc<Inode>,
}

impl Named {
    /// Whether the entry is that of a subvolume. A snapshot may show only an empty directory in its
    /// place.
    pub(crate) fn is_root(&self) -> bool {
        self.target.subvolume().is_some()
    }

    /// Whether the entry leads into another subvolume.
    pub(crate) fn is_subvolume(&self) -> bool {
        self.is_root() && !self.is_empty_subvolume()
    }

    /// Whether a snapshot shows an empty directory in place of the subvolume.
    pub(crate) fn is_empty_subvolume(&self) -> bool {
        self.inode.id.ino == EMPTY_SUBVOLUME_INO
    }
}

/// Looks up entries of directories, and checks whether new ones may be added.
pub(crate) struct Entries {
    pub(super) info: Arc<FsInfo>,
    pub(super) names: Arc<Names>,
    pub(super) room: Arc<ItemRoom>,
    /// A rename between two directories holds this lock, so that no cycle can arise. The creation
    /// and deletion of subvolumes holds it, too, so that nothing is added to a subvolume that is
    /// being deleted.
    pub(super) rename_lock: Mutex<()>,
}

impl Entries {
    /// Finds what a name refers to. The caller verifies after locking that it still does.
    pub(crate) fn find_named(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Named>> {
        Ok(self.seek_named(dir, name)?.1)
    }

    /// Looks up a name. Returns the result of the lookup, and the entry with its inode if there is
    /// one.
    pub(crate) fn seek_named(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<(LookupResult, Option<Named>)> {
        let state = dir.read();
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let lookup = self.names.seek_entry(dir.id, &state, name)?;
        let Some(Found { target, .. }) = lookup.found else { return Ok((lookup, None)) };
        let id = self.names.resolve(&self.info.committed(), dir.id, name, target)?;
        drop(state);
        Ok((lookup, Some(Named { lookup, target, inode: self.info.inode(id)? })))
    }

    /// Returns the entry's index if the locked directory still has the entry that was found before,
    /// with the same target; otherwise `None`.
    pub(crate) fn still_named(
        &self,
        dir: InodeId,
        state: &InodeState,
        name: &[u8],
        named: &Named,
    ) -> Result<Option<DirIndex>> {
        let found = self.names.seek_entry_again(dir, state, name, named.lookup)?.found;
        let Some(found) = found.filter(|found| found.target == named.target) else { return Ok(None) };
        if named.is_subvolume() && self.info.subvolume(named.inode.id.subvolume)?.is_replaced() {
            // The next commit replaces the subvolume by another one.
            return Err(Errno::BUSY.into());
        }
        // A snapshot's empty directory and the subvolume itself have the same entry.
        if named.is_root() && self.names.resolve(&self.info.committed(), dir, name, found.target)? != named.inode.id {
            return Ok(None);
        }
        self.names.entry_index(dir, state, name, &found).map(Some)
    }

    /// Fails if `name` can't be added to a directory, whose lock the caller holds.
    pub(crate) fn check_can_add(&self, dir: InodeId, state: &InodeState, name: &[u8]) -> Result<()> {
        if !state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        check_real(dir)?;
        if state.item.nlink == 0 || state.dead || self.info.is_deleted_root(dir) {
            return Err(Errno::NOENT.into());
        }
        check_mutable(state)?;
        let lookup = self.names.seek_entry(dir, state, name)?;
        if lookup.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.room.check_collisions(dir, state, name, lookup)
    }

    /// Takes the rename lock. Other renames may hold it while they wait for a device, so this fails
    /// in non-blocking mode if it is held.
    pub(crate) fn lock_renames(&self) -> Result<MutexGuard<'_, ()>> {
        if let Some(lock) = self.rename_lock.try_lock() {
            return Ok(lock);
        }
        ubtrfs_tree::ensure_may_block()?;
        Ok(self.rename_lock.lock())
    }
}
