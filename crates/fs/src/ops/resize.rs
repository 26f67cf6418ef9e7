//! Changing a file's size.

use std::sync::Arc;

use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_format::{Generation, Incompat};

use super::attr::AttributeChange;
use super::operations::Operations;
use crate::clock::now;
use crate::error::{Errno, Result};
use crate::file::piece::Piece;
use crate::file_reader::FileMap;
use crate::inode::{Inode, InodeId, InodeState, MAX_FILE_SIZE};
use crate::space::{Demand, UseOfKept};

/// What size a file shall have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewSize {
    /// This one.
    Exactly(u64),
    /// This one, unless it is smaller already; what is kept for the file behind there goes in any
    /// case.
    AtMost {
        /// The size.
        from: u64,
        /// The transaction that the space for it was reserved in.
        reserved_in: Generation,
    },
}

/// What has to change in a file before it may grow: found before the transaction is entered.
#[derive(Default)]
pub(crate) struct GrowthPlan {
    /// The last sector's content, if what lies behind the old end is not zero or the content has to
    /// leave its inode.
    pub(crate) last_sector: Option<Vec<u8>>,
    /// What lies beyond the old end must go before.
    half_truncated: bool,
    /// Ranges that need an item though they hold nothing.
    holes: Vec<(u64, u64)>,
}

impl Operations {
    /// Cuts or extends a file, and changes its attributes in the same transaction. Where much is
    /// cut off, that goes in steps, each whole or not done; the last of them changes the
    /// attributes.
    pub(super) fn resize(&self, id: InodeId, size: u64, change: &AttributeChange<'_>) -> Result<()> {
        if size > MAX_FILE_SIZE {
            return Err(Errno::FBIG.into());
        }
        let sector = u64::from(self.info.volume.sector_size());
        let inode = self.info.inode(id)?;
        // What was cut off may have kept the file out of metadata until now.
        let inline_bytes = if size <= self.info.largest_inline() { size } else { 0 };
        let mut grows = size > inode.read().item.size;
        self.truncate_in_steps(&inode, size)?;
        loop {
            // Where the last sector stays as it is, a cut takes no space, and none may be left.
            let data = if !grows && size.is_multiple_of(sector) { 0 } else { sector };
            let room = self.room_of_change(id, change)?;
            let attributes = AttributeChange::demand(room);
            let (edits, item_bytes) = (4 + attributes.edits, 500 + inline_bytes + attributes.item_bytes);
            let demand = Demand { data, edits, item_bytes, kept: UseOfKept::All };
            let _reservation =
                if grows { self.reserver.reserve(demand)? } else { self.reserver.reserve_to_free(&inode, demand)? };
            let mut surplus = data;
            let result = self.resize_reserved(id, NewSize::Exactly(size), Some((change, room)), &mut surplus);
            self.info.unreserve_data(surplus);
            if result? {
                return Ok(());
            }
            grows = size > inode.read().item.size;
        }
    }

    /// Whether truncating a file to `size` bytes is done in steps, with commits between them.
    pub(crate) fn is_truncated_in_steps(&self, id: InodeId, size: u64) -> bool {
        let Ok(inode) = self.info.inode(id) else { return false };
        let state = inode.read();
        state.file_type() == FileType::Regular
            && state.committed
            && size < state.item.size
            && state.item.nbytes > self.info.options.freeing.at_once
    }

    /// Truncates a file that may have many extents from its end, so much in each transaction, until
    /// what is left beyond `size` goes in one. Whoever truncates waits, as they would have to
    /// before the file may grow again or be synced.
    pub(crate) fn truncate_in_steps(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        if !self.is_truncated_in_steps(inode.id, size) {
            return Ok(());
        }
        let from = size.next_multiple_of(u64::from(self.info.volume.sector_size()));
        loop {
            let turn = self.inactivator.pause();
            let (truncation, reservation) = self.inactivator.reserve_truncation(
                inode,
                from..u64::MAX,
                self.info.options.freeing.per_transaction,
            )?;
            if truncation.is_rest {
                return Ok(());
            }
            let mut surplus = 0;
            let wanted = NewSize::AtMost { from: truncation.from, reserved_in: truncation.generation };
            let truncated = self.resize_reserved(inode.id, wanted, None, &mut surplus);
            self.info.unreserve_data(surplus);
            if !truncated? {
                continue;
            }
            self.inactivator.count_step(truncation.extents);
            drop(reservation);
            drop(turn);
            self.committer.commit()?;
        }
    }

