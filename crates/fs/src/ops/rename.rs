//! Rename, with its three flags.

use std::sync::Arc;

use ubtrfs_format::DirIndex;
use ubtrfs_format::items::FileType;

use super::create::{NewInode, add_entry, inode_target, remove_entry};
use super::flags::{check_mutable, check_removable_from};
use super::link::{Named, add_name, drop_name, lost_name, name_demand};
use super::{LockedInodes, check_name, check_real, now};
use crate::dir::EMPTY_SUBVOLUME_INO;
use crate::error::{Errno, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeId, InodeState, LostName, Name};
use crate::space::Demand;

/// How a rename treats its target and its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail if the target exists.
    pub no_replace: bool,
    /// Exchange source and target.
    pub exchange: bool,
    /// Leave a whiteout (character device 0:0) under the old name.
    pub whiteout: bool,
    /// Owner and group of the whiteout; a directory with the set-group-id bit gives its own group instead.
    pub whiteout_owner: (u32, u32),
}

/// One end of a rename.
struct End<'a> {
    dir: Arc<Inode>,
    name: &'a [u8],
}

impl Filesystem {
    /// Gives the inode `name` of `dir` the name `new_name` in `new_dir`. What had that name loses it, or gets the old one.
    ///
    /// A subvolume keeps its name: another would change references in the root tree, which is not done yet. The error is not
    /// EXDEV, to which mv(1) answers by copying it file by file and deleting it.
    pub fn rename(
        &self,
        dir: InodeId,
        name: &[u8],
        new_dir: InodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(new_name)?;
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Errno::INVAL.into());
        }
        self.check_writable(dir.subvolume)?;
        if dir.subvolume != new_dir.subvolume {
            let source = self.find_named(&self.inode(dir)?, name)?;
            return Err(
                if source.is_some_and(|source| source.is_subvolume()) { Errno::PERM } else { Errno::XDEV }.into()
            );
        }
        check_real(dir)?;
        check_real(new_dir)?;
        let (one, two) = (name_demand(name), name_demand(new_name));
        let demand = Demand {
            edits: 2 * (one.edits + two.edits),
            item_bytes: 2 * (one.item_bytes + two.item_bytes),
            ..Demand::default()
        };
        self.with_reserved(demand, || self.rename_reserved(dir, name, new_dir, new_name, flags))
    }

    fn rename_reserved(
        &self,
        dir: InodeId,
        name: &[u8],
        new_dir: InodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let from = End { dir: self.inode(dir)?, name };
        let to = End { dir: self.inode(new_dir)?, name: new_name };
        let _no_cycles = if dir == new_dir { None } else { Some(self.lock_renames()?) };
        loop {
            let source = self.find_named(&from.dir, name)?.ok_or(Errno::NOENT)?;
            let target = self.find_named(&to.dir, new_name)?;
            self.check_rename(&from, &to, &source, target.as_ref(), flags)?;
            if target.as_ref().is_some_and(|target| target.inode.id == source.inode.id) {
                // Two names of one inode: POSIX asks that nothing happens.
                return Ok(());
            }
            if self.rename_found(&from, &to, &source, target.as_ref(), flags)? {
                if let Some(target) = target
                    && !flags.exchange
                {
                    self.inactivate_if_unused(&target.inode);
                }
                return Ok(());
            }
        }
    }

    /// Others may hold this lock while they wait for a device.
    fn lock_renames(&self) -> Result<parking_lot::MutexGuard<'_, ()>> {
        if let Some(lock) = self.rename_lock.try_lock() {
            return Ok(lock);
        }
        ubtrfs_tree::about_to_wait()?;
        Ok(self.rename_lock.lock())
    }

    fn check_rename(
        &self,
        from: &End<'_>,
        to: &End<'_>,
        source: &Named,
        target: Option<&Named>,
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.no_replace && target.is_some() {
            return Err(Errno::EXIST.into());
        }
        if flags.exchange && target.is_none() {
            return Err(Errno::NOENT.into());
        }
        let replaces_subvolume = target.is_some_and(Named::leads_to_root) && !flags.exchange;
        if source.inode.id.ino == EMPTY_SUBVOLUME_INO || replaces_subvolume {
            return Err(Errno::NOTEMPTY.into());
        }
        if source.leads_to_root() || target.is_some_and(Named::leads_to_root) {
            return Err(Errno::PERM.into());
        }
        check_removable_from(&from.dir, &source.inode)?;
        match target {
            Some(target) => check_removable_from(&to.dir, &target.inode)?,
            None => check_mutable(&to.dir.read())?,
        }
        let source_is_dir = source.inode.read().is_dir();
        let target_is_dir = target.map(|target| target.inode.read().is_dir());
        if !flags.exchange {
            match target_is_dir {
                Some(true) if !source_is_dir => return Err(Errno::ISDIR.into()),
                Some(false) if source_is_dir => return Err(Errno::NOTDIR.into()),
                _ => {}
            }
        }
        if from.dir.id != to.dir.id {
            if source_is_dir && self.is_below(to.dir.id, source.inode.id)? {
                return Err(Errno::INVAL.into());
            }
            if let Some(target) = target
                && target_is_dir == Some(true)
                && self.is_below(from.dir.id, target.inode.id)?
            {
                return Err(if flags.exchange { Errno::INVAL } else { Errno::NOTEMPTY }.into());
            }
        }
        Ok(())
    }

    /// Whether `dir` is `ancestor` or lies below it. The caller holds the rename lock.
    fn is_below(&self, dir: InodeId, ancestor: InodeId) -> Result<bool> {
        let mut at = dir;
        let mut passed = std::collections::HashSet::new();
        loop {
            if !passed.insert(at) {
                // A damaged volume: the way up goes round in a circle.
                return Err(Errno::LOOP.into());
            }
            if at == ancestor {
                return Ok(true);
            }
            let parent = self.parent(at)?;
            if parent == at || parent.subvolume != dir.subvolume {
                return Ok(false);
            }
            at = parent;
        }
    }

    /// Renames if everything is still as it was found; `false` if not.
    fn rename_found(
        &self,
        from: &End<'_>,
        to: &End<'_>,
        source: &Named,
        target: Option<&Named>,
        flags: RenameFlags,
    ) -> Result<bool> {
        let (dir, new_dir, id) = (from.dir.id, to.dir.id, source.inode.id);
        let mut inodes = vec![&from.dir, &to.dir, &source.inode];
        inodes.extend(target.map(|target| &target.inode));
        let mut locked = LockedInodes::lock(&inodes);
        let Some(old_index) = self.still_named(dir, locked.get(dir), from.name, source.target)? else {
            return Ok(false);
        };
        let target_index = match target {
            Some(target) => match self.still_named(new_dir, locked.get(new_dir), to.name, target.target)? {
                Some(index) => Some(index),
                None => return Ok(false),
            },
            None if self.find_entry(new_dir, locked.get(new_dir), to.name)?.is_some() => return Ok(false),
            None => None,
        };
        if locked.get(new_dir).item.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        if let Some(target) = target
            && !flags.exchange
            && locked.get(target.inode.id).is_dir()
            && !Self::is_empty_dir(locked.get(target.inode.id))
        {
            return Err(Errno::NOTEMPTY.into());
        }
        self.check_name_fits(id, locked.get(id), new_dir, to.name)?;
        if let Some(target) = target.filter(|_| flags.exchange) {
            self.check_name_fits(target.inode.id, locked.get(target.inode.id), dir, from.name)?;
        }
        self.check_collisions(new_dir, locked.get(new_dir), to.name)?;
        if flags.exchange {
            self.check_collisions(dir, locked.get(dir), from.name)?;
        }
        let new_index = self.next_index(new_dir, locked.get_mut(new_dir))?;
        let leaves_something = flags.exchange || flags.whiteout;
        let back_index = if leaves_something { Some(self.next_index(dir, locked.get_mut(dir))?) } else { None };
        let whiteout_ino = if flags.whiteout { Some(self.subvolume(dir.subvolume)?.new_ino()?) } else { None };

        let time = now();
        let (name, new_name): (Name, Name) = (from.name.into(), to.name.into());
        let transaction = self.gate.enter();
        locked.join(&transaction);
        let lost = lost_name(locked.get(dir), dir, &name, old_index);
        remove_entry(locked.get_mut(dir), name.clone(), old_index, source.target, time);
        if let (Some(target), Some(index)) = (target, target_index) {
            let lost = lost_name(locked.get(new_dir), new_dir, &new_name, index);
            remove_entry(locked.get_mut(new_dir), new_name.clone(), index, target.target, time);
            let state = locked.get_mut(target.inode.id);
            if flags.exchange {
                let back = back_index.unwrap_or(DirIndex::FIRST);
                move_name(state, lost, dir, name.clone(), back);
            } else {
                let is_dir = state.is_dir();
                drop_name(state, lost, is_dir);
            }
            state.item.ctime = time;
            state.item.sequence = state.item.sequence.wrapping_add(1);
            if let Some(back) = back_index.filter(|_| flags.exchange) {
                add_entry(locked.get_mut(dir), name.clone(), back, target.target, time);
            }
        }
        let state = locked.get_mut(id);
        move_name(state, lost, new_dir, new_name.clone(), new_index);
        state.item.ctime = time;
        state.item.sequence = state.item.sequence.wrapping_add(1);
        add_entry(locked.get_mut(new_dir), new_name, new_index, source.target, time);
        if let (Some(ino), Some(index)) = (whiteout_ino, back_index) {
            let whiteout = InodeId::new(dir.subvolume, ino);
            let (uid, gid) = flags.whiteout_owner;
            let new = NewInode { mode: 0o020_000, uid, gid, ..NewInode::default() };
            self.add_whiteout(whiteout, dir, &name, index, &new, locked.get(dir), &transaction);
            add_entry(locked.get_mut(dir), name, index, inode_target(whiteout, FileType::CharDevice), time);
        }
        locked.note_renamed(&transaction);
        Ok(true)
    }
}

/// Notes in an inode that has joined the transaction that one of its names became another.
fn move_name(state: &mut InodeState, lost: LostName, dir: InodeId, name: Name, index: DirIndex) {
    let nlink = state.item.nlink;
    state.pending.remove_ref(lost);
    add_name(state, dir, name, index);
    state.item.nlink = nlink;
}
