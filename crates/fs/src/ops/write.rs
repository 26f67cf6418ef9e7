//! Writing: the bytes that programs write become dirty data of the inode.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_file::MAX_PACKED;
use ubtrfs_format::items::FileType;

use super::attribute_change::without_set_id;
use super::checks::check_may_write;
use super::operations::FileOperations;
use super::resize::{GrowthPlan, fill_sector};
use super::write_at::WriteAt;
use crate::error::{Errno, Result};
use crate::inode::MAX_FILE_SIZE;
use crate::inode::{Inode, InodeId, InodeState};
use crate::item_sizes::{FILE_EXTENT_ITEM, INODE_ITEM};
use crate::transaction::Transaction;
use crate::writeback::{Cause, may_be_nocow};
use crate::xattr_names::CAPABILITY;
use ubtrfs_space::Demand;

/// Edits of a write that removes capabilities.
const CAPABILITY_EDITS: u64 = 2;
/// Writeback of a file starts when it has this many bytes of dirty data.
const START_WRITEBACK: u64 = 8 << 20;

/// A write whose space is reserved.
struct ReservedWrite<'a> {
    inode: &'a Arc<Inode>,
    at: WriteAt,
    data: &'a [u8],
    /// Whether set-id bits and capabilities are cleared.
    kill_privileges: bool,
    /// Whether the data may be compressed.
    may_pack: bool,
    /// Bytes of metadata that are reserved for it as inline content.
    inline_bytes: u64,
    /// Whether no data space could be reserved, so that only extents that are overwritten in place
    /// may be written.
    nocow_only: bool,
}

/// The plan of a write, made before the transaction is entered.
struct WritePlan {
    offset: u64,
    end: u64,
    /// The present content of sectors that the write covers in part.
    fills: Vec<(u64, Vec<u8>)>,
    growth: Option<GrowthPlan>,
    loses_capabilities: bool,
}

/// The reservation that a write needs.
struct WriteDemand {
    demand: Demand,
    /// The part of it that is for inline content.
    inline_bytes: u64,
    /// Whether the reservation suffices if the data is compressed.
    may_pack: bool,
    /// Whether all data goes to extents that are overwritten in place.
    is_nocow: bool,
}

impl FileOperations {
    /// Writes data. `kill_privileges` clears set-id bits and capabilities, as a write by a process
    /// without privileges does.
    pub fn write(&self, id: InodeId, at: WriteAt, data: &[u8], kill_privileges: bool) -> Result<usize> {
        self.write_by(id, at, data, kill_privileges, false)
    }

    /// Does the same for a descriptor with `O_DIRECT`: the data is not compressed.
    pub fn write_directly(&self, id: InodeId, at: WriteAt, data: &[u8], kill_privileges: bool) -> Result<usize> {
        self.write_by(id, at, data, kill_privileges, true)
    }

    /// Writes data. `kill_privileges` clears set-id bits and capabilities, as a write by a process
    /// without privileges does. If `direct` is set, the data is not compressed.
    fn write_by(&self, id: InodeId, at: WriteAt, data: &[u8], kill_privileges: bool, direct: bool) -> Result<usize> {
        self.info.check_writable(id.subvolume)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.throttle()?;
        let WriteDemand { demand, inline_bytes, may_pack, is_nocow } =
            self.write_demand(id, at, data.len() as u64, kill_privileges)?;
        let _reservation = self.reserver.reserve(demand)?;
        let mut surplus = self.sectors_of_write(data.len() as u64) * u64::from(self.info.volume.sector_size());
        if is_nocow {
            self.info.space.lock().promise_placed_data(surplus);
        }
        // From here on nothing may return before the unused data space is given back.
        let result = self.info.inode(id).and_then(|inode| {
            let may_pack = may_pack && !direct;
            let write = ReservedWrite {
                inode: &inode,
                at,
                data,
                kill_privileges,
                may_pack,
                inline_bytes,
                nocow_only: is_nocow,
            };
            self.write_reserved(&write, &mut surplus)
        });
        self.info.unreserve_data(surplus);
        result
    }

    /// Returns the most sectors that a write of `len` bytes may make dirty, including those at its
    /// ends, and the last one of the file before it grows.
    fn sectors_of_write(&self, len: u64) -> u64 {
        len / u64::from(self.info.volume.sector_size()) + 3
    }

