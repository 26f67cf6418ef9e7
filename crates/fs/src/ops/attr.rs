//! Attributes: stat, chmod, chown, utimens, and truncation through them.

use ubtrfs_file::{DirtyData, Mapped};
use ubtrfs_format::Generation;
use ubtrfs_format::ITEM_HEADER_SIZE;
use ubtrfs_format::items::{DIR_ENTRY_HEADER, FileType, InodeFlags, InodeItem, MAX_NAME_LEN, Timespec};
use ubtrfs_format::posix::{S_IFDIR, S_IFMT, S_IFREG, S_ISGID, S_ISUID, S_IXGRP, SECONDS_PER_DAY};

use super::flags::{check_mutable, check_no_verity, check_unrestricted};
use super::operations::Operations;

use super::checks::check_real;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState};
use crate::item_sizes::INODE_ITEM;
use crate::xattr_names::CAPABILITY;
use std::sync::Arc;
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// What stat shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode.
    pub id: InodeId,
    /// Its type.
    pub file_type: FileType,
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes, in the kernel's 64-bit form.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes on disk, including those of dirty data.
    pub blocks: u64,
    /// [`InodeFlags`](ubtrfs_format::items::InodeFlags).
    pub flags: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the content.
    pub mtime: Timespec,
    /// Last change of the attributes.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
    /// The transaction in which the inode was made: distinguishes it from others that had its
    /// number before.
    pub generation: Generation,
}

/// A new time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The current time.
    Now,
    /// The given time.
    To(Timespec),
}

/// Attributes to change; `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permissions (the type bits are ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<TimeChange>,
    /// Last change of the content.
    pub mtime: Option<TimeChange>,
    /// Last change of the attributes; the current time without it.
    pub ctime: Option<Timespec>,
    /// Creation.
    pub btime: Option<Timespec>,
    /// Set-id bits and capabilities are cleared, as after a write by a process without privileges
    /// or a change of owner.
    pub kill_privileges: bool,
    /// Set-group-id is cleared of a file that its group may not execute: the process that changes
    /// it is not in the group.
    pub kill_group_id: bool,
}

/// See [`ModeAndXattr::plan`].
pub type ModeAndXattrPlan<'a> = dyn Fn(u32, Option<&[u8]>) -> Result<(u32, Option<Vec<u8>>)> + 'a;

/// A mode and an xattr that change together.
pub struct ModeAndXattr<'a> {
    /// The xattr's name.
    pub name: &'a [u8],
    /// Returns the new mode and the new value of the xattr for the current ones; `None` is no
    /// xattr. It may be called several times.
    pub plan: &'a ModeAndXattrPlan<'a>,
}

enum XattrChange {
    None,
    Remove,
    Set(Vec<u8>),
}

/// The result of a [`ModeAndXattr`].
struct Planned {
    mode: u32,
    xattr: XattrChange,
}

impl Planned {
    /// Bytes of items that the xattr takes at the most.
    fn room(&self) -> u64 {
        match &self.xattr {
            XattrChange::Set(value) => (XATTR_ROOM + value.len()) as u64,
            XattrChange::None | XattrChange::Remove => 0,
        }
    }
}

/// Attributes that change together, in one transaction, and with them a size.
pub(crate) struct AttributeChange<'a> {
    changes: &'a SetAttributes,
    with: Option<&'a ModeAndXattr<'a>>,
}

/// The result of an [`AttributeChange`].
pub(super) struct AttributePlan {
    planned: Option<Planned>,
    loses_capabilities: bool,
}

impl AttributePlan {
    /// Upper bound of the bytes of its items besides the inode item.
    pub(super) fn room(&self) -> u64 {
        self.planned.as_ref().map_or(0, Planned::room)
    }
}

