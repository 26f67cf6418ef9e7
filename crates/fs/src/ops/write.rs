//! Writing: programs' bytes become dirty data of the inode.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::FileType;

use super::attr::without_set_id;
use super::now;
use super::resize::{MAX_FILE_SIZE, fill_sector};
use crate::error::{Errno, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeId};
use crate::space::Demand;

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteAt {
    /// At this offset.
    Offset(u64),
    /// At the end of the file, whatever that is by then.
    End,
}

/// Dirty data of one file that starts its write-out.
const START_WRITE_OUT: u64 = 8 << 20;

impl Filesystem {
    /// Writes. `kill_privileges`: set-id bits and capabilities go, as a write by someone without privileges asks for.
    pub fn write(&self, id: InodeId, at: WriteAt, data: &[u8], kill_privileges: bool) -> Result<usize> {
        self.check_writable(id.subvolume)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.throttle()?;
        let inline_bytes = {
            let inode = self.inode(id)?;
            let state = inode.read();
            if state.file_type() != FileType::Regular {
                return Err(if state.is_dir() { Errno::ISDIR } else { Errno::INVAL }.into());
            }
            if state.reserved.saturating_add(data.len() as u64) >= START_WRITE_OUT {
                ubtrfs_tree::about_to_wait()?;
            }
            let start = match at {
                WriteAt::Offset(offset) => offset,
                WriteAt::End => state.item.size,
            };
            self.inline_bytes(&state, start.saturating_add(data.len() as u64).max(state.item.size))
        };
        if kill_privileges {
            self.drop_capabilities(id)?;
        }
        let sector = u64::from(self.volume.sector_size());
        let sectors = data.len() as u64 / sector + 3;
        let sum_bytes = sectors * self.volume.checksum().size() as u64;
        let item_bytes = 300 + sum_bytes + inline_bytes;
        self.reserve(Demand { data: sectors * sector, edits: 4, item_bytes, ..Demand::default() })?;
        let mut surplus = sectors * sector;
        let result = self.write_reserved(id, at, data, kill_privileges, &mut surplus);
        self.unreserve_data(surplus);
        result
    }

    fn write_reserved(
        &self,
        id: InodeId,
        at: WriteAt,
        data: &[u8],
        kill_privileges: bool,
        surplus: &mut u64,
    ) -> Result<usize> {
        let inode = self.inode(id)?;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        let sector = u64::from(self.volume.sector_size());
        loop {
            let generation = self.freeze_older(&mut state);
            let old_size = state.item.size;
            let offset = match at {
                WriteAt::Offset(offset) => offset,
                WriteAt::End => old_size,
            };
            let end = offset.checked_add(data.len() as u64).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::FBIG)?;
            let mut fills = Vec::new();
            for start in state.dirty.sectors_to_fill(offset, data.len() as u64, old_size) {
                let mut content = vec![0; sector as usize];
                self.read_sectors(id, &state, start, &mut content)?;
                content.truncate(old_size.saturating_sub(start).min(sector) as usize);
                fills.push((start, content));
            }
            let growth = if end > old_size { Some(self.plan_growth(id, &state, end)?) } else { None };

            let transaction = self.gate.enter();
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
            state.item.mtime = time;
            state.item.ctime = time;
            state.item.sequence = state.item.sequence.wrapping_add(1);
            if kill_privileges {
                state.item.mode = without_set_id(state.item.mode);
            }
            break;
        }
        self.counters.bytes_written.fetch_add(data.len() as u64, Ordering::Relaxed);
        if state.reserved >= START_WRITE_OUT {
            // A write beside this one may have added to it since that was asked; what was begun has to be ended.
            ubtrfs_tree::waiting(|| self.start_write_out(&inode, &mut state))?;
        }
        Ok(data.len())
    }

    /// Starts to write out an inode's pending dirty data, all but the end of the last run, which may yet grow.
    fn start_write_out(&self, inode: &Arc<Inode>, state: &mut crate::inode::InodeState) -> Result<()> {
        self.limit_in_flight(state)?;
        let transaction = self.gate.enter();
        if state.pending.generation != transaction.generation {
            return Ok(());
        }
        let result = self.write_out_pending(inode, state, &transaction, false);
        if let Err(error) = &result {
            // Data that was taken out of memory is lost: nothing after it may become durable.
            self.abort(error);
        }
        result
    }

    /// Holds writers back when memory holds too much dirty data.
    fn throttle(&self) -> Result<()> {
        let dirty = self.space.lock().reserved_data();
        let budget = (self.options.memory / 4) as u64;
        if dirty > budget {
            ubtrfs_tree::about_to_wait()?;
            self.commit()?;
        } else if dirty > budget / 2 {
            self.wake_committer();
        }
        Ok(())
    }
}
