//! Turns dirty data of an inode into ordered extents, in the open transaction and in the one that
//! is being committed. Waiting for the data gives the proof without which no log and no commit that
//! refers to it is published (invariant 1).

use std::sync::Arc;

use ubtrfs_file::{DirtyData, Layout, Mapped, Piece, Stack, extents_of};
use ubtrfs_format::items::{InodeFlags, InodeItem};
use ubtrfs_volume::{CompletedWrites, Data};

use super::cause::Cause;
use super::nocow::may_be_nocow;
use super::owner::Writeback;
use super::packers::Packed;
use super::packing::Packing;
use super::place::{Layer, MAX_EXTENT, Placer};
use super::submission::Submission;
use crate::error::{Errno, Error, Result, Step};
use crate::faults::CommitFault;
use crate::inode::{DataWrites, Frozen, Inode, InodeId, InodeState, OrderedExtent};
use crate::transaction::Transaction;

/// The most data of one file that may be in flight, in bytes.
const MAX_IN_FLIGHT: u64 = 32 << 20;

/// A commit submits data of small files together: up to this many bytes, and with up to
/// `LOCKED_AT_ONCE` files locked meanwhile.
const GATHERED: u64 = 1 << 20;
const LOCKED_AT_ONCE: usize = 64;

impl Writeback {
    /// Writes back the data that is dirty in the open transaction, which the inode has joined. The
    /// gate is held. The parts in `packed` are written compressed.
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
            // Older data is written first: if both overwrite one extent, it must not be written
            // after newer data.
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
                Placer { writeback: self, layer, submission }.place(run, state, &mut packed)?
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

    /// Starts writeback of an inode's data that the commit in flight has yet to write. Afterwards
    /// the layouts are complete except for data that is dirty in the open transaction.
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

    /// Freezes inodes, and writes back their data that is dirty in the frozen transaction. The data
    /// of many small files is combined into few writes.
    #[inline(never)]
    pub(crate) fn write_back_all_frozen(&self, inodes: &[Arc<Inode>], transaction: &Transaction) -> Result<()> {
        let mut left = inodes;
        while let [first, others @ ..] = left {
            left = self.write_back_first_frozen(first, others, transaction)?;
        }
        Ok(())
    }

    /// Does this for the first inodes, and returns the others. The inodes stay locked until their
    /// data is submitted: nobody may see extents that nobody can wait for.
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
            submission.begin_file(id);
            state.freeze_before(transaction.generation.next());
            added = self.add_frozen(&mut submission, id, &mut state, transaction);
            if state.ordered.iter().any(|extent| submission.has(extent)) {
                locked.push(state);
            }
            let is_full = submission.bytes() >= GATHERED || locked.len() >= LOCKED_AT_ONCE;
            // By invariant 7 this waits for no lock, since the inodes are in no order.
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

    /// Returns the bytes of metadata to reserve for a write after which a file is `size` bytes
    /// long: what its content takes, if it becomes inline, beyond what is reserved already.
    /// `may_pack` says that the content may be compressed.
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
            // A newer choice of the user takes precedence.
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
                Placer { writeback: self, layer, submission }.place(run, state, &mut packed)?
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

    /// Returns the flags by which data of a frozen inode is written: those that were frozen with
    /// it.
    fn flags_of_frozen(&self, frozen: &InodeItem, newest: &InodeState) -> u64 {
        let is_wrong = self.info.options.faults().in_commit(CommitFault::NewestFlags);
        if is_wrong { newest.item.flags } else { frozen.flags }
    }

    /// Whether the content of a file, all of it dirty, is small enough to be inline.
    pub(crate) fn is_for_metadata(&self, dirty: &DirtyData, item: &InodeItem) -> bool {
        item.size <= self.info.largest_inline().min(dirty.inline_room()) && self.is_only_sector(dirty, item)
    }

    /// Whether it is, or may become so by compression.
    pub(super) fn may_be_for_metadata(&self, dirty: &DirtyData, item: &InodeItem) -> bool {
        let may_pack = dirty.may_be_packed() && self.may_compress(item.flags);
        self.is_for_metadata(dirty, item) || (may_pack && self.is_only_sector(dirty, item))
    }

    /// Whether the content of a file is one sector, and that is dirty.
    fn is_only_sector(&self, dirty: &DirtyData, item: &InodeItem) -> bool {
        let sector = u64::from(self.info.volume.sector_size());
        let mut ranges = dirty.ranges();
        let only_sector = ranges.next() == Some((0, sector)) && ranges.next().is_none();
        let prealloc = item.flags & InodeFlags::PREALLOC != 0;
        only_sector && item.size > 0 && item.size <= sector && !prealloc
    }

    /// Drops the data that the device has, and waits for the oldest data if too much is in flight.
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

    /// Waits for data in flight, the oldest first, if it takes too much memory. The caller holds no
    /// lock.
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

    /// Waits for data in flight. After a failure nothing may become durable, whichever thread
    /// noticed it first, since references to this data would point to garbage.
    pub(crate) fn wait_for(&self, extent: &OrderedExtent) -> std::result::Result<CompletedWrites<Data>, Arc<Error>> {
        let mut writes = extent.ticket.lock();
        match std::mem::replace(&mut *writes, DataWrites::Failed) {
            // The flush that follows in the commit covers these writes too: one barrier for all.
            DataWrites::UnderWay(ticket) => match self.info.volume.writer().wait(ticket) {
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
                // By invariant 1 there is no proof for data that was never written to the devices.
                Err(self.info.aborted().unwrap_or_else(|| Arc::new(Errno::IO.into())))
            }
        }
    }

    /// Waits for all data of these extents, which a log or a commit refers to.
    pub(crate) fn wait_for_all<'a>(
        &self,
        extents: impl IntoIterator<Item = &'a Arc<OrderedExtent>>,
    ) -> std::result::Result<CompletedWrites<Data>, Arc<Error>> {
        let mut all = self.info.volume.writer().wait_all([]).map_err(|error| Error::from(error).shared())?;
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

    /// Returns the content of a file if it is inline.
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

/// Asserts that data is compressed only if metadata is reserved for its extents.
fn assert_reserved(packed: &Packed, may_be_packed: bool) {
    assert!(
        may_be_packed || (packed.pieces.is_empty() && packed.inline.is_none()),
        "invariant 38: data is compressed that was accepted to be written as it is"
    );
}

/// Returns the bytes on disk that these pieces of a file count in its inode.
fn bytes_of(pieces: &[Mapped]) -> u64 {
    pieces.iter().map(Mapped::allocated).sum()
}
