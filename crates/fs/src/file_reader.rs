//! Reads a file through all its layers: dirty data and layouts of the open transaction and of the
//! one that is being committed, then the committed trees. Data in flight takes precedence over the
//! devices.

use std::ops::Range;
use std::sync::Arc;

use ubtrfs_file::{
    ChecksumTree, Checksums, DataSource, ExtentReader, Mapped, NoChecksums, ReadContext, Result as DataResult,
};
use ubtrfs_format::{Logical, TreeId};
use ubtrfs_volume::Volume;

use crate::deferred_reads::{BegunRead, Deferrals};
use crate::error::Result;
use crate::file_map::FileMap;
use crate::fs_info::FsInfo;
use crate::inode::{InodeId, InodeState, OrderedExtents};
use crate::transaction::Transaction;

/// A data source that prefers data in flight to the devices.
struct InFlightFirst<'a> {
    ordered: &'a OrderedExtents,
    volume: &'a Volume,
    /// Collects the reads of devices that are left to the caller, if they may be.
    deferrals: Option<&'a Deferrals>,
}

impl InFlightFirst<'_> {
    /// Copies data in flight into `buf`, and returns the remaining ranges of `buf`, in order.
    fn copy(&self, at: Logical, buf: &mut [u8]) -> Vec<Range<usize>> {
        let mut missing = Vec::new();
        let mut done = 0;
        for extent in self.ordered.in_range(at..at.plus(buf.len() as u64)) {
            let place = |address: u64| (address.saturating_sub(at.0) as usize).min(buf.len());
            let (start, end) = (place(extent.start.0), place(extent.start.0 + extent.len()));
            if done < start {
                missing.push(done..start);
            }
            extent.copy((at.0 + start as u64 - extent.start.0) as usize, &mut buf[start..end]);
            done = end;
        }
        if done < buf.len() {
            missing.push(done..buf.len());
        }
        missing
    }
}

impl DataSource for InFlightFirst<'_> {
    fn read_data(&self, at: Logical, buf: &mut [u8], sums: Option<&[u8]>) -> DataResult<()> {
        let len = buf.len();
        for gap in self.copy(at, buf) {
            // Sums are of equal size, one for each sector.
            let scale = |bytes: usize, sums: usize| (bytes as u64 * sums as u64 / len as u64) as usize;
            let part = sums.and_then(|sums| sums.get(scale(gap.start, sums.len())..scale(gap.end, sums.len())));
            let (at, gap) = (at.plus(gap.start as u64), &mut buf[gap]);
            if self.deferrals.is_some_and(|deferrals| deferrals.defer(self.volume, at, gap, part)) {
                continue;
            }
            ubtrfs_tree::ensure_may_block()?;
            self.volume.read_data(at, gap, part)?;
        }
        Ok(())
    }
}

/// Checksums of uncommitted data, and below them the checksum tree.
struct NewestSums<'a> {
    /// Newest first.
    transactions: &'a [Arc<Transaction>],
    tree: &'a dyn Checksums,
}

impl Checksums for NewestSums<'_> {
    fn lookup(&self, mut at: Logical, len: u64) -> DataResult<Vec<u8>> {
        let Some((newest, older)) = self.transactions.split_first() else { return self.tree.lookup(at, len) };
        if let Some(sums) = newest.new_sums(at, len) {
            return Ok(sums);
        }
        let below = NewestSums { transactions: older, tree: self.tree };
        // A lookup below may read from a device, so it must not happen with the lock held.
        let known: Vec<(u64, Option<Vec<u8>>)> = match &*newest.later_sums() {
            Some(later) => {
                later.pieces(at, len).into_iter().map(|(len, sums)| (len, sums.map(<[u8]>::to_vec))).collect()
            }
            None => vec![(len, None)],
        };
        let mut all = Vec::new();
        for (len, sums) in known {
            match sums {
                Some(sums) => all.extend(sums),
                None => all.extend(below.lookup(at, len)?),
            }
            at = at.plus(len);
        }
        Ok(all)
    }
}

/// Reads the content of files. The callers hold the locks of the files.
pub(crate) struct FileReader {
    info: Arc<FsInfo>,
    extents: ExtentReader,
}

impl FileReader {
    pub(crate) fn new(info: Arc<FsInfo>) -> Self {
        Self { extents: ExtentReader::new(info.volume.sector_size()), info }
    }

    /// Forgets cached content of extents that a commit may have freed.
    pub(crate) fn forget(&self) {
        self.extents.forget();
    }

