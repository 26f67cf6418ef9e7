//! Reflinks: a range of a file gets to share the extents of another file.
//!
//! Inline content is copied, since only extents can be shared. Preallocated space becomes a hole:
//! shared space could not be overwritten in place, which is its only purpose.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_file::{DirtyData, Mapped, Piece, extents_of};
use ubtrfs_format::items::FileType;

use super::LockedInodes;
use super::checks::{check_no_verity, check_unrestricted};
use super::operations::FileOperations;
use super::resize::{GrowthPlan, fill_sector};
use crate::error::{Errno, Result};
use crate::inode::MAX_FILE_SIZE;
use crate::inode::{Inode, InodeId, InodeState, OrderedExtent};
use crate::item_sizes::FILE_EXTENT_ITEM;
use crate::transaction::Transaction;
use crate::writeback::Cause;
use ubtrfs_space::Demand;

/// Pieces that are shared in one passage of the gate.
const AT_ONCE: usize = 64;
/// Pieces of the destination that one step may displace.
const MAX_DISPLACED: usize = 2048;
/// The most bytes of a file that can be shared as a whole without taking long.
const SHORT: u64 = 128 << 10;
/// Bytes of a file extent item, of the second one if a file extent item is split, and of the
/// reference to its extent.
const PIECE_BYTES: u64 = 2 * FILE_EXTENT_ITEM + DATA_REF_BYTES;
/// Bytes of an `EXTENT_DATA_REF` that an extent gets.
const DATA_REF_BYTES: u64 = 53;

/// The plan of a step, made before the transaction is entered.
struct ClonePlan {
    /// Pieces of the source; empty if the content is copied.
    pieces: Vec<Mapped>,
    /// Bytes of the destination that the step covers.
    len: u64,
    /// The content to copy if it can't be shared.
    copied: Option<Vec<u8>>,
    growth: Option<GrowthPlan>,
    /// Inline content of the destination that has to move to an extent.
    inline: Option<Vec<u8>>,
    /// Bytes that the destination frees.
    freed: u64,
    /// Number of extents that the destination frees.
    displaced: usize,
    /// Ordered extents of the source that the destination gets to share.
    in_flight: Vec<Arc<OrderedExtent>>,
}

/// The result of a step.
enum CloneStep {
    Done(u64),
    /// The extents to share must be committed first.
    NeedsCommit,
}

/// The source range and the destination range, in two files or in one.
struct Ends<'a> {
    source: &'a Arc<Inode>,
    from: u64,
    /// The size of the source before the first step. Steps may have extended the source if it is
    /// the destination, too.
    source_end: u64,
    target: &'a Arc<Inode>,
    to: u64,
}

impl FileOperations {
    /// Makes the `len` bytes of `target` from `to_offset` on equal to those of `source` from
    /// `from_offset` on, by sharing extents. Returns the number of bytes that it shared. These are
    /// fewer than `len` if the source ends, if the range does not end with a sector, and if an
    /// error occurs after the first step.
    ///
    /// `EOPNOTSUPP` if the ranges can't share: an offset is not a multiple of the sector size, or
    /// only one of the files has checksums. `EINVAL` if the ranges overlap.
    pub fn clone_range(
        &self,
        source: InodeId,
        from_offset: u64,
        target: InodeId,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.clone_steps(source, from_offset, target, to_offset, len, usize::MAX)
    }

    /// Does the same for the first extents of the range, as many as can be shared in a short time.
    /// Returns zero only if there is nothing to share.
    pub fn clone_some(
        &self,
        source: InodeId,
        from_offset: u64,
        target: InodeId,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        /// Each step takes up to 64 extents, and there are at most three commits.
        const STEPS: usize = 20;
        self.clone_steps(source, from_offset, target, to_offset, len, STEPS)
    }