impl AttributeChange<'_> {
    /// Its reservation, with so many bytes for the xattr.
    pub(super) fn demand(room: u64) -> Demand {
        Demand { edits: 3, item_bytes: INODE_ITEM + room, global_reserve: UseOfGlobalReserve::All, ..Demand::default() }
    }

    /// Changes an inode that has joined the transaction.
    pub(super) fn carry_out(&self, state: &mut InodeState, plan: AttributePlan, time: Timespec) {
        let changes = self.changes;
        if plan.loses_capabilities {
            state.pending.set_xattr(CAPABILITY.into(), None);
        }
        let mode = match (self.with, plan.planned) {
            (Some(with), Some(planned)) => {
                match planned.xattr {
                    XattrChange::None => {}
                    XattrChange::Remove => state.pending.set_xattr(with.name.into(), None),
                    XattrChange::Set(value) => {
                        state.no_xattrs = false;
                        state.pending.set_xattr(with.name.into(), Some(value.into()));
                    }
                }
                Some(planned.mode)
            }
            _ => changes.mode,
        };
        let item = &mut state.item;
        if let Some(mode) = mode {
            item.mode = item.mode & !0o7777 | mode & 0o7777;
        } else if changes.kill_privileges && item.mode & S_IFMT != S_IFDIR {
            item.mode = without_set_id(item.mode);
        }
        if changes.kill_group_id && item.mode & (S_IFMT | S_IXGRP) == S_IFREG {
            item.mode &= !S_ISGID;
        }
        item.uid = changes.uid.unwrap_or(item.uid);
        item.gid = changes.gid.unwrap_or(item.gid);
        let resolved = |change: TimeChange| match change {
            TimeChange::Now => time,
            TimeChange::To(at) => at,
        };
        item.atime = changes.atime.map_or(item.atime, resolved);
        item.mtime = changes.mtime.map_or(item.mtime, resolved);
        item.ctime = changes.ctime.unwrap_or(time);
        item.otime = changes.btime.unwrap_or(item.otime);
        item.sequence = item.sequence.wrapping_add(1);
    }
}

enum Attempt {
    Done(Attributes),
    /// Nothing was changed: so many bytes have to be reserved first.
    Takes(u64),
}

/// Bytes of an xattr's item beside the value, at the most.
const XATTR_ROOM: usize = ITEM_HEADER_SIZE + DIR_ENTRY_HEADER + MAX_NAME_LEN;

/// A mode without the bits that an unprivileged write or a change of owner clears: set-user-id
/// always, set-group-id where the group may execute (without that it means mandatory locking).
pub(crate) fn without_set_id(mode: u32) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & S_IXGRP != 0 { mode & !S_ISGID } else { mode }
}

