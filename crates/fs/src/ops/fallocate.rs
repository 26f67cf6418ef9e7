//! `fallocate`: preallocates space (which reads as zeroes) and zeroes ranges.
//!
//! Space is found and metadata reserved before anything changes, so that an error leaves the file
//! as it was (invariant 23).

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_file::{ExtentPiece, Piece};
use ubtrfs_format::items::{Compression, FileType, InodeFlags};
use ubtrfs_format::{Generation, Logical};

use super::checks::{check_mutable, check_no_verity, check_unrestricted};
use super::operations::FileOperations;
use super::resize::{GrowthPlan, fill_sector};
use crate::error::{Errno, Result};
use crate::inode::MAX_FILE_SIZE;
use crate::inode::{Inode, InodeId, InodeState};
use crate::item_sizes::{DATA_EXTENT_ITEMS, FILE_EXTENT_ITEM, INODE_ITEM, ORPHAN_ITEM};
use crate::transaction::{NewExtent, Transaction};
use ubtrfs_space::Demand;

/// The largest extent that is reserved at once.
const MAX_RESERVED: u64 = 128 << 20;
/// Ranges that get space in one passage of the gate, and also existing extents that one passage may
/// displace.
const AT_ONCE: usize = 1024;
/// Number of extents, old and new, for which metadata is reserved before their number is known.
const USUAL: u64 = 16;
/// Bytes of a file extent item, and of the items of a new extent elsewhere.
const EXTENT_BYTES: u64 = FILE_EXTENT_ITEM + DATA_EXTENT_ITEMS;

/// A range in which space is to be preallocated.
struct Wanted {
    /// Whole sectors.
    range: Range<u64>,
    /// The part that must read as zeroes.
    zeroed: Option<Range<u64>>,
    /// The minimum size that the file must have afterwards.
    size: u64,
}

/// A range that gets space.
struct Gap {
    start: u64,
    len: u64,
    /// The number of extents that the new one displaces, and the bytes that the inode counts for
    /// them.
    displaced: u64,
    freed: u64,
}

/// The parts that read as zeroes afterwards: whole sectors, which are freed, and the partial
/// sectors at the ends with their new content.
#[derive(Default)]
struct Zeroed {
    whole: Range<u64>,
    edges: Vec<(u64, Vec<u8>)>,
}

/// The result of a step.
enum ZeroStep {
    /// It was the last step.
    Done,
    /// The next step begins at this offset.
    Upto(u64),
    /// Nothing was changed: metadata has to be reserved for this many extents first.
    Takes(u64),
    /// Nothing was changed: more data space has to be reserved.
    Short,
}

/// The plan of a step, made before the transaction is entered.
struct AllocationPlan<'a> {
    /// Where the step ends.
    end: u64,
    gaps: Vec<Gap>,
    growth: Option<GrowthPlan>,
    /// Inline content of the file that has to move to an extent.
    inline: Option<Vec<u8>>,
    zeroed: Zeroed,
    placed: Unclaimed<'a>,
}

/// Extents that are allocated and that no file refers to yet. They are released on drop unless a
/// file claims them.
struct Unclaimed<'a> {
    files: &'a FileOperations,
    extents: Vec<(u64, Logical, u64)>,
}

impl Unclaimed<'_> {
    /// Takes the extents, which the caller gives to a file.
    fn claim(mut self) -> Vec<(u64, Logical, u64)> {
        std::mem::take(&mut self.extents)
    }
}

impl Drop for Unclaimed<'_> {
    fn drop(&mut self) {
        for (_, place, len) in self.extents.drain(..) {
            // The bytes are reserved before they are released, so that no other operation can take
            // them.
            self.files.info.space.lock().promise_placed_data(len);
            self.files.info.space.release(place, len);
        }
    }
}

impl FileOperations {
    /// Preallocates space for a range of a file, so that a later write there can't fail for lack of
    /// space (unless the extents become shared in between). Existing data stays. Unless `keep_size`
    /// is set, the file is extended to the end of the range.
    ///
    /// A range that takes more than a thousand extents is processed in steps. Each step is done as
    /// a whole or not at all, and the last one changes the size.
    pub fn allocate(&self, id: InodeId, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        let wanted = self.wanted(id, offset, len, keep_size)?;
        let inode = self.regular(id)?;
        self.allocate_wanted(&inode, &wanted)
    }

    /// Makes a range of a file read as zeroes, and preallocates space for it. Unless `keep_size` is
    /// set, the file is extended to the end of the range. It proceeds in steps as
    /// [`Self::allocate`] does.
    pub fn zero_range(&self, id: InodeId, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        let wanted =
            Wanted { zeroed: Some(offset..offset.saturating_add(len)), ..self.wanted(id, offset, len, keep_size)? };
        let inode = self.regular(id)?;
        self.allocate_wanted(&inode, &wanted)
    }

