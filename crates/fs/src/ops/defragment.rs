//! Defragmentation: rewrites parts of a file that lie in many places on disk, so that they lie in
//! few.
//!
//! Content, size and times stay as they are. For the transaction each step is an overwrite with the
//! same bytes, except that the inode's flags do not decide where the bytes go.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use ubtrfs_file::{CompressionMethod, DefragmentPolicy, DefragmentRun, Fragments, MAX_PACKED, Piece, Recompression};
use ubtrfs_format::items::{Compression, FileType};

use super::operations::FileOperations;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState};
use crate::item_sizes::{FILE_EXTENT_ITEM, INODE_ITEM};
use crate::writeback::{Cause, Packed};
use ubtrfs_space::Demand;

/// Bytes that one step rewrites, with the inode locked.
const STEP: u64 = 8 << 20;
/// The same if the caller may have chosen a slow compression level; a compressed extent is smaller
/// anyway.
const STEP_COMPRESSING: u64 = 1 << 20;
/// Pieces of a file that one step looks at, and so the most that it displaces (invariant 26).
const PIECES: usize = 2048;
/// Number of fragments after which a step checks for the first time whether it has found enough.
const FIRST_LOOK: usize = 4;
/// Attempts at a step that commits interrupt.
const ATTEMPTS: usize = 3;

/// How a file is defragmented.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defragmentation {
    /// The part of the file.
    pub range: Range<u64>,
    /// A contiguous part of the file of at least this many bytes stays where it is.
    pub extent_threshold: u64,
    /// How the rewritten data is compressed.
    pub compression: Recompression,
    /// Whether extents that are shared with other files or snapshots are rewritten, too, so that
    /// they take space of their own from then on.
    pub unshare: bool,
}

impl Default for Defragmentation {
    /// The kernel's defaults, except that shared extents stay.
    fn default() -> Self {
        let extent_threshold = 256 << 10;
        Self { range: 0..u64::MAX, extent_threshold, compression: Recompression::Keep, unshare: false }
    }
}

/// The result of a search for a run to rewrite.
struct Found {
    /// The part to rewrite.
    run: Option<DefragmentRun>,
    /// Where the next search begins if there is no such part.
    next: u64,
}

impl FileOperations {
    /// Rewrites parts of a regular file so that they lie in fewer places on disk, or are compressed
    /// in another way. Content and times stay. Returns the number of bytes that were rewritten.
    /// After an error the finished steps stay done.
    ///
    /// It takes as much free space as it writes, until the next commit frees the old extents.
    /// `EINVAL` if the inode is not a regular file.
    pub fn defragment(&self, id: InodeId, how: &Defragmentation) -> Result<u64> {
        self.defragment_while(id, how, &|| true)
    }

    /// Does the same, but calls `goes_on` before each part, and ends with `ECANCELED` once it
    /// returns false.
    pub fn defragment_while(&self, id: InodeId, how: &Defragmentation, goes_on: &dyn Fn() -> bool) -> Result<u64> {
        self.info.check_writable(id.subvolume)?;
        let inode = self.info.inode(id)?;
        if inode.read().file_type() != FileType::Regular {
            return Err(Errno::INVAL.into());
        }
        let sector = u64::from(self.info.volume.sector_size());
        let mut at = how.range.start - how.range.start % sector;
        let (mut moved, mut attempts) = (0, 0);
        let mut before = None;
        loop {
            if !goes_on() {
                return Err(Errno::CANCELED.into());
            }
            self.throttle()?;
            let end = how.range.end.min(inode.read().item.size);
            if at >= end {
                return Ok(moved);
            }
            let found = self.find_run(id, &inode.read(), how, at, before.as_ref())?;
            let Some(run) = found.run else {
                (at, before) = (found.next, None);
                continue;
            };
            attempts += 1;
            let written = self.rewrite_run(&inode, how, at, before.as_ref(), &run)?;
            match written {
                // A commit has taken the dirty data meanwhile, and wrote it according to the
                // inode's flags.
                None if attempts < ATTEMPTS => continue,
                Some(written) => {
                    moved += written.range.end - written.range.start;
                    at = written.range.end;
                    before = Some(written);
                }
                None => (at, before) = (run.range.end, None),
            }
            attempts = 0;
        }
    }

