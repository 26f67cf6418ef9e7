//! Attributes: stat, chmod, chown, utimens, and truncation through them.

use ubtrfs_format::items::{FileType, InodeItem, Timespec};

use super::{check_real, now};
use crate::error::{Errno, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeId, InodeState};
use crate::space::Demand;
use std::sync::Arc;

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
    /// Units of 512 bytes on disk, of data not written out yet too.
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
}

/// A new time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeChange {
    /// This moment.
    Now,
    /// That moment.
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
    /// Last change of the attributes; without it, this moment.
    pub ctime: Option<Timespec>,
    /// Set-id bits and capabilities go, as after a write by someone without privileges or a change of owner.
    pub kill_privileges: bool,
}

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;

/// A mode without the bits that an unprivileged write or a change of owner takes away: set-user-id always,
/// set-group-id where the group may execute (without that it means mandatory locking).
pub(crate) fn without_set_id(mode: u32) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & S_IXGRP != 0 { mode & !S_ISGID } else { mode }
}

impl Filesystem {
    /// What stat shows of an inode.
    pub fn attributes(&self, id: InodeId) -> Result<Attributes> {
        let inode = self.inode(id)?;
        let state = inode.read();
        Ok(attributes_of(id, &state))
    }

    /// Changes attributes.
    pub fn set_attributes(&self, id: InodeId, changes: &SetAttributes) -> Result<Attributes> {
        self.check_writable(id.subvolume)?;
        check_real(id)?;
        let kills_capabilities = changes.kill_privileges || changes.uid.is_some() || changes.gid.is_some();
        if let Some(size) = changes.size {
            self.resize(id, size)?;
        }
        if kills_capabilities {
            self.drop_capabilities(id)?;
        }
        self.reserve(Demand { edits: 1, item_bytes: 185, frees: true, ..Demand::default() })?;
        let inode = self.inode(id)?;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        let transaction = self.gate.enter();
        state.join(&inode, &transaction);
        let time = now();
        let item = &mut state.item;
        if let Some(mode) = changes.mode {
            item.mode = item.mode & !0o7777 | mode & 0o7777;
        } else if changes.kill_privileges && item.mode & 0o170_000 != 0o040_000 {
            item.mode = without_set_id(item.mode);
        }
        item.uid = changes.uid.unwrap_or(item.uid);
        item.gid = changes.gid.unwrap_or(item.gid);
        let moment = |change: TimeChange| match change {
            TimeChange::Now => time,
            TimeChange::To(moment) => moment,
        };
        item.atime = changes.atime.map_or(item.atime, moment);
        item.mtime = changes.mtime.map_or(item.mtime, moment);
        item.ctime = changes.ctime.unwrap_or(time);
        item.sequence = item.sequence.wrapping_add(1);
        Ok(attributes_of(id, &state))
    }

    /// Removes `security.capability`, if there is one.
    pub(crate) fn drop_capabilities(&self, id: InodeId) -> Result<()> {
        if self.inode(id)?.read().no_xattrs {
            return Ok(());
        }
        match self.remove_xattr(id, b"security.capability") {
            Err(error) if error.errno() == Errno::NODATA => Ok(()),
            other => other,
        }
    }

    /// Notes an access, as `relatime` does: when the last one lies before the last change or a day back.
    pub(crate) fn touch_atime(&self, inode: &Arc<Inode>) {
        const DAY: i64 = 24 * 60 * 60;
        if self.options.no_atime || self.check_writable(inode.id.subvolume).is_err() {
            return;
        }
        let time = now();
        let stale = |item: &InodeItem| {
            let before = |a: Timespec, b: Timespec| (a.sec as i64, a.nsec) <= (b.sec as i64, b.nsec);
            before(item.atime, item.mtime)
                || before(item.atime, item.ctime)
                || (item.atime.sec as i64).saturating_add(DAY) <= time.sec as i64
        };
        if !stale(&inode.read().item) {
            return;
        }
        let demand = Demand { edits: 1, item_bytes: 185, ..Demand::default() };
        if self.space.lock().reserve(demand).is_err() {
            return;
        }
        let mut state = inode.write();
        if state.dead {
            return;
        }
        let transaction = self.gate.enter();
        state.join(inode, &transaction);
        state.item.atime = time;
    }
}

/// What stat shows of an inode in this state.
pub(crate) fn attributes_of(id: InodeId, state: &InodeState) -> Attributes {
    let item = &state.item;
    let unwritten = state.reserved + state.frozen.as_ref().map_or(0, |frozen| frozen.reserved);
    // What lies within metadata counts as a sector, as the kernel counts it.
    let bytes = item.nbytes.checked_next_multiple_of(state.dirty.sector()).unwrap_or(item.nbytes);
    Attributes {
        id,
        file_type: state.file_type(),
        mode: item.mode,
        nlink: item.nlink,
        uid: item.uid,
        gid: item.gid,
        rdev: item.rdev,
        size: item.size,
        blocks: bytes.saturating_add(unwritten).div_ceil(512),
        flags: item.flags,
        atime: item.atime,
        mtime: item.mtime,
        ctime: item.ctime,
        btime: item.otime,
    }
}