    /// Returns the reservation for a write of `len` bytes. `EAGAIN` if the caller may not block and
    /// the write would start writeback.
    fn write_demand(&self, id: InodeId, at: WriteAt, len: u64, kill_privileges: bool) -> Result<WriteDemand> {
        let sector = u64::from(self.info.volume.sector_size());
        let sectors = self.sectors_of_write(len);
        let inode = self.info.inode(id)?;
        let state = inode.read();
        if state.file_type() != FileType::Regular {
            return Err(if state.is_dir() { Errno::ISDIR } else { Errno::INVAL }.into());
        }
        if state.reserved.saturating_add(len) >= START_WRITEBACK {
            ubtrfs_tree::ensure_may_block()?;
        }
        let (offset, end) = range_of_write(at, len, state.item.size)?;
        // This is checked only if space is short: then existing extents must suffice.
        let is_nocow = may_be_nocow(state.item.flags)
            && self.info.space.lock().is_data_short(sectors * sector)
            && self.writeback.has_nocow_extents(id, &state, offset - offset % sector..end.next_multiple_of(sector))?;
        // This is asked once, since options and flags may have changed when the data is written
        // back.
        let may_pack = self.writeback.may_compress(state.item.flags);
        let inline_bytes = self.writeback.inline_bytes(&state, end.max(state.item.size), may_pack);
        // The file extent items of a new file lie beside the inode item, and nothing is removed
        // from the extent and checksum trees. Data that may be inline may still become an extent.
        let edits = if state.is_new() { 2 } else { 4 };
        let extents = if may_pack { 2 + len / MAX_PACKED } else { 1 };
        let sum_bytes = sectors * self.info.volume.checksum().size() as u64;
        let demand = Demand {
            data: if is_nocow { 0 } else { sectors * sector },
            edits: edits + if kill_privileges { CAPABILITY_EDITS } else { 0 },
            item_bytes: INODE_ITEM + extents * 2 * FILE_EXTENT_ITEM + sum_bytes + inline_bytes,
            ..Demand::default()
        };
        Ok(WriteDemand { demand, inline_bytes, may_pack, is_nocow })
    }

    fn write_reserved(&self, write: &ReservedWrite<'_>, surplus: &mut u64) -> Result<usize> {
        let mut state = write.inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        self.info.gate.transact(
            &mut *state,
            |state, _| Ok(ControlFlow::Continue(self.plan_write(write, state)?)),
            |state, plan, transaction| self.apply_write(write, state, plan, transaction, surplus),
        )?;
        self.info.counters.bytes_written.fetch_add(write.data.len() as u64, Ordering::Relaxed);
        if state.reserved >= START_WRITEBACK {
            // A concurrent write may have added dirty data since the check of whether this may
            // block. A writeback that was begun has to be completed.
            let packed = self.writeback.pack_pending(write.inode.id, &state, Cause::Pressure)?;
            ubtrfs_tree::blocking(|| self.start_writeback(write.inode, &mut state, Cause::Pressure, packed))?;
        }
        Ok(write.data.len())
    }

    fn plan_write(&self, write: &ReservedWrite<'_>, state: &InodeState) -> Result<WritePlan> {
        let (id, len, old_size) = (write.inode.id, write.data.len() as u64, state.item.size);
        let sector = u64::from(self.info.volume.sector_size());
        let (offset, end) = range_of_write(write.at, len, old_size)?;
        check_may_write(state, write.at)?;
        let mut fills = Vec::new();
        for start in state.dirty.sectors_to_fill(offset, len, old_size) {
            let mut content = vec![0; sector as usize];
            self.reader.read_sectors(id, state, start, &mut content)?;
            content.truncate(old_size.saturating_sub(start).min(sector) as usize);
            fills.push((start, content));
        }
        let growth = if end > old_size { Some(self.plan_growth(id, state, end)?) } else { None };
        let loses_capabilities = write.kill_privileges && self.info.view(id, state).xattr(CAPABILITY)?.is_some();
        if write.nocow_only {
            let range = offset - offset % sector..end.next_multiple_of(sector);
            let fills_more = growth.as_ref().is_some_and(|plan| plan.last_sector.is_some());
            if fills_more || !self.writeback.has_nocow_extents(id, state, range)? {
                return Err(Errno::NOSPC.into());
            }
        }
        Ok(WritePlan { offset, end, fills, growth, loses_capabilities })
    }

    fn apply_write(
        &self,
        write: &ReservedWrite<'_>,
        state: &mut InodeState,
        plan: WritePlan,
        transaction: &Transaction,
        surplus: &mut u64,
    ) {
        let sector = u64::from(self.info.volume.sector_size());
        state.join(write.inode, transaction);
        if let Some(growth) = plan.growth {
            self.grow(state, growth, surplus);
        }
        for (start, content) in &plan.fills {
            fill_sector(state, *start, content, surplus, sector);
        }
        let added = state.dirty.newly_dirty(plan.offset, write.data.len() as u64);
        state.dirty.write(plan.offset, write.data);
        if self.info.options.faults().forgets_forms() {
            state.dirty.add_inline_room(sector);
        } else {
            state.dirty.add_inline_room(write.inline_bytes);
            if !write.may_pack {
                state.dirty.forbid_packing();
            }
        }
        state.reserved += added;
        *surplus = surplus.saturating_sub(added);
        state.item.size = state.item.size.max(plan.end);
        state.content_changed(self.info.now());
        if plan.loses_capabilities {
            state.pending.set_xattr(CAPABILITY.into(), None);
        }
        if write.kill_privileges {
            state.item.mode = without_set_id(state.item.mode);
        }
    }
}

/// Where a write of `len` bytes starts and ends in a file of `size` bytes.
fn range_of_write(at: WriteAt, len: u64, size: u64) -> Result<(u64, u64)> {
    let offset = match at {
        WriteAt::Offset(offset) | WriteAt::Appending(offset) => offset,
        WriteAt::End => size,
    };
    let end = offset.checked_add(len).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::FBIG)?;
    Ok((offset, end))
}