impl Operations {
    /// What stat shows of an inode.
    pub(crate) fn attributes(&self, id: InodeId) -> Result<Attributes> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        Ok(self.attributes_of(id, &state))
    }

    /// Type and permissions of an inode: less work than [`attributes`](Self::attributes).
    pub(crate) fn mode(&self, id: InodeId) -> Result<u32> {
        Ok(self.info.inode(id)?.read().item.mode)
    }

    /// Bytes of an inode: less work than [`attributes`](Self::attributes).
    pub(crate) fn size(&self, id: InodeId) -> Result<u64> {
        Ok(self.info.inode(id)?.read().item.size)
    }

    /// Flags of an inode, as the format has them: less work than [`attributes`](Self::attributes).
    pub(crate) fn flags(&self, id: InodeId) -> Result<u64> {
        Ok(self.info.inode(id)?.read().item.flags)
    }

    /// Changes attributes.
    pub(crate) fn set_attributes(&self, id: InodeId, changes: &SetAttributes) -> Result<Attributes> {
        self.change_attributes(id, changes, None)
    }

    /// Changes attributes, and in the same transaction the mode and an xattr that depend on each
    /// other, as a mode and an ACL do.
    pub(crate) fn set_attributes_with(
        &self,
        id: InodeId,
        changes: &SetAttributes,
        with: &ModeAndXattr<'_>,
    ) -> Result<Attributes> {
        self.change_attributes(id, changes, Some(with))
    }

    /// An error if a size may not be changed, be it to what it is.
    pub(crate) fn check_resizable(&self, id: InodeId) -> Result<()> {
        self.info.check_writable(id.subvolume)?;
        check_real(id)?;
        let inode = self.info.inode(id)?;
        let state = inode.read();
        check_unrestricted(&state)?;
        check_no_verity(&state)
    }

    fn change_attributes(
        &self,
        id: InodeId,
        changes: &SetAttributes,
        with: Option<&ModeAndXattr<'_>>,
    ) -> Result<Attributes> {
        self.info.check_writable(id.subvolume)?;
        if id.is_placeholder() && changes.size.is_none() {
            // As by the kernel's driver, this succeeds and leaves nothing.
            return self.attributes(id);
        }
        check_real(id)?;
        // To set both to the present is what everybody may who may write; to set one is not.
        let times = [changes.atime, changes.mtime];
        let sets_one = changes.size.is_none() && times.iter().flatten().count() == 1;
        let sets_times = sets_one || times.iter().flatten().any(|time| *time != TimeChange::Now);
        // An ACL is as much of the permissions as the mode is.
        let restricted =
            with.is_some() || changes.mode.is_some() || changes.uid.is_some() || changes.gid.is_some() || sets_times;
        if changes.size.is_some() {
            self.check_resizable(id)?;
        } else if restricted {
            check_unrestricted(&self.info.inode(id)?.read())?;
        } else if changes.atime.is_some() || changes.mtime.is_some() {
            check_mutable(&self.info.inode(id)?.read())?;
        }
        let change = AttributeChange { changes, with };
        if let Some(size) = changes.size {
            self.resize(id, size, &change)?;
            return self.attributes(id);
        }
        // What the xattr will take is known for certain only when the inode is locked.
        let mut room = self.room_of_change(id, &change)?;
        loop {
            let demand = AttributeChange::demand(room);
            let outcome = self.reserver.with_reserved(demand, || {
                let outcome = self.change_attributes_reserved(id, &change, room)?;
                if matches!(outcome, Attempt::Takes(_)) {
                    self.info.space.lock().unreserve_metadata(demand);
                }
                Ok(outcome)
            })?;
            match outcome {
                Attempt::Done(attributes) => return Ok(attributes),
                Attempt::Takes(more) => room = more,
            }
        }
    }

    /// Bytes of items that a change will take besides the inode item, if the inode does not change
    /// before.
    pub(super) fn room_of_change(&self, id: InodeId, change: &AttributeChange<'_>) -> Result<u64> {
        match change.with {
            Some(with) => Ok(self.plan_xattr(id, &self.info.inode(id)?.read(), with)?.room()),
            None => Ok(0),
        }
    }

    fn change_attributes_reserved(&self, id: InodeId, change: &AttributeChange<'_>, room: u64) -> Result<Attempt> {
        let inode = self.info.inode(id)?;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        let plan = self.plan_attributes(id, &state, change)?;
        if plan.room() > room {
            return Ok(Attempt::Takes(plan.room()));
        }
        let transaction = self.info.gate.enter();
        state.join(&inode, &transaction);
        change.carry_out(&mut state, plan, self.info.now());
        Ok(Attempt::Done(self.attributes_of(id, &state)))
    }

    /// Computes a change. The caller holds the inode's lock until it is applied.
    pub(super) fn plan_attributes(
        &self,
        id: InodeId,
        state: &InodeState,
        AttributeChange { changes, with }: &AttributeChange<'_>,
    ) -> Result<AttributePlan> {
        let planned = with.map(|with| self.plan_xattr(id, state, with)).transpose()?;
        let kills_capabilities = changes.kill_privileges || changes.uid.is_some() || changes.gid.is_some();
        let loses_capabilities = kills_capabilities && self.info.view(id, state).xattr(CAPABILITY)?.is_some();
        Ok(AttributePlan { planned, loses_capabilities })
    }

    /// Computes the change of a mode and an xattr. The caller holds the inode's lock.
    fn plan_xattr(&self, id: InodeId, state: &InodeState, with: &ModeAndXattr<'_>) -> Result<Planned> {
        let old = self.info.view(id, state).xattr(with.name)?;
        let (mode, new) = (with.plan)(state.item.mode, old.as_deref())?;
        let xattr = match new {
            new if new == old => XattrChange::None,
            None => XattrChange::Remove,
            Some(new) => {
                self.check_xattr_fits(id, state, with.name, &new)?;
                XattrChange::Set(new)
            }
        };
        Ok(Planned { mode, xattr })
    }

    /// Records an access, as `relatime` does: when the last one is before the last change or a day
    /// ago. In non-blocking mode it fails, and has changed nothing, where others hold the inode.
    pub(crate) fn touch_atime(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.info.options.no_atime || self.info.check_writable(inode.id.subvolume).is_err() {
            return Ok(());
        }
        if inode.read().item.flags & InodeFlags::NOATIME != 0 {
            return Ok(());
        }
        let time = self.info.now();
        let is_strict = self.info.options.strict_atime;
        let stale = |item: &InodeItem| {
            let before = |a: Timespec, b: Timespec| (a.sec as i64, a.nsec) <= (b.sec as i64, b.nsec);
            is_strict && (item.atime.sec, item.atime.nsec) != (time.sec, time.nsec)
                || before(item.atime, item.mtime)
                || before(item.atime, item.ctime)
                || (item.atime.sec as i64).saturating_add(SECONDS_PER_DAY) <= time.sec as i64
        };
        if !stale(&inode.read().item) {
            return Ok(());
        }
        let demand = Demand { edits: 1, item_bytes: INODE_ITEM, ..Demand::default() };
        // A reader waits for no commit: where there is no space, the access is not recorded.
        let reservation = self.reserver.reserve_at_once(demand);
        let mut state = if let Some(state) = inode.try_write() {
            state
        } else {
            ubtrfs_tree::ensure_may_block()?;
            inode.write()
        };
        if state.dead {
            return Ok(());
        }
        let transaction = self.info.gate.enter();
        // The item of an inode that has changed in the open transaction is written anyway.
        if reservation.is_some() || state.pending.generation == transaction.generation {
            state.join(inode, &transaction);
            state.item.atime = time;
        }
        Ok(())
    }

    /// What stat shows of an inode in this state.
    fn attributes_of(&self, id: InodeId, state: &InodeState) -> Attributes {
        let item = &state.item;
        let sector = state.dirty.sector();
        // Inline content counts as a sector, as the kernel counts it.
        let written = item.nbytes.checked_next_multiple_of(sector).unwrap_or(item.nbytes);
        let unwritten = state.reserved_bytes();
        let bytes = if unwritten == 0 {
            written
        } else {
            // Data that will replace data on disk must not count twice: the kernel may cache the
            // answer for a day.
            let most = written.max(item.size.checked_next_multiple_of(sector).unwrap_or(item.size));
            // That takes no more than nodes of the file's own tree, and what calls this may have
            // changed something already.
            let added = ubtrfs_tree::blocking(|| self.added_bytes(id, state)).unwrap_or(unwritten);
            let added = item.nbytes.saturating_add(added);
            added.checked_next_multiple_of(sector).unwrap_or(added).min(most)
        };
        Attributes {
            id,
            file_type: state.file_type(),
            mode: item.mode,
            nlink: item.nlink,
            uid: item.uid,
            gid: item.gid,
            rdev: item.rdev,
            size: item.size,
            blocks: bytes.div_ceil(512),
            flags: item.flags,
            atime: item.atime,
            mtime: item.mtime,
            ctime: item.ctime,
            btime: item.otime,
            generation: item.generation,
        }
    }

    /// Bytes by which a file will grow on disk when its dirty data is written back. `None` if that
    /// takes too long to compute, or can't be computed.
    fn added_bytes(&self, id: InodeId, state: &InodeState) -> Option<u64> {
        /// More dirty ranges than this are not examined.
        const MAX_RANGES: usize = 16;
        let frozen = state.frozen.as_ref().map(|frozen| &frozen.dirty);
        let mut dirty: Vec<_> = state.dirty.ranges().take(MAX_RANGES + 1).collect();
        for (start, len) in frozen.into_iter().flat_map(DirtyData::ranges).take(MAX_RANGES + 1) {
            // Parts that were truncated or replaced since are not read from there.
            let shown = state.pending.layout.get(start..start + len).filter(|(_, _, piece)| piece.is_none());
            dirty.extend(shown.map(|(start, len, _)| (start, len)));
        }
        if dirty.len() > MAX_RANGES {
            return None;
        }
        dirty.sort_unstable();
        let map = self.info.view(id, state).map().ok()?;
        let (mut added, mut at) = (0_u64, 0);
        for (start, len) in dirty {
            let range = start.max(at)..start + len;
            if range.is_empty() {
                continue;
            }
            at = range.end;
            let pieces = map.with_stack(state, |stack| stack.resolve(range.clone())).ok()?;
            let there: u64 = pieces.iter().map(Mapped::allocated).sum();
            added += (range.end - range.start).saturating_sub(there);
        }
        Some(added)
    }
}