    /// Reads whole sectors through all layers, and fills each byte of `buf`. Bytes beyond the end
    /// of the file are those of the layers.
    pub(crate) fn read_sectors(&self, id: InodeId, state: &InodeState, at: u64, buf: &mut [u8]) -> Result<()> {
        self.read_layers(id, state, at, buf, None)
    }

    /// Does the same, but leaves reads from devices to the caller; `WouldBlock` if that is
    /// impossible. The file has `len` bytes in these sectors.
    pub(crate) fn begin_read(
        &self,
        id: InodeId,
        state: &InodeState,
        at: u64,
        buf: &mut [u8],
        len: usize,
    ) -> Result<BegunRead> {
        let committed = self.info.committed();
        let deferrals = Deferrals::of(buf);
        ubtrfs_tree::nonblocking(|| self.read_layers(id, state, at, buf, Some(&deferrals)))?;
        Ok(deferrals.into_begun(len, committed))
    }

    fn read_layers(
        &self,
        id: InodeId,
        state: &InodeState,
        at: u64,
        buf: &mut [u8],
        deferrals: Option<&Deferrals>,
    ) -> Result<()> {
        let range = at..at + buf.len() as u64;
        let end = range.end;
        if state.dirty.covers(range.clone()) {
            state.dirty.overlay(at, buf);
            return Ok(());
        }
        let committed = self.info.committed();
        let map = FileMap::new(&committed, id, state)?;
        let rescue = &self.info.options.rescue;
        let superblock = &committed.superblock;
        let checksums: Box<dyn Checksums> = match committed.tree(TreeId::CSUM) {
            Ok(tree) => Box::new(ChecksumTree::new(tree, superblock.checksum, superblock.sector_size)),
            Err(error) if rescue.passes_over(&error) => Box::new(NoChecksums),
            Err(error) => return Err(error),
        };
        let transactions = self.info.open_transactions();
        let sums = NewestSums { transactions: &transactions, tree: &*checksums };
        let source = InFlightFirst { ordered: &state.ordered, volume: &self.info.volume, deferrals };
        let verified = state.has_checksums() && !rescue.ignore_data_checksums;
        let context = ReadContext {
            source: &source,
            checksums: verified.then_some(&sums as &dyn Checksums),
            damage: rescue.pass_over.as_deref(),
        };
        for (start, len, piece) in state.pending.layout.get(range) {
            let part = &mut buf[(start - at) as usize..(start - at + len) as usize];
            if state.dirty.covers(start..start + len) {
                continue;
            }
            if let Some(piece) = piece {
                self.extents.read(context, &[Mapped { start, len, piece }], start, part)?;
                continue;
            }
            let frozen_dirty = state.frozen.as_ref().map(|frozen| &frozen.dirty);
            if !frozen_dirty.is_some_and(|dirty| dirty.covers(start..start + len)) {
                let pieces = map.with_lower(state, |stack| stack.resolve(start..start + len))?;
                self.extents.read(context, &pieces, start, part)?;
            }
            if let Some(dirty) = frozen_dirty {
                dirty.overlay(start, part);
            }
        }
        state.dirty.overlay(at, buf);
        if deferrals.is_some_and(|deferrals| !deferrals.is_empty())
            && state.dirty_layers().any(|dirty| dirty.next_run(at, 1).is_some_and(|(start, _)| start < end))
        {
            // The data that the caller reads later would hide newer data.
            ubtrfs_tree::nonblocking(ubtrfs_tree::ensure_may_block)?;
        }
        Ok(())
    }

    /// Whether there is data or dirty data in the sector at `at`.
    pub(crate) fn has_data(&self, id: InodeId, state: &InodeState, at: u64) -> Result<bool> {
        if state.dirty_layers().any(|dirty| dirty.covers(at..at + 1)) {
            return Ok(true);
        }
        let pieces = self.info.view(id, state).pieces(at..at + 1)?;
        Ok(pieces.iter().any(|mapped| mapped.piece.is_data()))
    }

    /// Returns the bytes on disk of the content from `from` on.
    pub(crate) fn bytes_beyond(&self, id: InodeId, state: &InodeState, from: u64) -> Result<u64> {
        if from == 0 {
            return Ok(0);
        }
        let map = self.info.view(id, state).map()?;
        let mut bytes = 0;
        map.with_stack(state, |stack| -> Result<()> {
            for mapped in stack.pieces(from..u64::MAX) {
                bytes += mapped?.allocated();
            }
            Ok(())
        })?;
        Ok(bytes)
    }
}
