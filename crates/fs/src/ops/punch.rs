//! Punching holes.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use ubtrfs_file::{Mapped, Piece, extents_of};
use ubtrfs_format::items::FileType;

use super::checks::{check_no_verity, check_unrestricted};
use super::operations::FileOperations;
use super::resize::fill_sector;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState};
use crate::item_sizes::{FILE_EXTENT_ITEM, INODE_ITEM, ORPHAN_ITEM};
use crate::transaction::Transaction;
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// Pieces of a file that one step turns into holes.
const AT_ONCE: usize = 2048;

/// The ranges that become holes.
#[derive(Default)]
struct Emptied {
    /// Start and length of each range, and the bytes that it takes on disk.
    ranges: Vec<(u64, u64, u64)>,
    /// How many extents they refer to.
    extents: usize,
}

impl Emptied {
    fn is_nothing(&self) -> bool {
        self.extents == 0 && self.ranges.iter().all(|(_, _, bytes)| *bytes == 0)
    }
}

/// The plan of a step, made before the transaction is entered.
struct PunchPlan {
    /// Sectors that become holes as a whole.
    whole: Range<u64>,
    /// Sectors that are zeroed in part, with their new content.
    zeroed: Vec<(u64, Vec<u8>)>,
    emptied: Emptied,
}

impl FileOperations {
    /// Makes a range of a file read as zeroes and frees its whole sectors. The size stays. A range
    /// of many pieces is processed in steps, each done as a whole or not at all, since one
    /// transaction may not contain all of them (invariant 26).
    pub fn punch_hole(&self, id: InodeId, offset: u64, len: u64) -> Result<()> {
        self.info.check_writable(id.subvolume)?;
        let end = offset.checked_add(len).filter(|_| len > 0).ok_or(Errno::INVAL)?;
        let mut at = offset;
        loop {
            let stop = self.end_of_step(id, at..end)?;
            self.punch_some(id, at, stop)?;
            if stop == end {
                return Ok(());
            }
            at = stop;
        }
    }

