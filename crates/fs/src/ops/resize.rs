//! Changing a file's size.

use std::ops::ControlFlow;
use std::sync::Arc;

use ubtrfs_file::Piece;
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_format::{Generation, Incompat};

use super::attribute_change::{AttributeChange, AttributePlan};
use super::operations::FileOperations;
use crate::error::{Errno, Result};
use crate::inactivate::Truncation;
use crate::inode::{Inode, InodeId, InodeState, MAX_FILE_SIZE};
use crate::item_sizes::{FILE_EXTENT_ITEM, INODE_ITEM, ORPHAN_ITEM};
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// Bytes of items that a change of the size may add: the inode item, an orphan item, and file
/// extent items for a split at the new end and for holes.
const RESIZE_BYTES: u64 = INODE_ITEM + ORPHAN_ITEM + 4 * FILE_EXTENT_ITEM;

/// The requested size of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewSize {
    /// Exactly this size.
    Exactly(u64),
    /// This size, unless the file is smaller already. Preallocated space beyond it is freed in any
    /// case.
    AtMost {
        /// The size.
        from: u64,
        /// The transaction in which the space for it was reserved.
        reserved_in: Generation,
    },
}

impl NewSize {
    /// Returns the resulting change for a file in this state.
    fn of(self, state: &InodeState) -> Resize {
        let old_size = state.item.size;
        match self {
            Self::Exactly(size) => {
                // Preallocated space beyond the end is freed even if the size stays.
                let truncates = size < old_size || (size == old_size && state.item.flags & InodeFlags::PREALLOC != 0);
                Resize { size, truncate_from: truncates.then_some(size) }
            }
            Self::AtMost { from, .. } => Resize { size: from.min(old_size), truncate_from: Some(from) },
        }
    }
}

/// A change of a file's size.
#[derive(Clone, Copy, Debug)]
struct Resize {
    /// The new size.
    size: u64,
    /// The offset from which on everything is dropped; `None` if nothing is.
    truncate_from: Option<u64>,
}

/// How often a step of a truncation tries to get space, which other operations may take first.
const MAX_TRIES: u32 = 3;

/// The plan of a change of the size, made before the transaction is entered.
struct ResizePlan {
    growth: Option<GrowthPlan>,
    /// The sector that contains the new end, and the content that it keeps.
    kept: Option<(u64, Vec<u8>)>,
    /// Bytes on disk that the file frees.
    freed: u64,
    attributes: Option<AttributePlan>,
}

/// The changes that a file needs before it may grow. They are found before the transaction is
/// entered.
#[derive(Default)]
pub(crate) struct GrowthPlan {
    /// The content of the last sector, if it has non-zero bytes beyond the old end, or is inline
    /// content that has to become an extent.
    pub(crate) last_sector: Option<Vec<u8>>,
    /// Whether extents beyond the old end must be dropped first.
    half_truncated: bool,
    /// Holes that need an item.
    holes: Vec<(u64, u64)>,
}

impl FileOperations {
    /// Truncates or extends a file, and changes its attributes in the same transaction. A large
    /// truncation proceeds in steps, each done as a whole or not at all; the last step changes the
    /// attributes.
    pub(super) fn resize(&self, id: InodeId, size: u64, change: &AttributeChange<'_>) -> Result<()> {
        if size > MAX_FILE_SIZE {
            return Err(Errno::FBIG.into());
        }
        let sector = u64::from(self.info.volume.sector_size());
        let inode = self.info.inode(id)?;
        // The file may become inline, if only the truncated part has prevented that until now.
        let inline_bytes = if size <= sector { size.min(self.info.largest_inline()) } else { 0 };
        let mut grows = size > inode.read().item.size;
        self.truncate_in_steps(&inode, size)?;
        loop {
            // A truncation that leaves the last sector as it is takes no data space, and there may
            // be none.
            let data = if !grows && size.is_multiple_of(sector) { 0 } else { sector };
            let room = self.plans.room_of_change(id, change)?;
            let attributes = AttributeChange::demand(room);
            let (edits, item_bytes) = (4 + attributes.edits, RESIZE_BYTES + inline_bytes + attributes.item_bytes);
            let demand = Demand { data, edits, item_bytes, global_reserve: UseOfGlobalReserve::All };
            let _reservation =
                if grows { self.reserver.reserve(demand)? } else { self.reserver.reserve_to_free(&inode, demand)? };
            let mut surplus = data;
            let change = Some((change, room));
            let result = self.resize_reserved(id, NewSize::Exactly(size), change, inline_bytes, &mut surplus);
            self.info.unreserve_data(surplus);
            if result? {
                return Ok(());
            }
            grows = size > inode.read().item.size;
        }
    }

    /// Whether truncating a file to `size` bytes takes several steps with commits between them.
    pub fn is_truncated_in_steps(&self, id: InodeId, size: u64) -> bool {
        let Ok(inode) = self.info.inode(id) else { return false };
        let state = inode.read();
        state.file_type() == FileType::Regular
            && state.committed
            && size < state.item.size
            && state.item.nbytes > self.info.options.freeing.at_once
    }