    fn wanted(&self, id: InodeId, offset: u64, len: u64, keep_size: bool) -> Result<Wanted> {
        self.info.check_writable(id.subvolume)?;
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let sector = u64::from(self.info.volume.sector_size());
        let end = offset.checked_add(len).filter(|end| *end <= MAX_FILE_SIZE).ok_or(Errno::FBIG)?;
        let range = offset - offset % sector..end.next_multiple_of(sector);
        Ok(Wanted { range, zeroed: None, size: if keep_size { 0 } else { end } })
    }

    /// Returns the inode. `EISDIR` or `ENODEV` if it is not a regular file.
    pub(crate) fn regular(&self, id: InodeId) -> Result<Arc<Inode>> {
        let inode = self.info.inode(id)?;
        let file_type = inode.read().file_type();
        match file_type {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::NODEV.into()),
        }
    }

    /// Reserves data space for a range of which `missing` bytes have none. Returns the reserved
    /// bytes.
    fn reserve_range(&self, range: &Range<u64>, missing: u64) -> Result<u64> {
        let sector = u64::from(self.info.volume.sector_size());
        let data = missing.saturating_add(2 * sector);
        let totals = self.info.space.totals();
        if data > totals.data_total.saturating_add(totals.unallocated) {
            // An attempt would turn all unallocated space into data chunks.
            tracing::debug!(?range, "more is to be reserved than the volume holds");
            return Err(Errno::NOSPC.into());
        }
        drop(self.reserver.reserve(Demand { data, ..Demand::default() })?);
        Ok(data)
    }

    fn allocate_wanted(&self, inode: &Arc<Inode>, wanted: &Wanted) -> Result<()> {
        wanted.check_flags(&inode.read())?;
        let mut held = 0;
        let result = self.allocate_holding(inode, wanted, &mut held);
        self.info.unreserve_data(held);
        result
    }

    /// Performs the steps. `held` counts the bytes of data space that are reserved. Nothing is
    /// changed before the space for a whole step is reserved (invariant 23).
    fn allocate_holding(&self, inode: &Arc<Inode>, wanted: &Wanted, held: &mut u64) -> Result<()> {
        let (mut at, mut extents) = (wanted.range.start, USUAL);
        loop {
            let missing = {
                let state = inode.read();
                let whole = self.emptied_sectors(&state, wanted);
                let gaps = self.gaps(inode.id, &state, at..wanted.range.end, &whole, usize::MAX)?;
                gaps.iter().map(|gap| gap.len).sum::<u64>()
            };
            if *held < missing + 2 * u64::from(self.info.volume.sector_size()) {
                *held += self.reserve_range(&wanted.range, missing - (*held).min(missing))?;
            }
            // The inode, the items that a split at the ends adds, and inline content that moves to
            // an extent.
            let once = INODE_ITEM + ORPHAN_ITEM + 7 * FILE_EXTENT_ITEM + u64::from(self.info.volume.sector_size());
            let demand =
                Demand { edits: 2 * extents + 6, item_bytes: EXTENT_BYTES * extents + once, ..Demand::default() };
            let step = self.reserver.with_reserved(demand, || {
                let step = self.allocate_some(inode, wanted, at, extents, held)?;
                if matches!(step, ZeroStep::Takes(_) | ZeroStep::Short) {
                    self.info.space.lock().unreserve_metadata(demand);
                }
                Ok(step)
            })?;
            match step {
                ZeroStep::Done => return Ok(()),
                ZeroStep::Upto(end) => at = end,
                ZeroStep::Takes(more) => extents = more,
                ZeroStep::Short => {}
            }
        }
    }

    /// Performs a step in one transaction: allocates space for ranges that have none.
    fn allocate_some(
        &self,
        inode: &Arc<Inode>,
        wanted: &Wanted,
        at: u64,
        room: u64,
        held: &mut u64,
    ) -> Result<ZeroStep> {
        let id = inode.id;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        wanted.check_flags(&state)?;
        let free = *held;
        self.info.gate.transact(
            &mut *state,
            |state, _| self.plan_allocation(id, state, wanted, at, room, free),
            |state, plan, transaction| {
                state.join(inode, transaction);
                self.apply_allocation(state, wanted, plan, transaction, held)
            },
        )
    }

    /// Plans the next step from `at` on, given `free` bytes of reserved data space and reserved
    /// metadata for `room` extents.
    fn plan_allocation(
        &self,
        id: InodeId,
        state: &mut InodeState,
        wanted: &Wanted,
        at: u64,
        room: u64,
        free: u64,
    ) -> Result<ControlFlow<ZeroStep, AllocationPlan<'_>>> {
        self.writeback.settle_frozen(id, state)?;
        let whole = self.emptied_sectors(state, wanted);
        let gaps = self.gaps(id, state, at..wanted.range.end, &whole, AT_ONCE)?;
        let end =
            if gaps.len() < AT_ONCE { wanted.range.end } else { gaps.last().map_or(at, |gap| gap.start + gap.len) };
        let grows = end == wanted.range.end && wanted.size > state.item.size;
        let growth = if grows { Some(self.plan_growth(id, state, wanted.size)?) } else { None };
        // A file with preallocated extents can't have inline content.
        let inline = self.writeback.inline_content(id, state)?;
        let zeroed = self.plan_zeroes(id, state, wanted, whole, at..end)?;
        let Some(placed) = self.allocate_gaps(&gaps, state.allocation_hint, free) else {
            return Ok(ControlFlow::Break(ZeroStep::Short));
        };
        let takes = placed.extents.len() as u64 + gaps.iter().map(|gap| gap.displaced).sum::<u64>();
        if takes > room {
            return Ok(ControlFlow::Break(ZeroStep::Takes(takes)));
        }
        Ok(ControlFlow::Continue(AllocationPlan { end, gaps, growth, inline, zeroed, placed }))
    }

    fn apply_allocation(
        &self,
        state: &mut InodeState,
        wanted: &Wanted,
        plan: AllocationPlan<'_>,
        transaction: &Transaction,
        held: &mut u64,
    ) -> ZeroStep {
        let sector = u64::from(self.info.volume.sector_size());
        let extents = plan.placed.claim();
        *held -= extents.iter().map(|(_, _, len)| len).sum::<u64>();
        state.item.flags |= InodeFlags::PREALLOC;
        if let Some(content) = plan.inline {
            fill_sector(state, 0, &content, held, sector);
        }
        if let Some(growth) = plan.growth {
            self.grow(state, growth, held);
        }
        write_zeroes(state, plan.zeroed, held, sector);
        let freed = plan.gaps.iter().map(|gap| gap.freed).sum();
        state.item.nbytes = state.item.nbytes.saturating_sub(freed);
        state.pending.displaced += plan.gaps.iter().map(|gap| gap.displaced as usize).sum::<usize>();
        self.put_reserved(state, transaction, extents);
        let is_last = plan.end == wanted.range.end;
        if is_last {
            state.item.size = state.item.size.max(wanted.size);
        }
        if is_last || wanted.zeroed.is_some() {
            state.content_changed(self.info.now());
        }
        if is_last { ZeroStep::Done } else { ZeroStep::Upto(plan.end) }
    }

    /// Allocates extents for all ranges, out of `free` bytes of reserved data space. `None` if
    /// these are too few.
    fn allocate_gaps(&self, gaps: &[Gap], mut hint: Logical, free: u64) -> Option<Unclaimed<'_>> {
        let mut placed = Unclaimed { files: self, extents: Vec::new() };
        // The spare bytes are for sectors that are filled: the first or the last one of the file,
        // and the edges.
        let spare = (2 * u64::from(self.info.volume.sector_size())).min(free);
        let mut left = free - spare;
        for gap in gaps {
            let mut at = gap.start;
            while at < gap.start + gap.len {
                let want = (gap.start + gap.len - at).min(MAX_RESERVED).min(left);
                let (place, got) = if want == 0 { None } else { self.info.space.allocate_data(want, hint) }?;
                self.info.unreserve_data(got);
                placed.extents.push((at, place, got));
                hint = place.plus(got);
                at += got;
                left -= got;
            }
        }
        Some(placed)
    }

    /// Adds allocated extents to the file.
    fn put_reserved(&self, state: &mut InodeState, transaction: &Transaction, extents: Vec<(u64, Logical, u64)>) {
        for (at, place, len) in extents {
            self.info.counters.bytes_reserved.fetch_add(len, Ordering::Relaxed);
            state.allocation_hint = place.plus(len);
            transaction.add_extent(place, NewExtent::new(len, None));
            state.pending.layout.replace(at, len, reserved_extent(place, len, transaction.generation));
            state.item.nbytes = state.item.nbytes.saturating_add(len);
        }
    }

    /// Returns the sectors that are freed entirely. The last sector of the file counts as a whole
    /// one: beyond the end of the file there is only preallocated space, whose whole sectors are
    /// freed.
    fn emptied_sectors(&self, state: &InodeState, wanted: &Wanted) -> Range<u64> {
        let sector = u64::from(self.info.volume.sector_size());
        let Some(Range { start, end: asked }) = wanted.zeroed.clone().filter(|range| range.start < state.item.size)
        else {
            return 0..0;
        };
        let end = if asked < state.item.size {
            asked - asked % sector
        } else {
            state.item.size.next_multiple_of(sector).max(asked - asked % sector)
        };
        let start = start.next_multiple_of(sector);
        start..end.max(start)
    }

    /// Plans the partial sectors to write at the ends of a zeroed range.
    fn plan_zeroes(
        &self,
        id: InodeId,
        state: &InodeState,
        wanted: &Wanted,
        whole: Range<u64>,
        step: Range<u64>,
    ) -> Result<Zeroed> {
        let sector = u64::from(self.info.volume.sector_size());
        let size = state.item.size;
        let Some(range) = wanted.zeroed.clone().filter(|range| range.start < size) else {
            return Ok(Zeroed::default());
        };
        let end = range.end.min(size);
        let mut edges = vec![range.start - range.start % sector, end - end % sector];
        edges.dedup();
        edges.retain(|at| *at < end && !whole.contains(at) && step.contains(at));
        let mut zeroed = Vec::new();
        for at in edges {
            if self.reader.has_data(id, state, at)? {
                zeroed.push((at, self.sector_without(id, state, at, range.start, end)?));
            }
        }
        Ok(Zeroed { whole: whole.start.max(step.start)..whole.end.min(step.end), edges: zeroed })
    }

    /// Returns the first ranges within `range` for which space is to be allocated, at most `most`:
    /// holes without dirty data, and the parts of `whole` that are not preallocated space.
    fn gaps(
        &self,
        id: InodeId,
        state: &InodeState,
        range: Range<u64>,
        whole: &Range<u64>,
        most: usize,
    ) -> Result<Vec<Gap>> {
        let sector = u64::from(self.info.volume.sector_size());
        let map = self.info.view(id, state).map()?;
        map.with_stack(state, |stack| {
            let mut gaps = Vec::new();
            // Split where `whole` begins and ends: ranges outside keep their data.
            let bounds =
                [range.start, whole.start.clamp(range.start, range.end), whole.end.clamp(range.start, range.end)];
            for (from, to) in bounds.into_iter().zip([bounds[1], bounds[2], range.end]).filter(|(from, to)| from < to) {
                let is_whole = whole.contains(&from);
                for mapped in stack.pieces(from..to) {
                    let mapped = mapped?;
                    let is_reserved = matches!(&mapped.piece, Piece::Extent(extent) if extent.prealloc);
                    let is_hole = mapped.piece == Piece::Hole;
                    if is_reserved || !(is_whole || is_hole) {
                        continue;
                    }
                    let (mut at, end) = (mapped.start, mapped.end().next_multiple_of(sector));
                    while at < end && gaps.len() < most {
                        let (dirty, len) = match state.dirty.next_run(at, u64::MAX).filter(|_| !is_whole) {
                            Some(run) => run,
                            None => (end, 0),
                        };
                        if dirty > at {
                            let (displaced, freed) = (u64::from(!is_hole), mapped.allocated());
                            gaps.push(Gap { start: at, len: dirty.min(end) - at, displaced, freed });
                        }
                        at = dirty.saturating_add(len);
                    }
                    if gaps.len() >= most {
                        return Ok(gaps);
                    }
                }
            }
            Ok(gaps)
        })
    }
}

impl Wanted {
    /// Fails if flags of the file forbid the operation.
    fn check_flags(&self, state: &InodeState) -> Result<()> {
        check_no_verity(state)?;
        if self.zeroed.is_some() { check_unrestricted(state) } else { check_mutable(state) }
    }
}

/// Zeroes the ranges, and returns the data space that their dirty data had reserved to `held`.
fn write_zeroes(state: &mut InodeState, zeroed: Zeroed, held: &mut u64, sector: u64) {
    for (at, content) in zeroed.edges {
        fill_sector(state, at, &content, held, sector);
        state.dirty.write(at, &content);
    }
    if !zeroed.whole.is_empty() {
        state.dirty.discard(zeroed.whole);
        let dirty: u64 = state.dirty.ranges().map(|(_, len)| len).sum();
        *held += state.reserved - dirty;
        state.reserved = dirty;
    }
}

fn reserved_extent(place: Logical, len: u64, generation: Generation) -> Piece {
    Piece::Extent(ExtentPiece {
        disk_bytenr: place,
        disk_num_bytes: len,
        offset: 0,
        ram_bytes: len,
        compression: Compression::None,
        prealloc: true,
        generation,
    })
}