    /// Changes a size, with the space reserved that it takes; what is left of it is in `surplus`
    /// then. Returns whether it did: not if the file would have to grow, since others cut it, and
    /// no data space was reserved for that; not if the transaction has ended in which the space was
    /// reserved; and not if the attributes that change with it take more than the bytes that were
    /// reserved for them.
    pub(crate) fn resize_reserved(
        &self,
        id: InodeId,
        wanted: NewSize,
        change: Option<(&AttributeChange<'_>, u64)>,
        surplus: &mut u64,
    ) -> Result<bool> {
        let inode = self.info.inode(id)?;
        let mut state = inode.write();
        match state.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        let old_size = state.item.size;
        let sector = u64::from(self.info.volume.sector_size());
        // From where on nothing stays, if anything has to go.
        let (size, truncate_from) = match wanted {
            // Space that is reserved beyond the end goes even if the size stays.
            NewSize::Exactly(size) => {
                let cuts = size < old_size || (size == old_size && state.item.flags & InodeFlags::PREALLOC != 0);
                (size, cuts.then_some(size))
            }
            NewSize::AtMost { from, .. } => (from.min(old_size), Some(from)),
        };
        if size > old_size && *surplus < sector {
            return Ok(false);
        }
        // The sector that the new end lies in keeps its start and is zero from there on.
        let last = size - size % sector;
        loop {
            let generation = self.info.freeze_older(&mut state);
            let growth = if size > old_size { Some(self.plan_growth(id, &state, size)?) } else { None };
            let mut kept = None;
            if size < old_size && size != last && self.reader.has_data(id, &state, last)? {
                let mut content = vec![0; sector as usize];
                self.reader.read_sectors(id, &state, last, &mut content)?;
                content.truncate((size - last) as usize);
                kept = Some(content);
            }
            let nbytes = match truncate_from {
                Some(from) => self.reader.bytes_beyond(id, &state, from.next_multiple_of(sector))?,
                None => 0,
            };
            let mut attributes = None;
            if let Some((change, room)) = change {
                let plan = self.plan_attributes(id, &state, change)?;
                if plan.room() > room {
                    return Ok(false);
                }
                attributes = Some((change, plan));
            }
            let time = now();
            let transaction = self.info.gate.enter();
            if matches!(wanted, NewSize::AtMost { reserved_in, .. } if reserved_in != transaction.generation) {
                return Ok(false);
            }
            if transaction.generation != generation {
                // A commit began meanwhile: what was dirty may be frozen now, and the plan wrong.
                continue;
            }
            state.join(&inode, &transaction);
            if let Some(plan) = growth {
                self.grow(&mut state, plan, surplus);
            }
            if let Some(from) = truncate_from {
                if let Some(content) = kept {
                    fill_sector(&mut state, last, &content, surplus, sector);
                }
                state.dirty.truncate(from);
                state.pending.layout.truncate(from.next_multiple_of(sector));
                state.item.nbytes = if from == 0 { 0 } else { state.item.nbytes.saturating_sub(nbytes) };
                let dirty: u64 = state.dirty.ranges().map(|(_, len)| len).sum();
                *surplus += state.reserved - dirty;
                state.reserved = dirty;
            }
            state.item.size = size;
            // Even if the size stays: a file made anew with O_TRUNC has changed for those who
            // compare times.
            state.content_changed(time);
            if let Some((change, plan)) = attributes {
                change.carry_out(&mut state, plan);
            }
            return Ok(true);
        }
    }

    /// What has to happen before a file may grow to `size`. Its lock is held.
    pub(crate) fn plan_growth(&self, id: InodeId, state: &InodeState, size: u64) -> Result<GrowthPlan> {
        let mut plan =
            GrowthPlan { half_truncated: self.inactivator.is_half_truncated(id, state)?, ..GrowthPlan::default() };
        let sector = u64::from(self.info.volume.sector_size());
        let old_size = state.item.size;
        let last = old_size - old_size % sector;
        if old_size != last && !state.dirty.covers(last..last + 1) && self.reader.has_data(id, state, last)? {
            let mut content = vec![0; sector as usize];
            self.reader.read_sectors(id, state, last, &mut content)?;
            let tail = (old_size - last) as usize;
            if self.writeback.is_inline(id, state)? || content[tail..].iter().any(|byte| *byte != 0) {
                content.truncate(tail);
                plan.last_sector = Some(content);
            }
        }
        let committed = self.info.committed();
        if !committed.superblock.incompat.contains(Incompat::NO_HOLES) {
            let range = old_size.next_multiple_of(sector)..size.next_multiple_of(sector);
            if !range.is_empty() {
                let map = FileMap::new(&committed, id, state)?;
                let pieces = map.with_stack(state, |stack| stack.resolve(range))?;
                plan.holes = pieces
                    .into_iter()
                    .filter(|mapped| mapped.piece == Piece::Hole)
                    .map(|mapped| (mapped.start, mapped.len))
                    .collect();
            }
        }
        Ok(plan)
    }

    /// Carries a plan out, in a transaction that the inode has joined.
    pub(crate) fn grow(&self, state: &mut InodeState, plan: GrowthPlan, surplus: &mut u64) {
        let sector = u64::from(self.info.volume.sector_size());
        if plan.half_truncated {
            state.drop_beyond_end(self.info.volume.sector_size());
        }
        if let Some(content) = plan.last_sector {
            let last = state.item.size - state.item.size % sector;
            fill_sector(state, last, &content, surplus, sector);
        }
        for (start, len) in plan.holes {
            state.pending.layout.replace(start, len, Piece::Hole);
        }
    }
}

/// Makes a sector dirty with its old content, and takes the space it will need from what was
/// reserved.
pub(crate) fn fill_sector(state: &mut InodeState, at: u64, content: &[u8], surplus: &mut u64, sector: u64) {
    let added = state.dirty.newly_dirty(at, sector);
    state.dirty.fill(at, content);
    state.reserved += added;
    *surplus = surplus.saturating_sub(added);
}
