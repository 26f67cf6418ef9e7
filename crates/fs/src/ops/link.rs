//! Names: link, unlink, rmdir.

use std::sync::Arc;

use ubtrfs_format::DirIndex;

use super::LockedInodes;
use super::checks::check_name;
use super::create::{add_entry, inode_target, remove_entry};
use super::flags::{check_removable_from, check_unrestricted};
use super::operations::Operations;
use super::room::MAX_LINKS;
use crate::error::{Errno, Result};
use crate::inode::EMPTY_SUBVOLUME_INO;
use crate::inode::{Inode, InodeId, InodeState, LostName, Name, OrphanEdit, Target};
use crate::item_sizes::{INODE_ITEM, ORPHAN_ITEM, name_items};
use crate::names::{Found, LookupResult};
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// What a name edit takes at the worst: entry by hash and by number, reference, two inode items, an
/// orphan item.
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
    /// Whether the entry is a subvolume's, be it only the empty directory that a snapshot shows in
    /// its place.
    pub(crate) fn is_root(&self) -> bool {
        self.target.subvolume().is_some()
    }

    /// Whether it refers to another subvolume.
    pub(crate) fn is_subvolume(&self) -> bool {
        self.is_root() && !self.is_empty_subvolume()
    }

    /// Whether it is the empty directory that a snapshot shows in place of a subvolume.
    pub(crate) fn is_empty_subvolume(&self) -> bool {
        self.inode.id.ino == EMPTY_SUBVOLUME_INO
    }
}

impl Operations {
    /// Finds what a name refers to. The caller verifies after locking that it still does.
    pub(crate) fn find_named(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Named>> {
        Ok(self.seek_named(dir, name)?.1)
    }

    /// Finds what a name refers to, if anything, with the result of the lookup.
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

    /// The entry's number if the directory, locked, still has the entry that was found before, with
    /// the same target; `None` if not.
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
            // The commit that is to come puts another one here.
            return Err(Errno::BUSY.into());
        }
        // A snapshot's empty directory and the subvolume itself have the same entry.
        if named.is_root() && self.names.resolve(&self.info.committed(), dir, name, found.target)? != named.inode.id {
            return Ok(None);
        }
        self.names.entry_index(dir, state, name, &found).map(Some)
    }

    /// Gives an inode another name.
    pub(crate) fn link(&self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.info.check_writable(dir.subvolume)?;
        if id.subvolume != dir.subvolume {
            return Err(Errno::XDEV.into());
        }
        self.reserver.with_reserved(name_demand(name), || self.link_reserved(id, dir, name))
    }

    fn link_reserved(&self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<()> {
        let (inode, parent) = (self.info.inode(id)?, self.info.inode(dir)?);
        let mut locked = LockedInodes::lock(&[&inode, &parent]);
        let state = locked.get(id);
        if state.is_dir() {
            return Err(Errno::PERM.into());
        }
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        check_unrestricted(state)?;
        if state.item.nlink >= MAX_LINKS {
            return Err(Errno::MLINK.into());
        }
        self.check_name_fits(id, state, dir, name)?;
        let target = inode_target(id, state.file_type());
        self.check_can_add(dir, locked.get(dir), name)?;
        let index = self.names.next_index(dir, locked.get_mut(dir))?;
        let time = self.info.now();
        let name: Name = name.into();
        let transaction = self.info.gate.enter();
        locked.join(&transaction);
        let state = locked.get_mut(id);
        add_name(state, dir, name.clone(), index);
        state.attributes_changed(time);
        add_entry(locked.get_mut(dir), name, index, target, time);
        locked.note_renamed(&transaction);
        Ok(())
    }

    /// Removes a name of something that is not a directory.
    pub(crate) fn unlink(&self, dir: InodeId, name: &[u8]) -> Result<()> {
        self.remove(dir, name, false)
    }

    /// Removes an empty directory. One that is a subvolume's is deleted with the subvolume.
    pub(crate) fn rmdir(&self, dir: InodeId, name: &[u8]) -> Result<()> {
        self.remove(dir, name, true)
    }

    fn remove(&self, dir: InodeId, name: &[u8], directory: bool) -> Result<()> {
        self.info.check_writable(dir.subvolume)?;
        self.inactivator.let_inactivation_catch_up()?;
        let demand = Demand { global_reserve: UseOfGlobalReserve::All, ..name_demand(b"") };
        self.reserver.with_reserved(demand, || self.remove_reserved(dir, name, directory))
    }

    fn remove_reserved(&self, dir: InodeId, name: &[u8], directory: bool) -> Result<()> {
        let parent = self.info.inode(dir)?;
        loop {
            let named = self.find_named(&parent, name)?.ok_or(Errno::NOENT)?;
            check_removable_from(&parent, &named.inode)?;
            if directory && named.is_subvolume() {
                let deleted = match self.delete_reserved(dir, name, None, true) {
                    // Something else has the name by now.
                    Err(error) if error.errno() == Errno::INVAL => continue,
                    deleted => deleted?,
                };
                self.release_if_unused(deleted);
                return Ok(());
            }
            check_removable(&named, directory)?;
            if named.is_root() {
                if self.remove_empty_subvolume(&parent, name, &named)? {
                    return Ok(());
                }
                continue;
            }
            let id = named.inode.id;
            {
                let mut locked = LockedInodes::lock(&[&parent, &named.inode]);
                if self.info.is_deleted_root(dir) {
                    return Err(Errno::NOENT.into());
                }
                let Some(index) = self.still_named(dir, locked.get(dir), name, &named)? else { continue };
                if directory && !locked.get(id).is_empty_dir() {
                    return Err(Errno::NOTEMPTY.into());
                }
                let time = self.info.now();
                let name: Name = name.into();
                let transaction = self.info.gate.enter();
                locked.join(&transaction);
                let lost = lost_name(locked.get(dir), dir, &name, index);
                drop_name(locked.get_mut(id), lost, directory);
                let state = locked.get_mut(id);
                state.attributes_changed(time);
                remove_entry(locked.get_mut(dir), name, index, named.target, time);
                locked.note_renamed(&transaction);
            }
            self.inactivator.inactivate_if_unused(&named.inode);
            return Ok(());
        }
    }

    /// Removes the entry of the empty directory that a snapshot shows in place of a subvolume, if
    /// it is still there. It is no inode of the volume, so nothing else changes.
    fn remove_empty_subvolume(&self, parent: &Arc<Inode>, name: &[u8], named: &Named) -> Result<bool> {
        let mut locked = LockedInodes::lock(&[parent]);
        let state = locked.get(parent.id);
        if self.info.is_deleted_root(parent.id) {
            return Err(Errno::NOENT.into());
        }
        let Some(index) = self.still_named(parent.id, state, name, named)? else { return Ok(false) };
        let transaction = self.info.gate.enter();
        locked.join(&transaction);
        transaction.forbid_log();
        remove_entry(locked.get_mut(parent.id), name.into(), index, named.target, self.info.now());
        Ok(true)
    }
}

