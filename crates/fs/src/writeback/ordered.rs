//! Dirty data of an inode becomes extents: where it goes, and the writes that take it there.
//! Waiting for it gives the proof without which no log and no commit that refers to it is published
//! (invariant 1). It becomes nothing for which no metadata was reserved (invariant 50).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_file::{
    DirtyData, DirtyRun, ExtentPiece, InlinePiece, Layout, MAX_PACKED, Mapped, Piece, Stack, SumMap, extents_of,
};
use ubtrfs_format::Logical;
use ubtrfs_format::items::{Compression, InodeFlags, InodeItem};
use ubtrfs_volume::{CompletedWrites, Data, SharedBuffer, Volume, Write};

use super::cause::Cause;
use super::in_flight::InFlight;
use super::nocow::may_be_nocow;
use super::owner::Writeback;
use super::packers::{Packed, PackedPiece};
use super::packing::Packing;
use crate::error::{AtStep, Errno, Error, Result, Step};
use crate::faults::CommitFault;
use crate::inode::{
    DataWrites, Frozen, Inode, InodeId, InodeState, OrderedExtent, OrderedExtents, SharedTicket, has_checksums,
    new_ticket,
};
use crate::transaction::{NewExtent, Transaction};

/// Data of one file that may be in flight at a time.
const MAX_IN_FLIGHT: u64 = 32 << 20;

/// The largest extent.
const MAX_EXTENT: u64 = 128 << 20;

/// Data that is submitted at a time.
const SUBMITTED_AT_ONCE: u64 = 4 << 20;

/// Data of small files that a commit submits together, and the files that are locked meanwhile.
const GATHERED: u64 = 1 << 20;
const LOCKED_AT_ONCE: usize = 64;

/// Writes that are submitted together: neighbours on the device become one write, and all have one
/// ticket.
struct Submission<'a> {
    /// The file whose data is added.
    id: InodeId,
    volume: &'a Volume,
    in_flight: &'a InFlight,
    writes: Vec<Write>,
    bytes: u64,
    ticket: SharedTicket,
}

impl<'a> Submission<'a> {
    fn new(writeback: &'a Writeback, id: InodeId) -> Self {
        let (volume, in_flight) = (&*writeback.info.volume, &writeback.in_flight);
        Self { id, volume, in_flight, writes: Vec::new(), bytes: 0, ticket: new_ticket() }
    }

    /// Submits what `add` adds, also if it fails on the way: what has its place has to go there.
    fn of(writeback: &'a Writeback, id: InodeId, add: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let mut submission = Self::new(writeback, id);
        let added = add(&mut submission);
        submission.end(added)
    }

    /// Submits what was added, of which the last file's data ended so.
    fn end(mut self, added: Result<()>) -> Result<()> {
        let InodeId { subvolume, ino } = self.id;
        added.and(self.submit()).at(Step::Writeback { subvolume, ino })
    }

    /// Adds the data of an extent.
    fn add(&mut self, start: Logical, data: Vec<SharedBuffer>) -> Arc<OrderedExtent> {
        let mut at = start;
        for part in &data {
            self.writes.push(Write { at, data: part.clone() });
            at = at.plus(part.len() as u64);
        }
        self.bytes += at.0 - start.0;
        let counted = self.in_flight.count(at.0 - start.0);
        Arc::new(OrderedExtent::new(self.id, start, data, self.ticket.clone(), counted))
    }

    /// Submits the added writes; must be called before the extents are visible to others.
    fn submit(&mut self) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let submitted = self.volume.submit(std::mem::take(&mut self.writes));
        let ticket = std::mem::replace(&mut self.ticket, new_ticket());
        let mut writes = ticket.lock();
        let (state, result) = match submitted {
            Ok(ticket) => (DataWrites::UnderWay(ticket), Ok(())),
            Err(error) => (DataWrites::Failed, Err(error.into())),
        };
        *writes = state;
        result
    }
}

/// A placed part of a run.
struct Placed {
    offset: u64,
    len: u64,
    /// What the file has there now; `None` if it is what it had.
    piece: Option<Piece>,
    ordered: Option<Arc<OrderedExtent>>,
}