    /// Looks for the first part from `at` on that is worth rewriting.
    fn find_run(
        &self,
        id: InodeId,
        state: &InodeState,
        how: &Defragmentation,
        at: u64,
        before: Option<&DefragmentRun>,
    ) -> Result<Found> {
        let sector = u64::from(self.info.volume.sector_size());
        let end = how.range.end.min(state.item.size).checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        let policy = DefragmentPolicy { extent_threshold: how.extent_threshold, compression: how.compression };
        let mut fragments = Fragments::new(policy);
        let mut sharing = self.writeback.sharing(id);
        let step = if matches!(how.compression, Recompression::With { .. }) { STEP_COMPRESSING } else { STEP };
        // Checking all fragments takes longer the more there are.
        let mut next_look = FIRST_LOOK;
        let map = self.info.view(id, state).map()?;
        let looked_until = map.with_stack(state, |stack| -> Result<u64> {
            let mut until = at;
            for piece in stack.pieces(at..end.max(at)).take(PIECES) {
                let piece = piece?;
                until = piece.end();
                if let Piece::Extent(extent) = &piece.piece
                    && !extent.prealloc
                    && (how.unshare || !sharing.is_shared(piece.start, extent)?)
                {
                    fragments.add(piece.start, piece.len, extent);
                }
                let is_time = fragments.count() >= next_look;
                if is_time {
                    next_look *= 2;
                }
                if fragments.movable() >= 2 * STEP || is_time && fragments.is_settled(before, step) {
                    break;
                }
            }
            Ok(until)
        })?;
        let run = fragments.first_run(before, step);
        // The data behind the last fragment may make that fragment worth rewriting.
        let last = fragments.last().filter(|last| last.end == looked_until && last.start > at && looked_until < end);
        Ok(Found { run, next: last.map_or(looked_until.max(at + 1), |last| last.start) })
    }

    /// Rewrites a run that was found from `at` on, as far as it still exists. `None` if this must
    /// be tried again.
    fn rewrite_run(
        &self,
        inode: &Arc<Inode>,
        how: &Defragmentation,
        at: u64,
        before: Option<&DefragmentRun>,
        run: &DefragmentRun,
    ) -> Result<Option<DefragmentRun>> {
        let len = run.range.end - run.range.start;
        let sectors = len / u64::from(self.info.volume.sector_size());
        let sum_bytes = sectors * self.info.volume.checksum().size() as u64;
        let demand = Demand {
            data: len,
            edits: 8,
            item_bytes: INODE_ITEM + (2 + len / MAX_PACKED) * 2 * FILE_EXTENT_ITEM + sum_bytes,
            ..Demand::default()
        };
        let _reservation = self.reserver.reserve(demand)?;
        let mut surplus = len;
        let result = self.rewrite_reserved(inode, how, (at, before), &mut surplus);
        self.info.unreserve_data(surplus);
        result
    }

    fn rewrite_reserved(
        &self,
        inode: &Arc<Inode>,
        how: &Defragmentation,
        (at, before): (u64, Option<&DefragmentRun>),
        surplus: &mut u64,
    ) -> Result<Option<DefragmentRun>> {
        let reserved = *surplus;
        let mut state = inode.write();
        if state.dead {
            return Err(Errno::NOENT.into());
        }
        let run = self.info.gate.transact(
            &mut *state,
            |state, _| {
                self.write_back_all(inode, state)?;
                let Some(mut run) = self.find_run(inode.id, state, how, at, before)?.run else {
                    return Ok(ControlFlow::Break(None));
                };
                run.range.end = run.range.end.min(run.range.start + reserved);
                let mut content = vec![0; (run.range.end - run.range.start) as usize];
                self.reader.read_sectors(inode.id, state, run.range.start, &mut content)?;
                Ok(ControlFlow::Continue((run, content)))
            },
            |state, (run, content), transaction| {
                state.join(inode, transaction);
                let added = state.dirty.newly_dirty(run.range.start, content.len() as u64);
                state.dirty.write(run.range.start, &content);
                state.reserved += added;
                *surplus = surplus.saturating_sub(added);
                Some(run)
            },
        )?;
        let Some(run) = run else { return Ok(None) };
        let packed = match how.compression {
            Recompression::Keep if run.compression == Compression::None => {
                self.writeback.pack_pending(inode.id, &state, Cause::Defragmentation)?
            }
            Recompression::Keep => {
                self.writeback.pack_pending_by(inode.id, &state, CompressionMethod::new(run.compression, 0))?
            }
            Recompression::Remove => Packed::default(),
            Recompression::With { algorithm, level } => {
                let method = CompressionMethod::new(algorithm, level.unwrap_or_default());
                self.writeback.pack_pending_by(inode.id, &state, method)?
            }
        };
        let written = self.start_writeback(inode, &mut state, Cause::Defragmentation, packed)?;
        Ok(written.then_some(run))
    }
}
