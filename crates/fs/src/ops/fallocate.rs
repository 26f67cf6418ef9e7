//! `fallocate`: space is reserved in a file (reserved space reads as zeroes), holes are punched, ranges zeroed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::{Compression, FileType, InodeFlags};
use ubtrfs_format::{Generation, Logical};

use super::flags::{check_mutable, check_unrestricted};
use super::now;
use super::read::FileMap;
use super::resize::{MAX_FILE_SIZE, fill_sector};
use crate::error::{Errno, Result};
use crate::file::piece::{ExtentPiece, Piece};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeId, InodeState};
use crate::space::Demand;
use crate::transaction::{NewExtent, Transaction};

/// The largest extent that is reserved at once.
const MAX_RESERVED: u64 = 128 << 20;
/// Extents that are reserved in one passage of the gate.
const AT_ONCE: usize = 32;
/// Bytes of a file extent item and of what is said of a new extent elsewhere.
const ITEM_BYTES: u64 = 200;

/// A range in which space is to be reserved.
struct Wanted {
    /// Whole sectors.
    range: Range<u64>,
    /// The size that the file shall have at least.
    size: u64,
}

impl Filesystem {
    /// Reserves space for a range of a file, so that writing there cannot fail for lack of it (but for extents that become
    /// shared meanwhile). What is there stays. Unless `keep_size`, the file becomes as long as the range reaches.
    pub fn allocate(&self, id: InodeId, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        let wanted = self.wanted(id, offset, len, keep_size)?;
        let inode = self.regular(id)?;
        check_mutable(&inode.read())?;
        let mut held = 0;
        let result = self.allocate_holding(&inode, &wanted, &mut held);
        self.unreserve_data(held);
        result
    }

    /// Makes a range of a file read as zeroes, with space reserved for it. Unless `keep_size`, the file becomes as long as the
    /// range reaches.
    pub fn zero_range(&self, id: InodeId, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        let wanted = self.wanted(id, offset, len, keep_size)?;
        let inode = self.regular(id)?;
        check_unrestricted(&inode.read())?;
        // What is there is given up first, so a shortage has to be known before.
        let mut held = self.reserve_range(&wanted.range, wanted.range.end - wanted.range.start)?;
        let size = inode.read().item.size;
        let emptied = if offset < size { self.punch(id, offset, len.min(size - offset), true) } else { Ok(()) };
        let result = emptied.and_then(|()| self.allocate_holding(&inode, &wanted, &mut held));
        self.unreserve_data(held);
        result
    }

    fn wanted(&self, id: InodeId, offset: u64, len: u64, keep_size: bool) -> Result<Wanted> {
        self.check_writable(id.subvolume)?;
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let sector = u64::from(self.volume.sector_size());
        let end = offset.checked_add(len).filter(|end| *end <= MAX_FILE_SIZE - sector).ok_or(Errno::FBIG)?;
        let range = offset - offset % sector..end.next_multiple_of(sector);
        Ok(Wanted { range, size: if keep_size { 0 } else { end } })
    }

