//! Names: link, unlink, rmdir.

use std::sync::Arc;

use ubtrfs_format::DirIndex;

use super::LockedInodes;
use super::checks::{check_name, check_removable_from, check_unrestricted};
use super::create::{add_entry, inode_target, remove_entry};
use super::entries::{Named, name_demand};
use super::operations::DirectoryOperations;
use super::room::MAX_LINKS;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState, LostName, Name, OrphanEdit};
use ubtrfs_space::{Demand, UseOfGlobalReserve};

impl DirectoryOperations {
    /// Gives an inode another name.
    pub fn link(&self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<()> {
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
        self.room.check_name_fits(id, state, dir, name)?;
        let target = inode_target(id, state.file_type());
        self.entries.check_can_add(dir, locked.get(dir), name)?;
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

    /// Removes a name of an inode that is not a directory.
    pub fn unlink(&self, dir: InodeId, name: &[u8]) -> Result<()> {
        self.remove(dir, name, false)
    }

    /// Removes an empty directory. If it is the root of a subvolume, deletes the subvolume.
    pub fn rmdir(&self, dir: InodeId, name: &[u8]) -> Result<()> {
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
            let named = self.entries.find_named(&parent, name)?.ok_or(Errno::NOENT)?;
            check_removable_from(&parent, &named.inode)?;
            if directory && named.is_subvolume() {
                let deleted = match self.subvolumes.delete_reserved(dir, name, None, true) {
                    // The name has got another target meanwhile.
                    Err(error) if error.errno() == Errno::INVAL => continue,
                    deleted => deleted?,
                };
                self.references.release_if_unused(deleted);
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
                let Some(index) = self.entries.still_named(dir, locked.get(dir), name, &named)? else { continue };
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

    /// Removes the entry of the empty directory that a snapshot shows in place of a subvolume.
    /// Returns whether the entry was still there. The directory is not an inode of the volume, so
    /// nothing else changes.
    fn remove_empty_subvolume(&self, parent: &Arc<Inode>, name: &[u8], named: &Named) -> Result<bool> {
        let mut locked = LockedInodes::lock(&[parent]);
        let state = locked.get(parent.id);
        if self.info.is_deleted_root(parent.id) {
            return Err(Errno::NOENT.into());
        }
        let Some(index) = self.entries.still_named(parent.id, state, name, named)? else { return Ok(false) };
        let transaction = self.info.gate.enter();
        locked.join(&transaction);
        transaction.forbid_log();
        remove_entry(locked.get_mut(parent.id), name.into(), index, named.target, self.info.now());
        Ok(true)
    }
}

/// Fails with `EISDIR` or `ENOTDIR` unless the inode is of the type that the operation removes.
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

/// Describes a name that an inode is about to lose. `state` is that of the directory, which has
/// joined the transaction.
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

/// Removes a name from an inode that has joined the transaction. An inode without names (a
/// directory has only one) becomes an orphan.
pub(crate) fn drop_name(state: &mut InodeState, lost: LostName, directory: bool) {
    state.pending.remove_ref(lost);
    state.item.nlink = if directory { 0 } else { state.item.nlink.saturating_sub(1) };
    if state.item.nlink == 0 {
        state.pending.orphan = OrphanEdit::Add;
    }
}