impl Placed {
    /// Enters it into a layout.
    fn enter(self, layout: &mut Layout, ordered: &mut OrderedExtents) {
        match self.piece {
            Some(piece) => drop(layout.replace(self.offset, self.len, piece)),
            // The log needs the checksums all the same.
            None => layout.note_changed(self.offset, self.offset + self.len),
        }
        if let Some(extent) = self.ordered {
            ordered.insert(extent);
        }
    }
}

/// The data to write back, and its transaction.
#[derive(Clone, Copy)]
struct Layer<'a> {
    id: InodeId,
    transaction: &'a Transaction,
    /// The inode's flags in the transaction.
    flags: u64,
    /// The transaction's layout of the file, if that is not the newest.
    layout: Option<&'a Layout>,
}

impl Writeback {
    /// Writes back the data that is dirty in the open transaction, which the inode has joined; the
    /// gate is held. What is `packed` of it is written compressed.
    pub(crate) fn write_back_pending(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        transaction: &Transaction,
        cause: Cause,
        packed: Packed,
    ) -> Result<()> {
        let result = Submission::of(self, inode.id, |submission| {
            self.write_back_pending_layer(submission, inode, state, transaction, cause, packed)
        });
        self.in_flight.note(inode, state);
        result
    }

    fn write_back_pending_layer(
        &self,
        submission: &mut Submission<'_>,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        transaction: &Transaction,
        cause: Cause,
        mut packed: Packed,
    ) -> Result<()> {
        if self.info.deleted.is_dropped_by(inode.id.subvolume, transaction.generation, &self.info.committed()) {
            drop(state.dirty.take());
            self.info.unreserve_data(std::mem::take(&mut state.reserved));
            return Ok(());
        }
        if may_be_nocow(state.item.flags) {
            // Older data first: where both overwrite one extent, it must not be written after newer
            // data.
            self.settle_frozen(inode.id, state)?;
        }
        if packed.in_vain {
            state.item.flags |= InodeFlags::NOCOMPRESS;
        }
        let layer = Layer { id: inode.id, transaction, flags: cause.flags(state.item.flags), layout: None };
        let map = self.info.view(inode.id, state).map()?;
        let mut dirty = state.dirty.take();
        let (room, may_be_packed) = (dirty.inline_room(), dirty.may_be_packed());
        assert_reserved(&packed, may_be_packed);
        let inline = cause == Cause::Fsync && (packed.inline.is_some() || self.is_for_metadata(&dirty, &state.item));
        while let Some(run) = dirty.take_run(MAX_EXTENT) {
            let len = run.len();
            let placed = if inline {
                vec![self.place_inline(&run, (state.item.size, room), transaction, packed.inline.take())]
            } else {
                self.place(run, state, layer, submission, &mut packed)?
            };
            state.reserved -= len;
            self.info.unreserve_data(len);
            for part in placed {
                if let Some(piece) = &part.piece {
                    let range = part.offset..part.offset + part.len;
                    let displaced = map.with_stack(state, |stack| stack.resolve(range))?;
                    state.pending.displaced += extents_of(&displaced);
                    let before = bytes_of(&displaced);
                    let mapped = Mapped { start: part.offset, len: part.len, piece: piece.clone() };
                    state.item.nbytes = state.item.nbytes.saturating_add(mapped.allocated()).saturating_sub(before);
                }
                part.enter(&mut state.pending.layout, &mut state.ordered);
            }
        }
        Ok(())
    }

    /// Starts writeback of an inode's data that the commit in flight has yet to write, so that the
    /// layouts are complete except for data that is dirty in the open transaction.
    pub(crate) fn settle_frozen(&self, id: InodeId, state: &mut InodeState) -> Result<()> {
        if state.frozen.as_ref().is_none_or(|frozen| frozen.dirty.is_empty()) {
            return Ok(());
        }
        let transaction = self.info.roots.frozen();
        match transaction {
            Some(transaction) => {
                let written = self.write_back_frozen(id, state, &transaction);
                written.map_err(|error| Error::Shared(self.info.abort(error)))
            }
            None => Ok(()),
        }
    }

