//! Changes of attributes. They are computed with the inode locked before the transaction is
//! entered, and carried out within it.

use std::sync::Arc;

use ubtrfs_format::ITEM_HEADER_SIZE;
use ubtrfs_format::items::{DIR_ENTRY_HEADER, MAX_NAME_LEN, Timespec};
use ubtrfs_format::posix::{S_IFDIR, S_IFMT, S_IFREG, S_ISGID, S_ISUID, S_IXGRP};

use super::room::ItemRoom;
use crate::error::Result;
use crate::fs_info::FsInfo;
use crate::inode::{InodeId, InodeState};
use crate::item_sizes::INODE_ITEM;
use crate::xattr_names::CAPABILITY;
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// A new time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// The current time.
    Now,
    /// The given time.
    To(Timespec),
}

/// Attributes to change. An attribute that is `None` stays as it is.
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
    /// Last change of the attributes; the current time if `None`.
    pub ctime: Option<Timespec>,
    /// Creation.
    pub btime: Option<Timespec>,
    /// Whether to clear the set-id bits and the capabilities, as after a write by a process without
    /// privileges or a change of owner.
    pub kill_privileges: bool,
    /// Whether to clear set-group-id of a file that its group may not execute, since the process
    /// that changes it is not in the group.
    pub kill_group_id: bool,
}

/// See [`ModeAndXattr::plan`].
pub type ModeAndXattrPlan<'a> = dyn Fn(u32, Option<&[u8]>) -> Result<(u32, Option<Vec<u8>>)> + 'a;

/// A mode and an xattr that change together.
pub struct ModeAndXattr<'a> {
    /// The xattr's name.
    pub name: &'a [u8],
    /// Returns the new mode and the new value of the xattr, given the current ones; `None` means
    /// that there is no xattr. It may be called several times.
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
    /// Upper bound of the bytes of items that the xattr takes.
    fn room(&self) -> u64 {
        match &self.xattr {
            XattrChange::Set(value) => (XATTR_ROOM + value.len()) as u64,
            XattrChange::None | XattrChange::Remove => 0,
        }
    }
}

/// Changes of attributes, and perhaps of an xattr, that are made in one transaction. They may
/// accompany a change of the size.
pub(crate) struct AttributeChange<'a> {
    pub(super) changes: &'a SetAttributes,
    pub(super) with: Option<&'a ModeAndXattr<'a>>,
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
    /// Returns its reservation, with `room` bytes for the xattr.
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

/// Upper bound of the bytes of an xattr's item without its value.
const XATTR_ROOM: usize = ITEM_HEADER_SIZE + DIR_ENTRY_HEADER + MAX_NAME_LEN;

/// Returns a mode without the bits that an unprivileged write or a change of owner clears:
/// set-user-id always, set-group-id if the group may execute (otherwise that bit means mandatory
/// locking).
pub(crate) fn without_set_id(mode: u32) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & S_IXGRP != 0 { mode & !S_ISGID } else { mode }
}

/// Computes the effect of changes of attributes on an inode.
pub(crate) struct AttributePlanner {
    pub(super) info: Arc<FsInfo>,
    pub(super) room: Arc<ItemRoom>,
}

impl AttributePlanner {
    /// Returns the bytes of items that a change takes besides the inode item, as long as the inode
    /// does not change.
    pub(super) fn room_of_change(&self, id: InodeId, change: &AttributeChange<'_>) -> Result<u64> {
        match change.with {
            Some(with) => Ok(self.plan_xattr(id, &self.info.inode(id)?.read(), with)?.room()),
            None => Ok(0),
        }
    }

    /// Computes a change. The caller holds the inode's lock until it is applied.
    pub(super) fn plan(
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
                self.room.check_xattr_fits(id, state, with.name, &new)?;
                XattrChange::Set(new)
            }
        };
        Ok(Planned { mode, xattr })
    }
}
