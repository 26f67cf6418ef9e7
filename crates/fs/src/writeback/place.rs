//! Chooses the location of dirty data: new extents, the growth of an existing extent, or an
//! overwrite. Data never takes a form for which no metadata was reserved (invariant 38).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_file::{DirtyRun, ExtentPiece, InlinePiece, Layout, MAX_PACKED, Mapped, Piece, SumMap};
use ubtrfs_format::Logical;
use ubtrfs_format::items::Compression;
use ubtrfs_volume::SharedBuffer;

use super::owner::Writeback;
use super::packers::{Packed, PackedPiece};
use super::submission::Submission;
use crate::error::{Errno, Error, Result};
use crate::inode::{InodeId, InodeState, OrderedExtent, OrderedExtents, has_checksums};
use crate::transaction::{NewExtent, Transaction};

/// The largest extent, in bytes.
pub(super) const MAX_EXTENT: u64 = 128 << 20;

/// Data is submitted when at least this many bytes are gathered.
const SUBMITTED_AT_ONCE: u64 = 4 << 20;

/// A placed part of a run.
pub(super) struct Placed {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The file's new piece there; `None` if the existing one stays.
    pub(super) piece: Option<Piece>,
    ordered: Option<Arc<OrderedExtent>>,
}

impl Placed {
    /// Enters the part into a layout.
    pub(super) fn enter(self, layout: &mut Layout, ordered: &mut OrderedExtents) {
        match self.piece {
            Some(piece) => drop(layout.replace(self.offset, self.len, piece)),
            // The log needs the new checksums in this case, too.
            None => layout.note_changed(self.offset, self.offset + self.len),
        }
        if let Some(extent) = self.ordered {
            ordered.insert(extent);
        }
    }
}

/// The data to write back, and its transaction.
#[derive(Clone, Copy)]
pub(super) struct Layer<'a> {
    pub(super) id: InodeId,
    pub(super) transaction: &'a Transaction,
    /// The inode's flags in the transaction.
    pub(super) flags: u64,
    /// The transaction's layout of the file; `None` if it is the newest.
    pub(super) layout: Option<&'a Layout>,
}

/// Chooses the location of a layer's data, and adds its writes to a submission.
pub(super) struct Placer<'a, 's> {
    pub(super) writeback: &'a Writeback,
    pub(super) layer: Layer<'a>,
    pub(super) submission: &'a mut Submission<'s>,
}

impl Writeback {
    /// Places the only sector of a file of `size` bytes inline in its metadata, where `room` bytes
    /// are reserved.
    pub(super) fn place_inline(
        &self,
        run: &DirtyRun,
        (size, room): (u64, u64),
        transaction: &Transaction,
        packed: Option<(Compression, Vec<u8>)>,
    ) -> Placed {
        let data = Arc::from(&run.buffers[0][..size as usize]);
        let plain = InlinePiece::plain(data, transaction.generation);
        let piece = match packed {
            Some((compression, bytes)) => {
                self.info.features.note_compressed(compression);
                InlinePiece { data: bytes.into(), compression, ..plain }
            }
            None => plain,
        };
        assert!(
            piece.data.len() as u64 <= room,
            "invariant 38: {} bytes become inline, {room} are reserved",
            piece.data.len()
        );
        let piece = Piece::Inline(piece);
        Placed { offset: 0, len: run.len(), piece: Some(piece), ordered: None }
    }
}

