//! Rename, with its three flags.

use std::sync::Arc;

use ubtrfs_format::DirIndex;
use ubtrfs_format::items::{FileType, Timespec};

use super::LockedInodes;
use super::checks::{check_mutable, check_name, check_real, check_removable_from};
use super::create::{add_entry, inode_target, remove_entry};
use super::entries::{Named, name_demand};
use super::link::{add_name, drop_name, lost_name};
use super::operations::DirectoryOperations;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState, LostName, Name};
use crate::names::LookupResult;
use crate::subvolume_entries::EntryLocation;
use crate::transaction::Transaction;
use ubtrfs_space::Demand;

/// How a rename treats its target and its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail if the target exists.
    pub no_replace: bool,
    /// Exchange source and target.
    pub exchange: bool,
    /// Leave a whiteout (character device 0:0) under the old name.
    pub whiteout: bool,
    /// Owner and group of the whiteout; a directory with the set-group-id bit gives its own group
    /// instead.
    pub whiteout_owner: (u32, u32),
}

/// One end of a rename.
struct End<'a> {
    dir: Arc<Inode>,
    name: &'a [u8],
}

/// A rename with what lookups found before its inodes were locked.
#[derive(Clone, Copy)]
struct FoundRename<'a> {
    from: &'a End<'a>,
    to: &'a End<'a>,
    source: &'a Named,
    /// The entry that has the new name.
    target: Option<&'a Named>,
    /// The result of looking up the new name in the new directory.
    lookup: LookupResult,
    flags: RenameFlags,
}

/// The entries that a rename changes, found with its inodes locked.
struct RenamePlan {
    old_index: DirIndex,
    target_index: Option<DirIndex>,
    new_index: DirIndex,
    /// The index of the new entry under the old name: that of the target, or of a whiteout.
    back_index: Option<DirIndex>,
    whiteout: Option<Arc<Inode>>,
}

impl DirectoryOperations {
    /// Gives the inode `name` of `dir` the name `new_name` in `new_dir`. An inode that had that
    /// name loses it, or gets the old name if `flags` say so.
    ///
    /// Entries of subvolumes can be moved between subvolumes, other entries can't. After such a
    /// move no log is written until the next commit, since a log can't express it.
    pub fn rename(
        &self,
        dir: InodeId,
        name: &[u8],
        new_dir: InodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.rename_only((dir, name), (new_dir, new_name), flags, None)
    }

    /// Renames as [`Self::rename`] does without flags, for a caller that knows the inode: `EBUSY`
    /// if the old name belongs to another inode by then.
    pub fn rename_inode(&self, id: InodeId, from: (InodeId, &[u8]), to: (InodeId, &[u8])) -> Result<()> {
        self.rename_only(from, to, RenameFlags::default(), Some(id))
    }

