//! Attributes: stat, chmod, chown, utimens, and truncation through them.

use ubtrfs_file::{DirtyData, Mapped};
use ubtrfs_format::Generation;
use ubtrfs_format::items::{FileType, Timespec};

use super::attribute_change::{AttributeChange, ModeAndXattr, SetAttributes, TimeChange};
use super::checks::{check_mutable, check_no_verity, check_real, check_unrestricted};
use super::operations::InodeOperations;
use crate::error::{Errno, Result};
use crate::inode::{InodeId, InodeState};

/// The result of stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode.
    pub id: InodeId,
    /// Its type.
    pub file_type: FileType,
    /// Type and permissions.
    pub mode: u32,
    /// Number of names.
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
    /// The transaction in which the inode was created. It distinguishes the inode from others that
    /// had the same number before.
    pub generation: Generation,
}

enum Attempt {
    Done(Attributes),
    /// Nothing was changed: this many bytes have to be reserved first.
    Takes(u64),
}

impl InodeOperations {
    /// Returns what stat shows of an inode.
    pub fn attributes(&self, id: InodeId) -> Result<Attributes> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        Ok(self.attributes_of(id, &state))
    }

    /// Returns type and permissions of an inode, with less work than
    /// [`attributes`](Self::attributes).
    pub fn mode(&self, id: InodeId) -> Result<u32> {
        Ok(self.info.inode(id)?.read().item.mode)
    }

    /// Returns the size of an inode in bytes, with less work than [`attributes`](Self::attributes).
    pub fn size(&self, id: InodeId) -> Result<u64> {
        Ok(self.info.inode(id)?.read().item.size)
    }

    /// Returns the on-disk flags of an inode, with less work than [`attributes`](Self::attributes).
    pub fn flags(&self, id: InodeId) -> Result<u64> {
        Ok(self.info.inode(id)?.read().item.flags)
    }

    /// Changes attributes, but no ACL.
    pub fn set_attributes(&self, id: InodeId, changes: &SetAttributes) -> Result<Attributes> {
        self.change_attributes(id, changes, None)
    }

    /// Changes attributes, and in the same transaction the mode and an xattr that depend on each
    /// other, as a mode and an ACL do.
    pub fn set_attributes_with(
        &self,
        id: InodeId,
        changes: &SetAttributes,
        with: &ModeAndXattr<'_>,
    ) -> Result<Attributes> {
        self.change_attributes(id, changes, Some(with))
    }

    /// Fails if the size of a file may not be changed, even if the new size is the current one.
    pub fn check_resizable(&self, id: InodeId) -> Result<()> {
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
            // As in the kernel's driver, this succeeds and changes nothing.
            return self.attributes(id);
        }
        check_real(id)?;
        // A caller that may write may set both times to the present, but not one of them alone.
        let times = [changes.atime, changes.mtime];
        let sets_one = changes.size.is_none() && times.iter().flatten().count() == 1;
        let sets_times = sets_one || times.iter().flatten().any(|time| *time != TimeChange::Now);
        // An ACL belongs to the permissions as the mode does.
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
            self.files.resize(id, size, &change)?;
            return self.attributes(id);
        }
        // What the xattr will take is known for certain only when the inode is locked.
        let mut room = self.plans.room_of_change(id, &change)?;
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

    fn change_attributes_reserved(&self, id: InodeId, change: &AttributeChange<'_>, room: u64) -> Result<Attempt> {
        let inode = self.info.inode(id)?;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        let plan = self.plans.plan(id, &state, change)?;
        if plan.room() > room {
            return Ok(Attempt::Takes(plan.room()));
        }
        let transaction = self.info.gate.enter();
        state.join(&inode, &transaction);
        change.carry_out(&mut state, plan, self.info.now());
        Ok(Attempt::Done(self.attributes_of(id, &state)))
    }

    /// Returns what stat shows of an inode in this state.
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
            // This reads only nodes of the file's own tree, and the caller may have changed
            // something already, so it may block.
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

    /// Returns the bytes by which a file will grow on disk when its dirty data is written back.
    /// `None` if this takes too long to compute, or can't be computed.
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