impl Placer<'_, '_> {
    /// Places a run, in parts.
    pub(super) fn place(&mut self, run: DirtyRun, state: &mut InodeState, packed: &mut Packed) -> Result<Vec<Placed>> {
        let mut placed = Vec::new();
        let mut offset = run.offset;
        let Layer { id, flags, transaction, layout } = self.layer;
        let range = offset..offset + run.len();
        let parts = self.writeback.parts_to_write(id, state, flags, (transaction.generation, layout), range)?;
        let mut buffers = run.buffers.into();
        for part in parts {
            let end = offset + part.len;
            if let Some(place) = part.place {
                let data = split_front(&mut buffers, part.len);
                placed.push(self.place_over(offset, data, place, state)?);
                offset = end;
            }
            while offset < end {
                let whole = packed.pieces.remove(&offset).filter(|piece| piece.len <= end - offset);
                let whole = whole.and_then(|piece| self.place_packed(offset, piece, state));
                let new = if let Some(whole) = whole {
                    split_front(&mut buffers, whole.len);
                    whole
                } else {
                    let next = packed.pieces.range(offset..).next().map_or(end, |(next, _)| end.min(*next));
                    self.place_new(offset, next - offset, &mut buffers, state)?
                };
                offset = new.offset + new.len;
                placed.push(new);
                if self.submission.bytes() >= SUBMITTED_AT_ONCE {
                    self.submission.submit()?;
                }
            }
        }
        Ok(placed)
    }

    /// Allocates an extent for the front of `buffers`, up to `want` bytes. Data that continues an
    /// extent of the same transaction, in the file and on disk, makes that extent grow. So a file
    /// that grows from one fsync to the next has few extents, and its log few items.
    fn place_new(
        &mut self,
        offset: u64,
        want: u64,
        buffers: &mut VecDeque<SharedBuffer>,
        state: &mut InodeState,
    ) -> Result<Placed> {
        let space = &self.writeback.info.space;
        let (start, len) = space.allocate_data(want, state.allocation_hint).ok_or(Error::Posix(Errno::NOSPC))?;
        state.allocation_hint = Logical(start.0 + len);
        let data = split_front(buffers, len);
        let sums = self.sums_of(&data, len);
        let ordered = Some(self.submission.add(start, data));
        // If a commit is about to write the data, the extent may not grow: the open transaction may
        // have pieces of it.
        if self.layer.layout.is_none()
            && let Some(grown) = self.grow_extent(offset..offset + len, start, sums.as_deref(), state)
        {
            return Ok(Placed { offset: grown.start, len: grown.len, piece: Some(grown.piece), ordered });
        }
        self.layer.transaction.add_extent(start, NewExtent::new(len, sums));
        let piece = Some(self.extent(start, len, len, Compression::None));
        Ok(Placed { offset, len, piece, ordered })
    }

    /// Allocates an extent for a compressed piece, whose data has to be in one place. `None` if
    /// there is no such place.
    fn place_packed(&mut self, offset: u64, piece: PackedPiece, state: &mut InodeState) -> Option<Placed> {
        let PackedPiece { len, compression, data } = piece;
        let info = &self.writeback.info;
        let disk_num_bytes = data.len() as u64;
        let sector = u64::from(info.volume.sector_size());
        assert!(
            disk_num_bytes.is_multiple_of(sector) && disk_num_bytes < len && len <= MAX_PACKED,
            "invariant 31: {len} bytes are compressed to {disk_num_bytes}"
        );
        let start = info.space.allocate_whole_data(disk_num_bytes, state.allocation_hint)?;
        state.allocation_hint = start.plus(disk_num_bytes);
        info.features.note_compressed(compression);
        let data = vec![data];
        let sums = self.sums_of(&data, disk_num_bytes);
        let ordered = Some(self.submission.add(start, data));
        self.layer.transaction.add_extent(start, NewExtent::new(disk_num_bytes, sums));
        let piece = Some(self.extent(start, disk_num_bytes, len, compression));
        Some(Placed { offset, len, piece, ordered })
    }

    /// Returns a piece that covers a whole new extent, which holds `ram_bytes` of the file.
    fn extent(&self, disk_bytenr: Logical, disk_num_bytes: u64, ram_bytes: u64, compression: Compression) -> Piece {
        let generation = self.layer.transaction.generation;
        let (offset, prealloc) = (0, false);
        Piece::Extent(ExtentPiece { disk_bytenr, disk_num_bytes, offset, ram_bytes, compression, prealloc, generation })
    }