    /// Freezes inodes, and writes back their data that is dirty in the frozen transaction. Of many
    /// small files the device gets few writes.
    #[inline(never)]
    pub(crate) fn write_back_all_frozen(&self, inodes: &[Arc<Inode>], transaction: &Transaction) -> Result<()> {
        let mut left = inodes;
        while let [first, others @ ..] = left {
            left = self.write_back_first_frozen(first, others, transaction)?;
        }
        Ok(())
    }

    /// Does so with the first ones, and returns the others. Until their data is submitted, they
    /// stay locked: nobody may see extents for which nobody can wait.
    fn write_back_first_frozen<'a>(
        &self,
        first: &Arc<Inode>,
        mut others: &'a [Arc<Inode>],
        transaction: &Transaction,
    ) -> Result<&'a [Arc<Inode>]> {
        let mut submission = Submission::new(self, first.id);
        let mut locked = Vec::new();
        let mut next = Some((first.id, first.write()));
        let mut added = Ok(());
        while let Some((id, mut state)) = next.take() {
            submission.id = id;
            state.freeze_before(transaction.generation.next());
            added = self.add_frozen(&mut submission, id, &mut state, transaction);
            let is_gathered = |extent: &Arc<OrderedExtent>| Arc::ptr_eq(&extent.ticket, &submission.ticket);
            if state.ordered.iter().any(is_gathered) {
                locked.push(state);
            }
            let is_full = submission.bytes >= GATHERED || locked.len() >= LOCKED_AT_ONCE;
            // By invariant 7 no lock is waited for here: their numbers are in no order.
            if let [inode, rest @ ..] = others
                && !is_full
                && added.is_ok()
                && let Some(state) = inode.try_write()
            {
                next = Some((inode.id, state));
                others = rest;
            }
        }
        submission.end(added)?;
        Ok(others)
    }

    /// Writes back the data that is dirty in the frozen transaction.
    fn write_back_frozen(&self, id: InodeId, state: &mut InodeState, transaction: &Transaction) -> Result<()> {
        Submission::of(self, id, |submission| self.add_frozen(submission, id, state, transaction))
    }

    fn add_frozen(
        &self,
        submission: &mut Submission<'_>,
        id: InodeId,
        state: &mut InodeState,
        transaction: &Transaction,
    ) -> Result<()> {
        let packing = match &state.frozen {
            Some(frozen) if !frozen.dirty.is_empty() => {
                self.packing_of(id, state, self.flags_of_frozen(&frozen.item, state))?
            }
            _ => None,
        };
        let Some(mut frozen) = state.frozen.take() else { return Ok(()) };
        if self.info.deleted.is_dropped_by(id.subvolume, transaction.generation, &self.info.committed()) {
            drop(frozen.dirty.take());
            self.info.unreserve_data(std::mem::take(&mut frozen.reserved));
            state.frozen = Some(frozen);
            return Ok(());
        }
        let result = self.write_back_frozen_layer(submission, id, state, (&mut frozen, packing.as_ref()), transaction);
        frozen.reserved = 0;
        state.frozen = Some(frozen);
        result
    }

    /// Bytes of metadata to reserve for a write after which a file is `size` bytes long: what its
    /// content takes more than is reserved, if it becomes inline. `may_pack`: compressed, too.
    pub(crate) fn inline_bytes(&self, state: &InodeState, size: u64, may_pack: bool) -> u64 {
        let largest = self.info.largest_inline();
        let most = if may_pack { u64::from(self.info.volume.sector_size()) } else { largest };
        if size > most {
            return 0;
        }
        let is_reserved = state.pending.generation == self.info.gate.current().generation;
        size.min(largest).saturating_sub(if is_reserved { state.dirty.inline_room() } else { 0 })
    }

    fn write_back_frozen_layer(
        &self,
        submission: &mut Submission<'_>,
        id: InodeId,
        state: &mut InodeState,
        (frozen, packing): (&mut Frozen, Option<&Packing>),
        transaction: &Transaction,
    ) -> Result<()> {
        let Frozen { item, batch, dirty, .. } = frozen;
        let layout = &mut batch.layout;
        let flags = self.flags_of_frozen(item, state);
        if dirty.is_empty() {
            return Ok(());
        }
        let below = (transaction.generation, Some(&*layout));
        let content = self.may_be_for_metadata(dirty, item).then_some(item.size);
        let mut packed = match packing {
            Some(packing) => self.pack(id, state, packing, below, dirty, content)?,
            None => Packed::default(),
        };
        assert_reserved(&packed, dirty.may_be_packed());
        let inline = packed.inline.is_some() || self.is_for_metadata(dirty, item);
        if packed.in_vain {
            // A newer choice of the user's counts.
            if state.item.flags == item.flags {
                state.item.flags |= InodeFlags::NOCOMPRESS;
            }
            item.flags |= InodeFlags::NOCOMPRESS;
        }
        let map = self.info.view(id, state).map()?;
        while let Some(run) = dirty.take_run(MAX_EXTENT) {
            let len = run.len();
            let placed = if inline {
                vec![self.place_inline(&run, (item.size, dirty.inline_room()), transaction, packed.inline.take())]
            } else {
                let layer = Layer { id, transaction, flags, layout: Some(layout) };
                self.place(run, state, layer, submission, &mut packed)?
            };
            self.info.unreserve_data(len);
            for part in placed {
                if part.piece.is_none() {
                    part.enter(layout, &mut state.ordered);
                    continue;
                }
                // The open transaction may have truncated or replaced some of it since.
                let range = part.offset..part.offset + part.len;
                let seen = |state: &InodeState, layout: &Layout| -> Result<u64> {
                    let layers = [&state.pending.layout, layout];
                    Ok(bytes_of(&Stack::new(&layers, map.bottom()).resolve(range.clone())?))
                };
                let before = seen(state, layout)?;
                part.enter(layout, &mut state.ordered);
                state.item.nbytes = state.item.nbytes.saturating_add(seen(state, layout)?).saturating_sub(before);
            }
        }
        Ok(())
    }

    /// The flags by which data of a frozen inode is written: those that were frozen with it.
    fn flags_of_frozen(&self, frozen: &InodeItem, newest: &InodeState) -> u64 {
        let is_wrong = self.info.options.faults().in_commit(CommitFault::NewestFlags);
        if is_wrong { newest.item.flags } else { frozen.flags }
    }

    /// Whether the content of a file, all of it dirty, is small enough to be inline.
    pub(crate) fn is_for_metadata(&self, dirty: &DirtyData, item: &InodeItem) -> bool {
        item.size <= self.info.largest_inline().min(dirty.inline_room()) && self.is_only_sector(dirty, item)
    }

    /// Whether it is, or may be once it is compressed.
    pub(super) fn may_be_for_metadata(&self, dirty: &DirtyData, item: &InodeItem) -> bool {
        let may_pack = dirty.may_be_packed() && self.may_compress(item.flags);
        self.is_for_metadata(dirty, item) || (may_pack && self.is_only_sector(dirty, item))
    }

    /// Whether the content of a file is one sector, which is dirty.
    fn is_only_sector(&self, dirty: &DirtyData, item: &InodeItem) -> bool {
        let sector = u64::from(self.info.volume.sector_size());
        let mut ranges = dirty.ranges();
        let only_sector = ranges.next() == Some((0, sector)) && ranges.next().is_none();
        let prealloc = item.flags & InodeFlags::PREALLOC != 0;
        only_sector && item.size > 0 && item.size <= sector && !prealloc
    }

    /// The only sector of a file of `size` bytes as content of its metadata, in which so much room
    /// is reserved.
    fn place_inline(
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
            "invariant 50: {} bytes become inline, {room} are reserved",
            piece.data.len()
        );
        let piece = Piece::Inline(piece);
        Placed { offset: 0, len: run.len(), piece: Some(piece), ordered: None }
    }

    /// Allocates extents for a run, and adds its writes to `submission`.
    fn place(
        &self,
        run: DirtyRun,
        state: &mut InodeState,
        layer: Layer<'_>,
        submission: &mut Submission<'_>,
        packed: &mut Packed,
    ) -> Result<Vec<Placed>> {
        let mut placed = Vec::new();
        let mut offset = run.offset;
        let parts = self.parts_to_write(
            layer.id,
            state,
            layer.flags,
            (layer.transaction.generation, layer.layout),
            offset..offset + run.len(),
        )?;
        let mut buffers = run.buffers.into();
        for part in parts {
            let end = offset + part.len;
            if let Some(place) = part.place {
                let data = split_front(&mut buffers, part.len);
                placed.push(self.place_over(offset, data, place, state, layer, submission)?);
                offset = end;
            }
            while offset < end {
                let whole = packed.pieces.remove(&offset).filter(|piece| piece.len <= end - offset);
                let whole = whole.and_then(|piece| self.place_packed(offset, piece, state, layer, submission));
                let new = if let Some(whole) = whole {
                    split_front(&mut buffers, whole.len);
                    whole
                } else {
                    let next = packed.pieces.range(offset..).next().map_or(end, |(next, _)| end.min(*next));
                    self.place_new(offset, next - offset, &mut buffers, state, layer, submission)?
                };
                offset = new.offset + new.len;
                placed.push(new);
                if submission.bytes >= SUBMITTED_AT_ONCE {
                    submission.submit()?;
                }
            }
        }
        Ok(placed)
    }

    /// Allocates an extent for the front of `buffers`, up to `want` bytes. Data that continues an
    /// extent of the same transaction, in the file and on disk, extends that one: a file that grows
    /// from one fsync to the next has few extents, and its log few items.
    fn place_new(
        &self,
        offset: u64,
        want: u64,
        buffers: &mut VecDeque<SharedBuffer>,
        state: &mut InodeState,
        layer: Layer<'_>,
        submission: &mut Submission<'_>,
    ) -> Result<Placed> {
        let transaction = layer.transaction;
        let (start, len) =
            self.info.space.allocate_data(want, state.allocation_hint).ok_or(Error::Posix(Errno::NOSPC))?;
        state.allocation_hint = Logical(start.0 + len);
        let data = split_front(buffers, len);
        let sums = has_checksums(layer.flags).then(|| self.sums_of(&data, len));
        let ordered = submission.add(start, data);
        // Into what a commit is about to write the open transaction may have pieces of the same
        // extents.
        if layer.layout.is_none()
            && let Some(grown) =
                self.grow_extent(layer.id, offset..offset + len, start, sums.as_deref(), state, transaction)
        {
            let (offset, len) = (grown.start, grown.len);
            return Ok(Placed { offset, len, piece: Some(grown.piece), ordered: Some(ordered) });
        }
        transaction.add_extent(start, NewExtent::new(len, sums));
        let piece = Piece::Extent(ExtentPiece {
            disk_bytenr: start,
            disk_num_bytes: len,
            offset: 0,
            ram_bytes: len,
            compression: Compression::None,
            prealloc: false,
            generation: transaction.generation,
        });
        Ok(Placed { offset, len, piece: Some(piece), ordered: Some(ordered) })
    }

    /// Allocates an extent for a compressed piece, whose data has to be in one place. `None` if
    /// there is no such place.
    fn place_packed(
        &self,
        offset: u64,
        piece: PackedPiece,
        state: &mut InodeState,
        layer: Layer<'_>,
        submission: &mut Submission<'_>,
    ) -> Option<Placed> {
        let PackedPiece { len, compression, data } = piece;
        let disk_num_bytes = data.len() as u64;
        let sector = u64::from(self.info.volume.sector_size());
        assert!(
            disk_num_bytes.is_multiple_of(sector) && disk_num_bytes < len && len <= MAX_PACKED,
            "invariant 31: {len} bytes are compressed to {disk_num_bytes}"
        );
        let start = self.info.space.allocate_whole_data(disk_num_bytes, state.allocation_hint)?;
        state.allocation_hint = start.plus(disk_num_bytes);
        self.info.features.note_compressed(compression);
        let data = vec![data];
        let sums = has_checksums(layer.flags).then(|| self.sums_of(&data, disk_num_bytes));
        let ordered = submission.add(start, data);
        layer.transaction.add_extent(start, NewExtent::new(disk_num_bytes, sums));
        let piece = Piece::Extent(ExtentPiece {
            disk_bytenr: start,
            disk_num_bytes,
            offset: 0,
            ram_bytes: len,
            compression,
            prealloc: false,
            generation: layer.transaction.generation,
        });
        Some(Placed { offset, len, piece: Some(piece), ordered: Some(ordered) })
    }

    /// Lets the extent that ends where `range` of a file begins, and at `start` on disk, grow by
    /// that range. It must be the file's own, and whole. Returns the piece that the file has then,
    /// if there is such an extent.
    fn grow_extent(
        &self,
        id: InodeId,
        range: Range<u64>,
        start: Logical,
        sums: Option<&[u8]>,
        state: &InodeState,
        transaction: &Transaction,
    ) -> Option<Mapped> {
        let len = range.end - range.start;
        let before = state.pending.layout.ending_at(range.start)?;
        let Piece::Extent(extent) = before.piece else { return None };
        let is_whole = extent.offset == 0 && extent.disk_num_bytes == before.len && extent.ram_bytes == before.len;
        let continues = extent.disk_bytenr.plus(before.len) == start && before.len + len <= MAX_EXTENT;
        let is_plain = extent.compression == Compression::None && !extent.prealloc;
        let may_grow = is_whole && continues && is_plain && self.info.space.are_in_one_chunk(extent.disk_bytenr, start);
        if !may_grow || !transaction.grow_extent(extent.disk_bytenr, before.len, id, len, sums) {
            return None;
        }
        let len = before.len + len;
        let piece = Piece::Extent(ExtentPiece { disk_num_bytes: len, ram_bytes: len, ..extent });
        Some(Mapped { start: before.start, len, piece })
    }

    /// Overwrites an extent: reserved space becomes data, and data of nodatacow files is replaced.
    fn place_over(
        &self,
        offset: u64,
        data: Vec<SharedBuffer>,
        place: ExtentPiece,
        state: &mut InodeState,
        layer: Layer<'_>,
        submission: &mut Submission<'_>,
    ) -> Result<Placed> {
        let len: u64 = data.iter().map(|part| part.len() as u64).sum();
        let start = place.disk_bytenr.plus(place.offset);
        if !place.prealloc {
            // Two writes of one place must not pass each other.
            // What is gathered with it is of other places of the file, or of other files: it shares
            // none on disk.
            let is_other = |extent: &&Arc<OrderedExtent>| !Arc::ptr_eq(&extent.ticket, &submission.ticket);
            let before = state.ordered.in_range(start..start.plus(len)).filter(is_other);
            let _written = self.wait_for_all(before).map_err(Error::Shared)?;
        }
        if has_checksums(layer.flags) {
            let sums = self.sums_of(&data, len);
            let (sector, size) = (self.info.volume.sector_size(), self.info.volume.checksum().size());
            layer.transaction.put_sums(start, &sums, || SumMap::new(sector, size));
        }
        self.info.counters.bytes_placed.fetch_add(len, Ordering::Relaxed);
        let ordered = submission.add(start, data);
        let piece = place.prealloc.then_some(Piece::Extent(ExtentPiece {
            prealloc: false,
            generation: layer.transaction.generation,
            ..place
        }));
        Ok(Placed { offset, len, piece, ordered: Some(ordered) })
    }

    /// The checksums of `len` bytes of data, one sector's after the other.
    fn sums_of(&self, data: &[SharedBuffer], len: u64) -> Vec<u8> {
        let checksum = self.info.volume.checksum();
        let sector = self.info.volume.sector_size() as usize;
        let mut sums = Vec::with_capacity(len as usize / sector * checksum.size());
        for bytes in data.iter().flat_map(|part| part.chunks(sector)) {
            sums.extend_from_slice(&checksum.compute(bytes).0[..checksum.size()]);
        }
        sums
    }

    /// Drops data that the device has, and waits for the oldest if too much is in flight.
    pub(crate) fn limit_in_flight(&self, state: &mut InodeState) -> Result<()> {
        let mut in_flight: u64 = state.ordered.iter().map(|extent| extent.len()).sum();
        for extent in state.ordered.iter() {
            let done = match &*extent.ticket.lock() {
                DataWrites::UnderWay(ticket) => ticket.is_done(),
                _ => true,
            };
            if done || in_flight > MAX_IN_FLIGHT {
                if let Err(error) = self.wait_for(extent) {
                    state.write_error = Some(error.clone());
                    return Err(Error::Shared(error));
                }
                in_flight -= extent.len();
            }
        }
        state.ordered.reap();
        Ok(())
    }

    /// Waits for data in flight, the oldest first, if memory has too much of it. The caller holds
    /// no lock.
    pub(crate) fn limit_all_in_flight(&self) -> Result<()> {
        let most = (self.info.options.memory / 4) as u64;
        while self.in_flight.bytes() > most {
            ubtrfs_tree::ensure_may_block()?;
            let Some(inode) = self.in_flight.oldest() else { break };
            let mut state = inode.write();
            let waited = self.wait_for_all(state.ordered.iter());
            if let Err(error) = &waited {
                state.write_error = Some(error.clone());
            }
            state.ordered.reap();
            let _written = waited.map_err(Error::Shared)?;
        }
        Ok(())
    }

    /// Waits for data on its way to the devices. After a failure nothing may become durable,
    /// whichever thread noticed it first: what refers to this data would refer to nothing.
    pub(crate) fn wait_for(&self, extent: &OrderedExtent) -> std::result::Result<CompletedWrites<Data>, Arc<Error>> {
        let mut writes = extent.ticket.lock();
        match std::mem::replace(&mut *writes, DataWrites::Failed) {
            // The flush that follows in the commit covers these writes too: one barrier for all.
            DataWrites::UnderWay(ticket) => match self.info.volume.wait(ticket) {
                Ok(written) => {
                    *writes = DataWrites::Completed(written.clone());
                    Ok(written)
                }
                Err(error) => {
                    // By invariant 13: nothing is written any more.
                    let step = Step::WriteData { subvolume: extent.id.subvolume, ino: extent.id.ino };
                    Err(self.info.abort(Error::from(error).at(step)))
                }
            },
            DataWrites::Completed(written) => {
                *writes = DataWrites::Completed(written.clone());
                Ok(written)
            }
            DataWrites::Gathered | DataWrites::Failed => {
                // By invariant 1 there is no proof for data that never came to the devices.
                Err(self.info.aborted().unwrap_or_else(|| Arc::new(Errno::IO.into())))
            }
        }
    }

    /// Waits for all data on its way of these extents: what a log or a commit refers to.
    pub(crate) fn wait_for_all<'a>(
        &self,
        extents: impl IntoIterator<Item = &'a Arc<OrderedExtent>>,
    ) -> std::result::Result<CompletedWrites<Data>, Arc<Error>> {
        let mut all = self.info.volume.wait_all([]).map_err(|error| Error::from(error).shared())?;
        for extent in extents {
            all = all.merge(self.wait_for(extent)?);
        }
        Ok(all)
    }

    /// Whether the content of a file is inline, or will be after the commit in flight.
    pub(crate) fn is_inline(&self, id: InodeId, state: &InodeState) -> Result<bool> {
        if state.frozen.as_ref().is_some_and(|frozen| self.may_be_for_metadata(&frozen.dirty, &frozen.item)) {
            return Ok(true);
        }
        let pieces = self.info.view(id, state).pieces(0..1)?;
        Ok(matches!(pieces.first(), Some(Mapped { piece: Piece::Inline(_), .. })))
    }

    /// The content of an inline file.
    pub(crate) fn inline_content(&self, id: InodeId, state: &InodeState) -> Result<Option<Vec<u8>>> {
        if state.dirty.covers(0..1) || !self.is_inline(id, state)? {
            return Ok(None);
        }
        let mut content = vec![0; self.info.volume.sector_size() as usize];
        self.reader.read_sectors(id, state, 0, &mut content)?;
        content.truncate(state.item.size as usize);
        Ok(Some(content))
    }
}

/// Asserts that only data is compressed for whose extents metadata is reserved.
fn assert_reserved(packed: &Packed, may_be_packed: bool) {
    assert!(
        may_be_packed || (packed.pieces.is_empty() && packed.inline.is_none()),
        "invariant 50: data is compressed that was accepted to be written as it is"
    );
}

/// Bytes on disk that the pieces of a file count in its inode.
fn bytes_of(pieces: &[Mapped]) -> u64 {
    pieces.iter().map(Mapped::allocated).sum()
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