    /// Makes the `len` bytes of `target` from `to_offset` on equal to those of `source` from
    /// `from_offset` on, by sharing extents. Returns the number of bytes that it shared. These are
    /// fewer than `len` if the source ends, if the range does not end with a sector, after
    /// `most_steps` steps (each a transaction), and if an error occurs after the first step.
    ///
    /// `EOPNOTSUPP` if the ranges can't share: an offset is not a multiple of the sector size, or
    /// only one of the files has checksums. `EINVAL` if the ranges overlap.
    fn clone_steps(
        &self,
        source: InodeId,
        from_offset: u64,
        target: InodeId,
        to_offset: u64,
        len: u64,
        most_steps: usize,
    ) -> Result<u64> {
        self.info.check_writable(target.subvolume)?;
        let (source, target) = (self.file_to_clone(source)?, self.file_to_clone(target)?);
        let source_end = source.read().item.size;
        let len = self.bytes_to_clone(&source, from_offset, &target, to_offset, len)?;
        let mut done = 0;
        let (mut steps, mut commits) = (0, 0);
        while done < len && steps < most_steps {
            steps += 1;
            let (from, to) = (from_offset + done, to_offset + done);
            let ends = Ends { source: &source, from, source_end, target: &target, to };
            match self.clone_step(&ends, len - done) {
                Ok(CloneStep::Done(0)) => break,
                Ok(CloneStep::Done(bytes)) => done += bytes,
                // A concurrent writer must not make this loop forever. The part that is shared
                // stays shared, and the caller copies the rest.
                Ok(CloneStep::NeedsCommit) if commits < 3 && (done == 0 || ubtrfs_tree::may_block()) => {
                    ubtrfs_tree::ensure_may_block()?;
                    commits += 1;
                    self.reserver.commit()?;
                }
                Ok(CloneStep::NeedsCommit) if done == 0 => return Err(Errno::OPNOTSUPP.into()),
                Err(error) if done == 0 => return Err(error),
                Ok(CloneStep::NeedsCommit) | Err(_) => break,
            }
        }
        self.info.counters.bytes_cloned.fetch_add(done, Ordering::Relaxed);
        Ok(done)
    }

    /// Returns whether both files are unlocked and so small that sharing one with the other takes
    /// no time.
    pub fn is_clone_short(&self, source: InodeId, target: InodeId) -> bool {
        let is_small = |inode: &Inode| inode.try_read().is_some_and(|state| state.item.size <= SHORT);
        [source, target].into_iter().all(|id| self.info.inodes.get(id).is_some_and(|inode| is_small(&inode)))
    }