    /// Lets the extent that ends where `range` of a file begins, and at `start` on disk, grow by
    /// that range. It must belong to the file alone, as a whole. Returns the new piece of the file,
    /// if there is such an extent.
    fn grow_extent(
        &self,
        range: Range<u64>,
        start: Logical,
        sums: Option<&[u8]>,
        state: &InodeState,
    ) -> Option<Mapped> {
        let len = range.end - range.start;
        let before = state.pending.layout.ending_at(range.start)?;
        let Piece::Extent(extent) = before.piece else { return None };
        let is_whole = extent.offset == 0 && extent.disk_num_bytes == before.len && extent.ram_bytes == before.len;
        let continues = extent.disk_bytenr.plus(before.len) == start && before.len + len <= MAX_EXTENT;
        let is_plain = extent.compression == Compression::None && !extent.prealloc;
        let space = &self.writeback.info.space;
        let may_grow = is_whole && continues && is_plain && space.are_in_one_chunk(extent.disk_bytenr, start);
        let Layer { id, transaction, .. } = self.layer;
        if !may_grow || !transaction.grow_extent(extent.disk_bytenr, before.len, id, len, sums) {
            return None;
        }
        let len = before.len + len;
        let piece = Piece::Extent(ExtentPiece { disk_num_bytes: len, ram_bytes: len, ..extent });
        Some(Mapped { start: before.start, len, piece })
    }

    /// Overwrites an extent: preallocated space becomes data, and data of nodatacow files is
    /// replaced.
    fn place_over(
        &mut self,
        offset: u64,
        data: Vec<SharedBuffer>,
        place: ExtentPiece,
        state: &InodeState,
    ) -> Result<Placed> {
        let len: u64 = data.iter().map(|part| part.len() as u64).sum();
        let start = place.disk_bytenr.plus(place.offset);
        let transaction = self.layer.transaction;
        if !place.prealloc {
            // Two writes to the same place must not overtake each other. The writes of this
            // submission are to other places of the file, or of other files: none of them overlaps
            // on disk.
            let is_other = |extent: &&Arc<OrderedExtent>| !self.submission.has(extent);
            let before = state.ordered.in_range(start..start.plus(len)).filter(is_other);
            let _written = self.writeback.wait_for_all(before).map_err(Error::Shared)?;
        }
        let info = &self.writeback.info;
        if let Some(sums) = self.sums_of(&data, len) {
            let (sector, size) = (info.volume.sector_size(), info.volume.checksum().size());
            transaction.put_sums(start, &sums, || SumMap::new(sector, size));
        }
        info.counters.bytes_placed.fetch_add(len, Ordering::Relaxed);
        let ordered = Some(self.submission.add(start, data));
        let generation = transaction.generation;
        let now_written = || Piece::Extent(ExtentPiece { prealloc: false, generation, ..place });
        Ok(Placed { offset, len, piece: place.prealloc.then(now_written), ordered })
    }

    /// Returns the checksums of `len` bytes of data, one for each sector; `None` if the file has no
    /// checksums.
    fn sums_of(&self, data: &[SharedBuffer], len: u64) -> Option<Vec<u8>> {
        if !has_checksums(self.layer.flags) {
            return None;
        }
        let volume = &self.writeback.info.volume;
        let (checksum, sector) = (volume.checksum(), volume.sector_size() as usize);
        let mut sums = Vec::with_capacity(len as usize / sector * checksum.size());
        for bytes in data.iter().flat_map(|part| part.chunks(sector)) {
            sums.extend_from_slice(&checksum.compute(bytes).0[..checksum.size()]);
        }
        Some(sums)
    }
}

/// Takes `len` bytes from the front of a list of buffers.
fn split_front(buffers: &mut VecDeque<SharedBuffer>, mut len: u64) -> Vec<SharedBuffer> {
    let mut taken = Vec::new();
    while len > 0 {
        let Some(front) = buffers.pop_front() else { break };
        let size = front.len() as u64;
        if size <= len {
            len -= size;
            taken.push(front);
        } else {
            taken.push(front.slice(0..len as usize));
            buffers.push_front(front.slice(len as usize..front.len()));
            len = 0;
        }
    }
    taken
}