    /// The inode, if it is a regular file.
    pub(crate) fn regular(&self, id: InodeId) -> Result<Arc<Inode>> {
        let inode = self.inode(id)?;
        let file_type = inode.read().file_type();
        match file_type {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::NODEV.into()),
        }
    }

    /// Reserves data space for a range of which so many bytes have none.
    fn reserve_range(&self, range: &Range<u64>, missing: u64) -> Result<u64> {
        let sector = u64::from(self.volume.sector_size());
        let data = missing.saturating_add(2 * sector);
        let totals = self.space.totals();
        if data > totals.data_total.saturating_add(totals.unallocated) {
            // Trying would make data chunks of all the space that is left.
            tracing::debug!(?range, "more is to be reserved than the volume holds");
            return Err(Errno::NOSPC.into());
        }
        self.reserve(Demand { data, ..Demand::default() })?;
        Ok(data)
    }

    /// The same as [`Self::allocate`], with `held` bytes of data space reserved already.
    fn allocate_holding(&self, inode: &Arc<Inode>, wanted: &Wanted, held: &mut u64) -> Result<()> {
        loop {
            let missing = {
                let state = inode.read();
                let holes = self.holes_in(inode.id, &state, wanted.range.clone(), usize::MAX)?;
                holes.iter().map(|(_, len)| len).sum::<u64>()
            };
            if *held < missing + 2 * u64::from(self.volume.sector_size()) {
                *held += self.reserve_range(&wanted.range, missing - (*held).min(missing))?;
            }
            let steps = 1 + AT_ONCE as u64;
            self.reserve(Demand { edits: 2 * steps + 4, item_bytes: ITEM_BYTES * steps + 4096, ..Demand::default() })?;
            if self.allocate_some(inode, wanted, held)? {
                return Ok(());
            }
        }
    }

    /// Reserves some extents; returns whether nothing is missing any more.
    fn allocate_some(&self, inode: &Arc<Inode>, wanted: &Wanted, held: &mut u64) -> Result<bool> {
        let id = inode.id;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        loop {
            let generation = self.freeze_older(&mut state);
            self.settle_frozen(id, &mut state)?;
            let grows = wanted.size > state.item.size;
            let growth = if grows { Some(self.plan_growth(id, &state, wanted.size)?) } else { None };
            // A file with reserved space is none that is kept within metadata.
            let inline = self.inline_content(id, &state)?;
            let holes = self.holes_in(id, &state, wanted.range.clone(), AT_ONCE)?;
            let transaction = self.gate.enter();
            if transaction.generation != generation {
                continue;
            }
            state.join(inode, &transaction);
            state.item.flags |= InodeFlags::PREALLOC;
            if let Some(content) = inline {
                fill_sector(&mut state, 0, &content, held, u64::from(self.volume.sector_size()));
            }
            if let Some(plan) = growth {
                self.grow(&mut state, plan, held);
            }
            let is_all = holes.len() < AT_ONCE;
            if !self.reserve_holes(&mut state, holes, &transaction, held) || !is_all {
                return Ok(false);
            }
            let time = now();
            state.item.size = state.item.size.max(wanted.size);
            state.content_changed(time);
            return Ok(true);
        }
    }

    /// Puts reserved extents where there is nothing; returns whether that was done for all.
    fn reserve_holes(
        &self,
        state: &mut InodeState,
        holes: Vec<(u64, u64)>,
        transaction: &Transaction,
        held: &mut u64,
    ) -> bool {
        let mut extents = 0;
        for (start, len) in holes {
            let mut at = start;
            while at < start + len {
                let want = (start + len - at).min(MAX_RESERVED).min(*held);
                extents += 1;
                if extents > AT_ONCE || want == 0 {
                    return false;
                }
                let Some((place, got)) = self.space.allocate_data(want, state.allocation_hint) else { return false };
                self.unreserve_data(got);
                *held -= got;
                self.counters.bytes_reserved.fetch_add(got, Ordering::Relaxed);
                state.allocation_hint = place.plus(got);
                transaction.add_extent(place, NewExtent::new(got, None));
                state.pending.layout.replace(at, got, reserved_extent(place, got, transaction.generation));
                state.item.nbytes = state.item.nbytes.saturating_add(got);
                at += got;
            }
        }
        true
    }

    /// The first ranges within `range` that neither hold anything nor have space reserved, `most` at the most.
    fn holes_in(&self, id: InodeId, state: &InodeState, range: Range<u64>, most: usize) -> Result<Vec<(u64, u64)>> {
        let committed = self.committed();
        let map = FileMap::new(&committed, id, state)?;
        map.with_stack(state, |stack| {
            let mut holes = Vec::new();
            for mapped in stack.pieces(range) {
                let mapped = mapped?;
                if mapped.piece != Piece::Hole {
                    continue;
                }
                let (mut at, end) = (mapped.start, mapped.end());
                while at < end && holes.len() < most {
                    let (dirty, len) = state.dirty.next_run(at, u64::MAX).unwrap_or((end, 0));
                    if dirty > at {
                        holes.push((at, dirty.min(end) - at));
                    }
                    at = dirty.saturating_add(len);
                }
                if holes.len() >= most {
                    break;
                }
            }
            Ok(holes)
        })
    }

    /// The content of a file that is kept within metadata.
    pub(crate) fn inline_content(&self, id: InodeId, state: &InodeState) -> Result<Option<Vec<u8>>> {
        if state.dirty.covers(0..1) || !self.is_inline(id, state)? {
            return Ok(None);
        }
        let mut content = vec![0; self.volume.sector_size() as usize];
        self.read_sectors(id, state, 0, &mut content)?;
        content.truncate(state.item.size as usize);
        Ok(Some(content))
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