    /// Returns the end of the pieces that one step processes from the start of a range on.
    fn end_of_step(&self, id: InodeId, range: Range<u64>) -> Result<u64> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        let map = self.info.view(id, &state).map()?;
        let last = map.with_stack(&state, |stack| stack.pieces(range.clone()).nth(AT_ONCE - 1).transpose())?;
        Ok(last.map_or(range.end, |last| last.end().min(range.end)))
    }

    fn punch_some(&self, id: InodeId, offset: u64, end: u64) -> Result<()> {
        let sector = u64::from(self.info.volume.sector_size());
        let inode = self.info.inode(id)?;
        let inline_bytes = {
            let state = inode.read();
            self.writeback.inline_bytes(&state, state.item.size, self.writeback.may_compress(state.item.flags))
        };
        let item_bytes = INODE_ITEM + ORPHAN_ITEM + 7 * FILE_EXTENT_ITEM + inline_bytes;
        let demand = Demand { data: 2 * sector, edits: 6, item_bytes, global_reserve: UseOfGlobalReserve::Half };
        let _reservation = self.reserver.reserve_to_free(&inode, demand)?;
        let mut surplus = 2 * sector;
        let result = self.punch_reserved(id, offset..end, inline_bytes, &mut surplus);
        self.info.unreserve_data(surplus);
        result
    }

    fn punch_reserved(&self, id: InodeId, range: Range<u64>, inline_bytes: u64, surplus: &mut u64) -> Result<()> {
        let inode = self.info.inode(id)?;
        let mut state = inode.write();
        if state.file_type() != FileType::Regular {
            return Err(if state.is_dir() { Errno::ISDIR } else { Errno::NODEV }.into());
        }
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        check_unrestricted(&state)?;
        check_no_verity(&state)?;
        self.info.gate.transact(
            &mut *state,
            |state, _| {
                // Data that the commit in flight has yet to write back would count as a hole.
                if !self.info.options.faults().overlooks_frozen() {
                    self.writeback.settle_frozen(id, state)?;
                }
                Ok(match self.plan_punch(id, state, &range)? {
                    Some(plan) => ControlFlow::Continue(plan),
                    None => ControlFlow::Break(()),
                })
            },
            |state, plan, transaction| {
                self.apply_punch(&inode, state, plan, transaction, surplus);
                state.dirty.add_inline_room(inline_bytes);
            },
        )
    }

    /// Plans a step. `None` if the range lies beyond the end of the file or is a hole already; then
    /// the file's times stay, too.
    fn plan_punch(&self, id: InodeId, state: &InodeState, range: &Range<u64>) -> Result<Option<PunchPlan>> {
        let (offset, asked) = (range.start, range.end);
        let end = asked.min(state.item.size);
        if offset >= end {
            return Ok(None);
        }
        let sector = u64::from(self.info.volume.sector_size());
        // The last sector of the file counts as a whole one: beyond the end of the file there is
        // only preallocated space, whose whole sectors are freed.
        let whole_end = if end == state.item.size {
            end.next_multiple_of(sector).max(asked - asked % sector)
        } else {
            end - end % sector
        };
        let whole = offset.next_multiple_of(sector)..whole_end;
        let mut edges = vec![offset - offset % sector];
        edges.extend((end % sector != 0).then_some(end - end % sector));
        edges.dedup();
        let mut zeroed = Vec::new();
        for at in edges {
            if !whole.contains(&at) && at < state.item.size && self.reader.has_data(id, state, at)? {
                zeroed.push((at, self.sector_without(id, state, at, offset, end)?));
            }
        }
        let emptied =
            if whole.start < whole.end { self.pieces_to_empty(id, state, &whole)? } else { Emptied::default() };
        let is_dirty = state.dirty.next_run(whole.start, sector).is_some_and(|(start, _)| start < whole.end);
        if zeroed.is_empty() && emptied.is_nothing() && !is_dirty {
            return Ok(None);
        }
        Ok(Some(PunchPlan { whole, zeroed, emptied }))
    }

    fn apply_punch(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        plan: PunchPlan,
        transaction: &Transaction,
        surplus: &mut u64,
    ) {
        let PunchPlan { whole, zeroed, emptied } = plan;
        let sector = u64::from(self.info.volume.sector_size());
        state.join(inode, transaction);
        for (at, content) in zeroed {
            fill_sector(state, at, &content, surplus, sector);
            state.dirty.write(at, &content);
        }
        if whole.start < whole.end {
            state.dirty.discard(whole);
            state.pending.displaced += emptied.extents;
            for (start, len, bytes) in emptied.ranges {
                state.pending.layout.replace(start, len, Piece::Hole);
                state.item.nbytes = state.item.nbytes.saturating_sub(bytes);
            }
            *surplus += state.unreserve_clean();
        }
        state.content_changed(self.info.now());
    }

    /// Returns the sector at `at` with zeroes in `from..to`.
    pub(super) fn sector_without(
        &self,
        id: InodeId,
        state: &InodeState,
        at: u64,
        from: u64,
        to: u64,
    ) -> Result<Vec<u8>> {
        let sector = u64::from(self.info.volume.sector_size());
        let mut content = vec![0; sector as usize];
        self.reader.read_sectors(id, state, at, &mut content)?;
        let zeroed = from.max(at) - at..to.min(at + sector) - at;
        content[zeroed.start as usize..zeroed.end as usize].fill(0);
        let size = state.item.size.saturating_sub(at).min(sector);
        content[size as usize..].fill(0);
        Ok(content)
    }

    /// Returns the pieces of a range that become holes.
    fn pieces_to_empty(&self, id: InodeId, state: &InodeState, whole: &Range<u64>) -> Result<Emptied> {
        let pieces = self.info.view(id, state).pieces(whole.clone())?;
        let bytes = pieces.iter().map(Mapped::allocated).sum();
        let ranges = vec![(whole.start, whole.end - whole.start, bytes)];
        Ok(Emptied { ranges, extents: extents_of(&pieces) })
    }
}