    /// Gives the inode `name` of `dir` the name `new_name` in `new_dir`. An inode that had that
    /// name loses it, or gets the old name if `flags` say so.
    ///
    /// Entries of subvolumes can be moved between subvolumes, other entries can't. After such a
    /// move no log is written until the next commit, since a log can't express it. `EBUSY` if the
    /// name is that of another inode than `only`.
    fn rename_only(
        &self,
        (dir, name): (InodeId, &[u8]),
        (new_dir, new_name): (InodeId, &[u8]),
        flags: RenameFlags,
        only: Option<InodeId>,
    ) -> Result<()> {
        check_name(new_name)?;
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Errno::INVAL.into());
        }
        for dir in [dir, new_dir] {
            self.info.check_writable(dir.subvolume)?;
            check_real(dir)?;
        }
        let (one, two) = (name_demand(name), name_demand(new_name));
        let demand = Demand {
            edits: 2 * (one.edits + two.edits),
            item_bytes: 2 * (one.item_bytes + two.item_bytes),
            ..Demand::default()
        };
        self.reserver.with_reserved(demand, || self.rename_reserved((dir, name), (new_dir, new_name), flags, only))
    }

    fn rename_reserved(
        &self,
        (dir, name): (InodeId, &[u8]),
        (new_dir, new_name): (InodeId, &[u8]),
        flags: RenameFlags,
        only: Option<InodeId>,
    ) -> Result<()> {
        // The lock prevents a cycle of directories, and the deletion of the subvolumes of the
        // directories.
        let _no_cycles = if dir == new_dir { None } else { Some(self.entries.lock_renames()?) };
        self.info.check_writable(new_dir.subvolume)?;
        let from = End { dir: self.info.inode(dir)?, name };
        let to = End { dir: self.info.inode(new_dir)?, name: new_name };
        loop {
            let source = self.entries.find_named(&from.dir, name)?.ok_or(Errno::NOENT)?;
            // The inode found here is the one that is renamed, or else the lookup is repeated.
            if only.is_some_and(|only| only != source.inode.id) {
                return Err(Errno::BUSY.into());
            }
            let (lookup, target) = self.entries.seek_named(&to.dir, new_name)?;
            self.check_rename(&from, &to, &source, target.as_ref(), flags)?;
            if target.as_ref().is_some_and(|target| target.inode.id == source.inode.id) {
                // Two names of one inode: POSIX requires that nothing happens.
                return Ok(());
            }
            let found = FoundRename { from: &from, to: &to, source: &source, target: target.as_ref(), lookup, flags };
            if self.rename_found(&found)? {
                if let Some(target) = target
                    && !flags.exchange
                    && !target.is_empty_subvolume()
                {
                    self.inactivator.inactivate_if_unused(&target.inode);
                }
                return Ok(());
            }
        }
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
        let exchanged = target.filter(|_| flags.exchange);
        let mut moved = [Some(source), exchanged].into_iter().flatten();
        if from.dir.id.subvolume != to.dir.id.subvolume && !moved.clone().all(Named::is_subvolume) {
            return Err(Errno::XDEV.into());
        }
        let replaces_subvolume = target.is_some_and(Named::is_subvolume) && !flags.exchange;
        if source.is_empty_subvolume() || replaces_subvolume {
            return Err(Errno::NOTEMPTY.into());
        }
        if exchanged.is_some_and(Named::is_empty_subvolume) {
            return Err(Errno::PERM.into());
        }
        // A deleted subvolume's root is like a directory that was removed.
        if [from, to].iter().any(|end| self.info.is_deleted_root(end.dir.id)) {
            return Err(Errno::NOENT.into());
        }
        if from.dir.id.subvolume != to.dir.id.subvolume {
            // A subvolume can't be moved into one that was deleted.
            self.subvolumes.check_subvolume(to.dir.id.subvolume)?;
            if flags.exchange {
                self.subvolumes.check_subvolume(from.dir.id.subvolume)?;
            }
        }
        if from.dir.id != to.dir.id {
            // The move would change the target of `..` in the subvolume or directory.
            moved.try_for_each(|named| self.info.check_writable(named.inode.id.subvolume).map(drop))?;
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
                // A damaged volume: the parents form a cycle.
                return Err(Errno::LOOP.into());
            }
            if at == ancestor {
                return Ok(true);
            }
            let parent = self.names.parent(at)?;
            if parent == at {
                return Ok(false);
            }
            at = parent;
        }
    }

    /// Renames if everything is still as it was found; otherwise returns `false`.
    fn rename_found(&self, found: &FoundRename<'_>) -> Result<bool> {
        let mut inodes = vec![&found.from.dir, &found.to.dir];
        // A subvolume itself does not change if its entry is renamed: the root tree says where the
        // entry is.
        let ends = [Some(found.source), found.target].into_iter().flatten().filter(|named| !named.is_root());
        inodes.extend(ends.map(|named| &named.inode));
        let mut locked = LockedInodes::lock(&inodes);
        let Some(plan) = self.plan_rename(found, &mut locked)? else { return Ok(false) };
        // No other thread knows the new inode yet, so this never waits, whatever its place in the
        // lock order.
        let mut whiteout = plan.whiteout.as_ref().and_then(|child| child.try_write());
        assert_eq!(whiteout.is_some(), plan.whiteout.is_some(), "a new inode is locked");
        let transaction = self.info.gate.enter();
        locked.join(&transaction);
        self.apply_rename(found, &plan, (&mut locked, whiteout.as_deref_mut()), &transaction);
        locked.note_renamed(&transaction);
        Ok(true)
    }

    /// Returns the indices of the entries that change, or `None` if the entries are no longer as
    /// they were found.
    fn plan_rename(&self, found: &FoundRename<'_>, locked: &mut LockedInodes<'_>) -> Result<Option<RenamePlan>> {
        let FoundRename { from, to, source, target, lookup, flags } = *found;
        let (dir, new_dir) = (from.dir.id, to.dir.id);
        let Some(old_index) = self.entries.still_named(dir, locked.get(dir), from.name, source)? else {
            return Ok(None);
        };
        let target_index = match target {
            Some(target) => match self.entries.still_named(new_dir, locked.get(new_dir), to.name, target)? {
                Some(index) => Some(index),
                None => return Ok(None),
            },
            None => None,
        };
        let lookup = self.names.seek_entry_again(new_dir, locked.get(new_dir), to.name, lookup)?;
        if target.is_none() && lookup.found.is_some() {
            return Ok(None);
        }
        if locked.get(new_dir).item.nlink == 0 || [dir, new_dir].iter().any(|dir| self.info.is_deleted_root(*dir)) {
            return Err(Errno::NOENT.into());
        }
        let replaced = target.filter(|target| !flags.exchange && !target.is_root());
        if replaced
            .map(|target| locked.get(target.inode.id))
            .is_some_and(|state| state.is_dir() && !state.is_empty_dir())
        {
            return Err(Errno::NOTEMPTY.into());
        }
        self.check_moved_name_fits(locked, source, new_dir, to.name)?;
        if let Some(target) = target.filter(|_| flags.exchange) {
            self.check_moved_name_fits(locked, target, dir, from.name)?;
        }
        self.room.check_collisions(new_dir, locked.get(new_dir), to.name, lookup)?;
        if flags.exchange {
            let lookup = self.names.seek_entry(dir, locked.get(dir), from.name)?;
            self.room.check_collisions(dir, locked.get(dir), from.name, lookup)?;
        }
        let new_index = self.names.next_index(new_dir, locked.get_mut(new_dir))?;
        let leaves_something = flags.exchange || flags.whiteout;
        let back_index = if leaves_something { Some(self.names.next_index(dir, locked.get_mut(dir))?) } else { None };
        let whiteout = if flags.whiteout {
            let id = InodeId::new(dir.subvolume, self.info.subvolume(dir.subvolume)?.new_ino()?);
            Some(self.new_whiteout(id, flags.whiteout_owner, locked.get(dir)))
        } else {
            None
        };
        Ok(Some(RenamePlan { old_index, target_index, new_index, back_index, whiteout }))
    }

    fn apply_rename(
        &self,
        found: &FoundRename<'_>,
        plan: &RenamePlan,
        (locked, whiteout): (&mut LockedInodes<'_>, Option<&mut InodeState>),
        transaction: &Transaction,
    ) {
        let FoundRename { from, to, source, target, flags, .. } = *found;
        let (dir, new_dir) = (from.dir.id, to.dir.id);
        let (name, new_name): (Name, Name) = (from.name.into(), to.name.into());
        let time = self.info.now();
        let lost = lost_name(locked.get(dir), dir, &name, plan.old_index);
        remove_entry(locked.get_mut(dir), name.clone(), plan.old_index, source.target, time);
        if let (Some(target), Some(index)) = (target, plan.target_index) {
            let lost = lost_name(locked.get(new_dir), new_dir, &new_name, index);
            remove_entry(locked.get_mut(new_dir), new_name.clone(), index, target.target, time);
            if let Some(back) = plan.back_index.filter(|_| flags.exchange) {
                let entry = EntryLocation { dir, name: name.clone(), index: back };
                self.move_entry(locked, target, lost, entry, transaction, time);
            } else if target.is_empty_subvolume() {
                transaction.forbid_log();
            } else {
                let state = locked.get_mut(target.inode.id);
                let is_dir = state.is_dir();
                drop_name(state, lost, is_dir);
                state.attributes_changed(time);
            }
        }
        let entry = EntryLocation { dir: new_dir, name: new_name, index: plan.new_index };
        self.move_entry(locked, source, lost, entry, transaction, time);
        if let (Some(child), Some(state), Some(index)) = (&plan.whiteout, whiteout, plan.back_index) {
            self.add_whiteout(child, state, (dir, &name, index), transaction);
            add_entry(locked.get_mut(dir), name, index, inode_target(child.id, FileType::CharDevice), time);
        }
    }

    fn check_moved_name_fits(&self, locked: &LockedInodes<'_>, named: &Named, dir: InodeId, name: &[u8]) -> Result<()> {
        let id = named.inode.id;
        if named.is_subvolume() { Ok(()) } else { self.room.check_name_fits(id, locked.get(id), dir, name) }
    }

    /// Gives an inode or subvolume that lost a name another one, with an entry.
    fn move_entry(
        &self,
        locked: &mut LockedInodes<'_>,
        named: &Named,
        lost: LostName,
        place: EntryLocation,
        transaction: &Transaction,
        time: Timespec,
    ) {
        let id = named.inode.id;
        add_entry(locked.get_mut(place.dir), place.name.clone(), place.index, named.target, time);
        if named.is_subvolume() {
            self.names.move_subvolume(id.subvolume, place.clone());
            transaction.move_subvolume(id.subvolume, place);
        } else {
            let state = locked.get_mut(id);
            move_name(state, lost, &place);
            state.attributes_changed(time);
        }
    }
}

/// Replaces one of the names of an inode that has joined the transaction by another one.
fn move_name(state: &mut InodeState, lost: LostName, place: &EntryLocation) {
    let nlink = state.item.nlink;
    state.pending.remove_ref(lost);
    add_name(state, place.dir, place.name.clone(), place.index);
    state.item.nlink = nlink;
}