    fn file_to_clone(&self, id: InodeId) -> Result<Arc<Inode>> {
        let inode = self.info.inode(id)?;
        let file_type = inode.read().file_type();
        match file_type {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    /// Returns how many of the requested bytes can be shared.
    fn bytes_to_clone(&self, source: &Arc<Inode>, from: u64, target: &Arc<Inode>, to: u64, len: u64) -> Result<u64> {
        let sector = u64::from(self.info.volume.sector_size());
        let fits = |offset: u64| offset.checked_add(len).is_some_and(|end| end <= MAX_FILE_SIZE);
        if !fits(from) || !fits(to) {
            return Err(Errno::INVAL.into());
        }
        // The locks are not held together: both may be of one file, and a writer may wait between
        // two readers of it.
        let size = source.read().item.size;
        let target_size = target.read().item.size;
        let len = len.min(size.saturating_sub(from));
        if len == 0 {
            return Ok(0);
        }
        if source.id == target.id && from < to + len && to < from + len {
            return Err(Errno::INVAL.into());
        }
        if !from.is_multiple_of(sector) || !to.is_multiple_of(sector) {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.whole_sectors(len, from + len == size && to + len >= target_size)
    }

    /// Returns how many of `len` bytes can be shared: all of them only if both files end there,
    /// since the last sector is shared as a whole; otherwise the whole sectors.
    fn whole_sectors(&self, len: u64, ends_both: bool) -> Result<u64> {
        let len = if ends_both { len } else { len - len % u64::from(self.info.volume.sector_size()) };
        if len == 0 { Err(Errno::OPNOTSUPP.into()) } else { Ok(len) }
    }

    /// Shares the first pieces of a range.
    fn clone_step(&self, ends: &Ends<'_>, len: u64) -> Result<CloneStep> {
        let sector = u64::from(self.info.volume.sector_size());
        let most = {
            let state = ends.source.read();
            self.pieces_at_most(ends.source.id, &state, ends.from..ends.from + len, AT_ONCE)?
        };
        let edits = 8 + 4 * most as u64;
        let item_bytes = PIECE_BYTES * (most as u64 + 2) + 2 * sector;
        let demand = Demand { data: 3 * sector, edits, item_bytes, ..Demand::default() };
        let _reservation = self.reserver.reserve_to_free(ends.target, demand)?;
        let mut surplus = 3 * sector;
        let result = self.clone_reserved(ends, len, most, &mut surplus);
        self.info.unreserve_data(surplus);
        result
    }

    /// Returns how many pieces a range may have when its dirty data is written back, at most
    /// `most`.
    fn pieces_at_most(&self, id: InodeId, state: &InodeState, range: Range<u64>, most: usize) -> Result<usize> {
        let map = self.info.view(id, state).map()?;
        let mapped = map.with_stack(state, |stack| -> Result<usize> {
            let mut count = 0;
            for piece in stack.pieces(range).take(most) {
                piece?;
                count += 1;
            }
            Ok(count)
        })?;
        let dirty = state.dirty_layers().flat_map(DirtyData::ranges);
        Ok((mapped + 2 * dirty.take(most).count() + 2).min(most))
    }

    fn clone_reserved(&self, ends: &Ends<'_>, len: u64, most: usize, surplus: &mut u64) -> Result<CloneStep> {
        let (source, target) = (ends.source.id, ends.target.id);
        let mut locked = LockedInodes::lock(&[ends.source, ends.target]);
        if locked.get(source).dead || locked.get(target).dead {
            return Err(Errno::NOENT.into());
        }
        // This is checked under the locks: a file that was emptied in between may have another flag
        // and new data.
        if locked.get(source).has_checksums() != locked.get(target).has_checksums() {
            return Err(Errno::OPNOTSUPP.into());
        }
        self.info.gate.transact(
            &mut locked,
            |locked, _| self.plan_step(ends, locked, len, most),
            |locked, plan, transaction| {
                let done = plan.len;
                let state = locked.get_mut(target);
                state.join(ends.target, transaction);
                self.carry_out(state, plan, ends, transaction, surplus);
                CloneStep::Done(done)
            },
        )
    }

    /// Plans the next step, or returns the result that ends the operation.
    fn plan_step(
        &self,
        ends: &Ends<'_>,
        locked: &mut LockedInodes<'_>,
        len: u64,
        most: usize,
    ) -> Result<ControlFlow<CloneStep, ClonePlan>> {
        let (source, target) = (ends.source.id, ends.target.id);
        // If one of the subvolumes is released only after this check, the commit of this
        // transaction adds the references of this step before it drops any of the data of the
        // subvolume.
        if [source, target].iter().any(|id| self.info.deleted.is_released(id.subvolume)) {
            return Err(Errno::STALE.into());
        }
        self.writeback.settle_frozen(target, locked.get_mut(target))?;
        if locked.get(source).item.size > self.info.largest_inline() {
            self.write_back_all(ends.source, locked.get_mut(source))?;
        }
        check_unrestricted(locked.get(target))?;
        check_no_verity(locked.get(target))?;
        // Other operations may have truncated or extended the files meanwhile.
        let mut sizes = (locked.get(source).item.size, locked.get(target).item.size);
        if source == target {
            sizes.0 = sizes.0.min(ends.source_end);
        }
        let len = len.min(sizes.0.saturating_sub(ends.from));
        if len == 0 {
            return Ok(ControlFlow::Break(CloneStep::Done(0)));
        }
        let len = self.whole_sectors(len, ends.from + len == sizes.0 && ends.to + len >= sizes.1)?;
        let Some(plan) = self.plan_clone(ends, locked, len, most)? else {
            return Ok(ControlFlow::Break(CloneStep::NeedsCommit));
        };
        Ok(ControlFlow::Continue(plan))
    }

    /// Starts writeback of all dirty data of a file, so that each byte is in an extent.
    pub(super) fn write_back_all(&self, inode: &Arc<Inode>, state: &mut InodeState) -> Result<()> {
        self.writeback.settle_frozen(inode.id, state)?;
        if state.dirty.is_empty() {
            return Ok(());
        }
        let packed = self.writeback.pack_pending(inode.id, state, Cause::Pressure)?;
        // If a commit began just now, the caller will notice.
        self.start_writeback(inode, state, Cause::Pressure, packed).map(|_| ())
    }

    /// Plans the next step; `None` if a commit has to come first.
    fn plan_clone(
        &self,
        ends: &Ends<'_>,
        locked: &LockedInodes<'_>,
        len: u64,
        most: usize,
    ) -> Result<Option<ClonePlan>> {
        let sector = u64::from(self.info.volume.sector_size());
        let (source, target) = (ends.source.id, ends.target.id);
        let state = locked.get(source);
        let range = ends.from..(ends.from + len).next_multiple_of(sector);
        let map = self.info.view(source, state).map()?;
        let mut pieces =
            map.with_stack(state, |stack| stack.pieces(range).take(most).collect::<std::result::Result<Vec<_>, _>>())?;
        let is_first_inline = matches!(pieces.first(), Some(Mapped { piece: Piece::Inline(_), .. }));
        let copies = is_first_inline || state.item.size <= self.info.largest_inline();
        let mut copied = None;
        let len = if copies {
            pieces.clear();
            let len = len.min(sector);
            let mut content = vec![0; sector as usize];
            self.reader.read_sectors(source, state, ends.from, &mut content)?;
            content.truncate(len as usize);
            copied = Some(content);
            len
        } else {
            len.min(pieces.last().map_or(0, |last| last.end() - ends.from))
        };
        if source.subvolume != target.subvolume && self.has_uncommitted(&pieces) {
            // The log of one subvolume does not know which of these extents the log of the other
            // contains.
            return Ok(None);
        }
        let state = locked.get(target);
        let map = self.info.view(target, state).map()?;
        let range = ends.to..(ends.to + len).next_multiple_of(sector);
        let displaced = map.with_stack(state, |stack| {
            stack.pieces(range.clone()).take(MAX_DISPLACED).collect::<std::result::Result<Vec<_>, _>>()
        })?;
        // The number of extents that one step frees is bounded, too (invariant 26).
        let len = match displaced.last().map(Mapped::end).filter(|end| *end < range.end) {
            Some(end) => end - ends.to,
            None => len,
        };
        let wanted = ends.from..(ends.from + len).next_multiple_of(sector);
        let pieces: Vec<_> = pieces.into_iter().filter_map(|mapped| mapped.clipped(&wanted)).collect();
        let in_flight = if self.info.options.faults().repeats_in_flight() {
            locked.get(source).ordered.iter().cloned().collect()
        } else if source == target {
            // The file has these ordered extents already.
            Vec::new()
        } else {
            in_flight(locked.get(source), &pieces)
        };
        let freed = displaced.iter().map(Mapped::allocated).sum();
        let range = ends.to..(ends.to + len).next_multiple_of(sector);
        let growth = if range.start + len > state.item.size {
            Some(self.plan_growth(target, state, range.start + len)?)
        } else {
            None
        };
        let inline = if ends.to > 0 { self.writeback.inline_content(target, state)? } else { None };
        Ok(Some(ClonePlan { pieces, len, copied, growth, inline, freed, displaced: extents_of(&displaced), in_flight }))
    }

    /// Whether an extent of the pieces, or the checksums of its data, are of an open transaction,
    /// so that no commit has them yet.
    fn has_uncommitted(&self, pieces: &[Mapped]) -> bool {
        let transactions = self.info.open_transactions();
        pieces.iter().any(|mapped| match &mapped.piece {
            Piece::Extent(extent) => transactions.iter().any(|transaction| {
                transaction.extents().contains_key(&extent.disk_bytenr) || extent.generation == transaction.generation
            }),
            _ => false,
        })
    }

    fn carry_out(
        &self,
        state: &mut InodeState,
        plan: ClonePlan,
        ends: &Ends<'_>,
        transaction: &Transaction,
        surplus: &mut u64,
    ) {
        let sector = u64::from(self.info.volume.sector_size());
        if let Some(content) = plan.inline {
            fill_sector(state, 0, &content, surplus, sector);
        }
        if let Some(growth) = plan.growth {
            self.grow(state, growth, surplus);
        }
        let end = ends.to + plan.len;
        let range = ends.to..end.next_multiple_of(sector);
        if let Some(content) = plan.copied {
            let added = state.dirty.newly_dirty(ends.to, plan.len);
            *surplus = surplus.saturating_sub(added);
            state.reserved += added;
            state.dirty.write(ends.to, &content);
            if ends.to == 0 {
                // The reservation includes two sectors of metadata.
                state.dirty.add_inline_room(self.info.largest_inline());
            }
        } else {
            state.dirty.discard(range.clone());
            *surplus += state.unreserve_clean();
            state.item.nbytes = state.item.nbytes.saturating_sub(plan.freed);
            state.pending.displaced += plan.displaced;
            if self.info.options.faults().repeats_in_flight() {
                state.ordered.repeat(plan.in_flight);
            } else {
                plan.in_flight.into_iter().for_each(|extent| state.ordered.insert(extent));
            }
            self.writeback.note_in_flight(ends.target, state);
            for Mapped { start, len, piece } in plan.pieces {
                let piece = match piece {
                    Piece::Extent(extent) if !extent.prealloc => {
                        let extent = self.info.roots.follow(extent);
                        transaction.add_shared(extent.disk_bytenr);
                        state.item.nbytes = state.item.nbytes.saturating_add(len);
                        Piece::Extent(extent)
                    }
                    _ => Piece::Hole,
                };
                state.pending.layout.replace(start - ends.from + ends.to, len, piece);
            }
        }
        let time = self.info.now();
        state.item.size = state.item.size.max(end);
        state.content_changed(time);
    }
}

/// Returns the ordered extents of the pieces, which reads and fsyncs of the destination need.
fn in_flight(state: &InodeState, pieces: &[Mapped]) -> Vec<Arc<OrderedExtent>> {
    let places = pieces.iter().filter_map(|mapped| match &mapped.piece {
        Piece::Extent(extent) => {
            let (start, len) = extent.on_disk(mapped.len);
            Some(start..start.plus(len))
        }
        _ => None,
    });
    places.flat_map(|place| state.ordered.in_range(place)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use crate::filesystem::Filesystem;
    use ubtrfs_format::items::InodeFlags;
    use ubtrfs_mkfs::MkfsOptions;
    use ubtrfs_volume::{Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

    use super::*;
    use crate::{NewInode, Options, WriteAt};

    fn mounted() -> (tempfile::NamedTempFile, Arc<Filesystem>) {
        const SIZE: u64 = 128 << 20;
        let mut image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(SIZE).unwrap();
        ubtrfs_mkfs::layout(&MkfsOptions::new(SIZE)).unwrap().write(&mut [image.as_file_mut()]).unwrap();
        let device = Arc::new(FileDevice::open(image.path(), OpenMode::ReadWrite, Exclusive::No).unwrap());
        let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
        let fs = Filesystem::open(Arc::new(volume), Options { background_commits: false, ..Options::default() });
        (image, fs.unwrap())
    }

    /// A reflink proceeds in steps, and a step waits for space and for locks, so the state of a
    /// file may have changed when the step gets them.
    #[test]
    fn a_file_that_lost_its_checksums_meanwhile_shares_nothing() {
        let (_image, fs) = mounted();
        let file = |name: &[u8], flags| {
            let new = NewInode { mode: 0o100_644, ..NewInode::default() };
            let id = fs.directories().create(fs.info.root(), name, &new).unwrap();
            fs.inodes().set_flags(id, flags).unwrap();
            fs.files().write(id, WriteAt::Offset(0), &[7; 16 << 10], false).unwrap();
            fs.info.inode(id).unwrap()
        };
        let (with, without) = (file(b"with", 0), file(b"without", InodeFlags::NODATACOW));
        for (source, target) in [(&with, &without), (&without, &with)] {
            let shared =
                fs.ops.files.clone_step(&Ends { source, from: 0, source_end: 16 << 10, target, to: 0 }, 16 << 10);
            let refused = matches!(&shared, Err(error) if error.errno() == Errno::OPNOTSUPP);
            assert!(refused, "{:?}", shared.err());
        }
    }

    /// The first step extends the file, so the rest of the range does not end at the end of the
    /// file any more.
    #[test]
    fn the_end_of_a_file_is_shared_with_itself_though_that_has_grown() {
        let (_image, fs) = mounted();
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let id = fs.directories().create(fs.info.root(), b"file", &new).unwrap();
        fs.files().write(id, WriteAt::Offset(0), &[7; 4196], false).unwrap();
        fs.durability().sync().unwrap();
        let inode = fs.info.inode(id).unwrap();
        let ends = |done| Ends { source: &inode, from: done, source_end: 4196, target: &inode, to: 8192 + done };
        let first = fs.ops.files.clone_step(&ends(0), 4096).unwrap();
        assert!(matches!(first, CloneStep::Done(4096)));
        let rest = fs.ops.files.clone_step(&ends(4096), 100).unwrap();
        assert!(matches!(rest, CloneStep::Done(100)));
        let content = fs.files().read(id, 8192, 8192).unwrap();
        assert!(content == [7; 4196]);
    }
}