    /// Truncates a file that may have many extents from its end, one step in each transaction,
    /// until one transaction can drop the rest beyond `size`. The caller waits, as it would have to
    /// before the file may grow again or be synced.
    pub(crate) fn truncate_in_steps(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        if !self.is_truncated_in_steps(inode.id, size) {
            return Ok(());
        }
        let from = size.next_multiple_of(u64::from(self.info.volume.sector_size()));
        let mut tries = 0;
        loop {
            let turn = self.inactivator.pause();
            let most = self.info.options.freeing.per_transaction;
            let reserved = self.inactivator.reserve_truncation(inode, from..u64::MAX, most, true)?;
            let Some((truncation, reservation)) = reserved else {
                drop(turn);
                tries += 1;
                if tries > MAX_TRIES {
                    return Err(Errno::NOSPC.into());
                }
                // The reserver tries all other ways of making space.
                let least = Truncation::least_demand();
                drop(self.reserver.reserve(least)?);
                self.info.space.lock().unreserve_metadata(least);
                continue;
            };
            tries = 0;
            if truncation.is_rest {
                return Ok(());
            }
            let mut surplus = 0;
            let wanted = NewSize::AtMost { from: truncation.from, reserved_in: truncation.generation };
            let truncated = self.resize_reserved(inode.id, wanted, None, 0, &mut surplus);
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

    /// Changes a size. The space that this takes is reserved already; on return `surplus` is the
    /// unused part of the data space. Returns `false`, and changes nothing, in three cases: the
    /// file would have to grow, since others truncated it, and no data space was reserved for that;
    /// the transaction in which the space was reserved has ended; or the attributes that change
    /// with the size take more than the bytes that were reserved for them. The remaining content
    /// may be inline in `inline_bytes` bytes that are reserved for it.
    fn resize_reserved(
        &self,
        id: InodeId,
        wanted: NewSize,
        change: Option<(&AttributeChange<'_>, u64)>,
        inline_bytes: u64,
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
        let resize = wanted.of(&state);
        if resize.size > state.item.size && *surplus < u64::from(self.info.volume.sector_size()) {
            return Ok(false);
        }
        self.info.gate.transact(
            &mut *state,
            |state, generation| {
                if matches!(wanted, NewSize::AtMost { reserved_in, .. } if reserved_in != generation) {
                    return Ok(ControlFlow::Break(false));
                }
                self.plan_resize(id, state, resize, change)
            },
            |state, plan, transaction| {
                state.join(&inode, transaction);
                let attributes = self.apply_resize(state, resize, plan, surplus);
                state.dirty.add_inline_room(inline_bytes);
                if let (Some((change, _)), Some(attributes)) = (change, attributes) {
                    change.carry_out(state, attributes, self.info.now());
                }
                true
            },
        )
    }

    fn plan_resize(
        &self,
        id: InodeId,
        state: &InodeState,
        resize: Resize,
        change: Option<(&AttributeChange<'_>, u64)>,
    ) -> Result<ControlFlow<bool, ResizePlan>> {
        let (size, old_size) = (resize.size, state.item.size);
        let sector = u64::from(self.info.volume.sector_size());
        let growth = if size > old_size { Some(self.plan_growth(id, state, size)?) } else { None };
        // The sector that contains the new end keeps its content up to there, and is zero behind
        // it.
        let last = size - size % sector;
        let mut kept = None;
        if size < old_size && size != last && self.reader.has_data(id, state, last)? {
            let mut content = vec![0; sector as usize];
            self.reader.read_sectors(id, state, last, &mut content)?;
            content.truncate((size - last) as usize);
            kept = Some((last, content));
        }
        let freed = match resize.truncate_from {
            Some(from) => self.reader.bytes_beyond(id, state, from.next_multiple_of(sector))?,
            None => 0,
        };
        let attributes = change.map(|(change, _)| self.plans.plan(id, state, change)).transpose()?;
        let room = change.map_or(0, |(_, room)| room);
        if attributes.as_ref().is_some_and(|plan| plan.room() > room) {
            return Ok(ControlFlow::Break(false));
        }
        Ok(ControlFlow::Continue(ResizePlan { growth, kept, freed, attributes }))
    }

    /// Changes the size of a file that has joined the transaction. Returns the plan for its
    /// attributes.
    fn apply_resize(
        &self,
        state: &mut InodeState,
        resize: Resize,
        plan: ResizePlan,
        surplus: &mut u64,
    ) -> Option<AttributePlan> {
        let sector = u64::from(self.info.volume.sector_size());
        if let Some(growth) = plan.growth {
            self.grow(state, growth, surplus);
        }
        if let Some(from) = resize.truncate_from {
            if let Some((last, content)) = plan.kept {
                fill_sector(state, last, &content, surplus, sector);
            }
            state.dirty.truncate(from);
            state.pending.layout.truncate(from.next_multiple_of(sector));
            state.item.nbytes = if from == 0 { 0 } else { state.item.nbytes.saturating_sub(plan.freed) };
            *surplus += state.unreserve_clean();
        }
        state.item.size = resize.size;
        // The times change even if the size stays: a program that compares times must see that the
        // file was opened with O_TRUNC.
        state.content_changed(self.info.now());
        plan.attributes
    }

    /// Returns the changes that a file needs before it may grow to `size`. The caller holds its
    /// lock.
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
                let pieces = self.info.view(id, state).pieces(range)?;
                plan.holes = pieces
                    .into_iter()
                    .filter(|mapped| mapped.piece == Piece::Hole)
                    .map(|mapped| (mapped.start, mapped.len))
                    .collect();
            }
        }
        Ok(plan)
    }

    /// Carries out a plan, in a transaction that the inode has joined.
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

/// Makes a sector dirty with its old content, and takes the space that it will need from the
/// reserved data space in `surplus`.
pub(crate) fn fill_sector(state: &mut InodeState, at: u64, content: &[u8], surplus: &mut u64, sector: u64) {
    let added = state.dirty.newly_dirty(at, sector);
    state.dirty.fill(at, content);
    state.reserved += added;
    *surplus = surplus.saturating_sub(added);
}
