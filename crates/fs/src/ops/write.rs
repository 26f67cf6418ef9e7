//! Writing: programs' bytes become dirty data of the inode.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::FileType;

use super::attr::{CAPABILITIES, without_set_id};
use super::flags::check_may_write;
use super::operations::Operations;
use super::resize::fill_sector;
use super::write_at::WriteAt;
use crate::clock::now;
use crate::error::{Errno, Result};
use crate::inode::MAX_FILE_SIZE;
use crate::inode::{Inode, InodeId};
use crate::space::Demand;
use crate::writeback::may_be_nocow;

/// Edits of a write that takes capabilities away.
const CAPABILITY_EDITS: u64 = 2;
/// Dirty data of one file that starts its write-out.
const START_WRITE_OUT: u64 = 8 << 20;

impl Operations {
    /// Writes. `kill_privileges`: set-id bits and capabilities go, as a write by someone without
    /// privileges asks for.
    pub(crate) fn write(&self, id: InodeId, at: WriteAt, data: &[u8], kill_privileges: bool) -> Result<usize> {
        self.info.check_writable(id.subvolume)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.throttle()?;
        let sector = u64::from(self.info.volume.sector_size());
        let sectors = data.len() as u64 / sector + 3;
        let (inline_bytes, edits, has_nocow_extents) = {
            let inode = self.info.inode(id)?;
            let state = inode.read();
            if state.file_type() != FileType::Regular {
                return Err(if state.is_dir() { Errno::ISDIR } else { Errno::INVAL }.into());
            }
            if state.reserved.saturating_add(data.len() as u64) >= START_WRITE_OUT {
                ubtrfs_tree::ensure_may_block()?;
            }
            let start = match at {
                WriteAt::Offset(offset) | WriteAt::Appending(offset) => offset,
                WriteAt::End => state.item.size,
            };
            let end = start.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::FBIG)?;
            // Asked only where space is short: then what was reserved for the file has to do.
            let has_nocow_extents = may_be_nocow(state.item.flags)
                && self.info.space.lock().is_data_short(sectors * sector)
                && self.writeback.has_nocow_extents(
                    id,
                    &state,
                    start - start % sector..end.next_multiple_of(sector),
                )?;
            let inline_bytes = self.writeback.inline_bytes(&state, end.max(state.item.size));
            // Of a new file the map stands with the inode, and nothing goes that the extent and
            // checksum trees have.
            let edits = if !state.is_new() {
                4
            } else if inline_bytes > 0 {
                1
            } else {
                2
            };
            (inline_bytes, edits, has_nocow_extents)
        };
        let edits = edits + if kill_privileges { CAPABILITY_EDITS } else { 0 };
        let sum_bytes = sectors * self.info.volume.checksum().size() as u64;
        let item_bytes = 300 + sum_bytes + inline_bytes;
        let new_space = if has_nocow_extents { 0 } else { sectors * sector };
        let _reservation = self.reserver.reserve(Demand { data: new_space, edits, item_bytes, ..Demand::default() })?;
        if has_nocow_extents {
            self.info.space.lock().promise_placed_data(sectors * sector);
        }
        let mut surplus = sectors * sector;
        let result = self.write_reserved(id, at, data, kill_privileges, has_nocow_extents, &mut surplus);
        self.info.unreserve_data(surplus);
        result
    }

    fn write_reserved(
        &self,
        id: InodeId,
        at: WriteAt,
        data: &[u8],
        kill_privileges: bool,
        nocow_only: bool,
        surplus: &mut u64,
    ) -> Result<usize> {
        let inode = self.info.inode(id)?;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        let sector = u64::from(self.info.volume.sector_size());
        loop {
            let generation = self.info.freeze_older(&mut state);
            let old_size = state.item.size;
            let offset = match at {
                WriteAt::Offset(offset) | WriteAt::Appending(offset) => offset,
                WriteAt::End => old_size,
            };
            let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::FBIG)?;
            check_may_write(&state, at)?;
            let mut fills = Vec::new();
            for start in state.dirty.sectors_to_fill(offset, data.len() as u64, old_size) {
                let mut content = vec![0; sector as usize];
                self.reader.read_sectors(id, &state, start, &mut content)?;
                content.truncate(old_size.saturating_sub(start).min(sector) as usize);
                fills.push((start, content));
            }
            let growth = if end > old_size { Some(self.plan_growth(id, &state, end)?) } else { None };
            let loses_capabilities = kill_privileges && self.find_xattr(id, &state, CAPABILITIES)?.is_some();
            if nocow_only {
                let range = offset - offset % sector..end.next_multiple_of(sector);
                let fills_more = growth.as_ref().is_some_and(|plan| plan.last_sector.is_some());
                if fills_more || !self.writeback.has_nocow_extents(id, &state, range)? {
                    return Err(Errno::NOSPC.into());
                }
            }

            let transaction = self.info.gate.enter();
            if transaction.generation != generation {
                // A commit began meanwhile: what was dirty may be frozen now.
                continue;
            }
            state.join(&inode, &transaction);
            if let Some(plan) = growth {
                self.grow(&mut state, plan, surplus);
            }
            for (start, content) in &fills {
                fill_sector(&mut state, *start, content, surplus, sector);
            }
            let added = state.dirty.newly_dirty(offset, data.len() as u64);
            state.dirty.write(offset, data);
            state.reserved += added;
            *surplus = surplus.saturating_sub(added);
            let time = now();
            state.item.size = old_size.max(end);
            state.content_changed(time);
            if loses_capabilities {
                state.pending.set_xattr(CAPABILITIES.into(), None);
            }
            if kill_privileges {
                state.item.mode = without_set_id(state.item.mode);
            }
            break;
        }
        self.info.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        if state.reserved >= START_WRITE_OUT {
            // A write beside this one may have added to it since that was asked; what was begun has
            // to be ended.
            ubtrfs_tree::blocking(|| self.start_write_out(&inode, &mut state))?;
        }
        Ok(data.len())
    }

    /// Starts to write out an inode's pending dirty data, all but the end of the last run, which
    /// may yet grow.
    fn start_write_out(&self, inode: &Arc<Inode>, state: &mut crate::inode::InodeState) -> Result<()> {
        self.writeback.limit_in_flight(state)?;
        let transaction = self.info.gate.enter();
        if state.pending.generation != transaction.generation {
            return Ok(());
        }
        let result = self.writeback.write_back_pending(inode, state, &transaction, false);
        if let Err(error) = &result {
            // Data that was taken out of memory is lost: nothing after it may become durable.
            self.info.abort(error);
        }
        result
    }

    /// Holds writers back when memory holds too much dirty data.
    fn throttle(&self) -> Result<()> {
        self.writeback.limit_all_in_flight()?;
        let dirty = self.info.dirty_bytes();
        let budget = (self.info.options.memory / 4) as u64;
        if dirty > budget {
            ubtrfs_tree::ensure_may_block()?;
            self.reserver.commit()?;
        } else if dirty > budget / 2 {
            self.info.commit_request.ask();
        }
        Ok(())
    }
}