/// An error unless what was found may be removed this way.
pub(crate) fn check_removable(named: &Named, directory: bool) -> Result<()> {
    let is_dir = named.inode.read().is_dir();
    if is_dir && !directory {
        return Err(Errno::ISDIR.into());
    }
    if !is_dir && directory {
        return Err(Errno::NOTDIR.into());
    }
    Ok(())
}

/// A name that an inode is about to lose, in a directory in this state that has joined the
/// transaction.
pub(crate) fn lost_name(state: &InodeState, dir: InodeId, name: &Name, index: DirIndex) -> LostName {
    LostName { dir: dir.ino, name: name.clone(), index, is_dir_logged: state.pending.logged.is_some() }
}

/// Adds a name to an inode that has joined the transaction.
pub(crate) fn add_name(state: &mut InodeState, dir: InodeId, name: Name, index: DirIndex) {
    state.pending.add_ref(dir.ino, name, index);
    if state.item.nlink == 0 {
        state.pending.orphan = OrphanEdit::Remove;
    }
    state.item.nlink = state.item.nlink.saturating_add(1);
}

/// Removes a name from an inode that has joined the transaction; with the last one (a directory has
/// but one) it becomes an orphan.
pub(crate) fn drop_name(state: &mut InodeState, lost: LostName, directory: bool) {
    state.pending.remove_ref(lost);
    state.item.nlink = if directory { 0 } else { state.item.nlink.saturating_sub(1) };
    if state.item.nlink == 0 {
        state.pending.orphan = OrphanEdit::Add;
    }
}
