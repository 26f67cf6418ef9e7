//! Reading: content, symlinks, where data is.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::FileType;
use ubtrfs_format::{Logical, TreeId};
use ubtrfs_volume::Volume;

use crate::committed::Committed;
use crate::error::{Errno, Result};
use crate::file::committed::{Committed as CommittedPieces, PieceSource, Unborn};
use crate::file::csums::{ChecksumTree, Checksums, NoChecksums};
use crate::file::error::Result as DataResult;
use crate::file::extent_reader::{DataSource, ReadContext};
use crate::file::piece::Mapped;
use crate::file::resolve::Stack;
use crate::file::seek::Seek;
use crate::filesystem::Filesystem;
use crate::inode::{InodeId, InodeState, OrderedExtent};
use crate::transaction::Transaction;

/// The devices, and before them what is on its way there.
struct InFlightFirst<'a> {
    ordered: &'a [Arc<OrderedExtent>],
    volume: &'a Volume,
}

impl InFlightFirst<'_> {
    /// Copies what is on its way into `buf`, newest first; returns the ranges of `buf` that are
    /// not, in order.
    fn copy(&self, at: Logical, buf: &mut [u8]) -> Vec<Range<usize>> {
        let mut missing: Vec<Range<usize>> = std::iter::once(0..buf.len()).collect();
        for extent in self.ordered.iter().rev() {
            let (from, to) =
                (extent.start.0.saturating_sub(at.0), extent.start.plus(extent.len()).0.saturating_sub(at.0));
            let there = (from as usize).min(buf.len())..(to as usize).min(buf.len());
            if there.is_empty() {
                continue;
            }
            let mut left = Vec::new();
            for gap in missing {
                let (start, end) = (gap.start.max(there.start), gap.end.min(there.end));
                if start >= end {
                    left.push(gap);
                    continue;
                }
                extent.copy((at.0 + start as u64 - extent.start.0) as usize, &mut buf[start..end]);
                left.extend([gap.start..start, end..gap.end].into_iter().filter(|rest| !rest.is_empty()));
            }
            missing = left;
            if missing.is_empty() {
                break;
            }
        }
        missing
    }
}

impl DataSource for InFlightFirst<'_> {
    fn read_data(&self, at: Logical, buf: &mut [u8], sums: Option<&[u8]>) -> DataResult<()> {
        let len = buf.len();
        for gap in self.copy(at, buf) {
            ubtrfs_tree::ensure_may_block()?;
            // Sums are of equal size, one for each sector.
            let scale = |bytes: usize, sums: usize| (bytes as u64 * sums as u64 / len as u64) as usize;
            let part = sums.and_then(|sums| sums.get(scale(gap.start, sums.len())..scale(gap.end, sums.len())));
            self.volume.read_data(at.plus(gap.start as u64), &mut buf[gap], part)?;
        }
        Ok(())
    }
}

/// Checksums of data that no commit knows yet, and below them the checksum tree.
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
        // Looking below may take a device: not with the lock held.
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

/// What the map of a file is made of, for as long as its lock is held.
pub(crate) struct FileMap {
    bottom: Box<dyn PieceSource>,
}

impl FileMap {
    pub(crate) fn new(committed: &Arc<Committed>, id: InodeId, state: &InodeState) -> Result<Self> {
        let bottom: Box<dyn PieceSource> = if state.committed {
            let sector_size = committed.superblock.sector_size;
            Box::new(CommittedPieces::new(committed.tree(id.subvolume)?, id.ino, sector_size))
        } else {
            Box::new(Unborn)
        };
        Ok(Self { bottom })
    }

    /// All layers.
    pub(crate) fn with_stack<T>(&self, state: &InodeState, look: impl FnOnce(Stack<'_>) -> T) -> T {
        match &state.frozen {
            Some(frozen) => look(Stack::new(&[&state.pending.layout, &frozen.batch.layout], &*self.bottom)),
            None => look(Stack::new(&[&state.pending.layout], &*self.bottom)),
        }
    }

    /// What lies below the pending layer.
    fn with_lower<T>(&self, state: &InodeState, look: impl FnOnce(Stack<'_>) -> T) -> T {
        match &state.frozen {
            Some(frozen) => look(Stack::new(&[&frozen.batch.layout], &*self.bottom)),
            None => look(Stack::new(&[], &*self.bottom)),
        }
    }

    /// The committed tree's layer.
    pub(crate) fn bottom(&self) -> &dyn PieceSource {
        &*self.bottom
    }

    /// What lies below the frozen layer.
    pub(crate) fn committed(&self) -> Stack<'_> {
        Stack::new(&[], &*self.bottom)
    }
}

impl Filesystem {
    /// Whether all of a range has been written lately, so that reading it takes no device. Says no
    /// if it would have to wait to know.
    pub fn is_dirty(&self, id: InodeId, offset: u64, len: u64) -> bool {
        let Some(inode) = self.inodes.get(id) else { return false };
        inode.try_read().is_some_and(|state| {
            let end = offset.saturating_add(len).min(state.item.size);
            offset >= end || state.dirty.covers(offset..end)
        })
    }

    /// Reads up to `len` bytes from `offset`; fewer at the end of the file.
    pub fn read(&self, id: InodeId, offset: u64, len: usize) -> Result<Vec<u8>> {
        // What no read fills would show.
        const POISON: u8 = 0xA5;
        let size = self.inode(id)?.read().item.size;
        let mut data = vec![POISON; (len as u64).min(size.saturating_sub(offset)) as usize];
        let read = self.read_into(id, offset, &mut data)?;
        data.truncate(read);
        Ok(data)
    }

    /// Reads from `offset` on into `buf`, as much of it as the file has, and returns how many bytes
    /// that is. Nothing is copied on the way where offset and end are at sectors' bounds and the
    /// memory is aligned to 4096 bytes. What is behind the end of the file in `buf` may change,
    /// too.
    pub fn read_into(&self, id: InodeId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.read_into_unseen(id, offset, buf)?;
        if read > 0 {
            self.touch_atime(&self.inode(id)?);
        }
        Ok(read)
    }

    /// The same without a change of the access time, as for a file that was opened with
    /// `O_NOATIME`.
    pub fn read_into_unseen(&self, id: InodeId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inode(id)?;
        let state = inode.read();
        match state.file_type() {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::INVAL.into()),
        }
        let len = (buf.len() as u64).min(state.item.size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let sector = u64::from(self.volume.sector_size());
        let skip = (offset % sector) as usize;
        let whole = (skip + len).next_multiple_of(sector as usize);
        if let Some(sectors) = buf.get_mut(..whole).filter(|_| skip == 0) {
            self.read_sectors(id, &state, offset, sectors)?;
        } else {
            let mut sectors = vec![0; whole];
            self.read_sectors(id, &state, offset - skip as u64, &mut sectors)?;
            buf[..len].copy_from_slice(&sectors[skip..skip + len]);
        }
        self.counters.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }

    /// Reads whole sectors through all layers, each byte of them. What lies beyond the end of the
    /// file is as the layers have it.
    pub(crate) fn read_sectors(&self, id: InodeId, state: &InodeState, at: u64, buf: &mut [u8]) -> Result<()> {
        let range = at..at + buf.len() as u64;
        if state.dirty.covers(range.clone()) {
            state.dirty.overlay(at, buf);
            return Ok(());
        }
        let committed = self.committed();
        let map = FileMap::new(&committed, id, state)?;
        let rescue = &self.options.rescue;
        let superblock = &committed.superblock;
        let checksums: Box<dyn Checksums> = match committed.tree(TreeId::CSUM) {
            Ok(tree) => Box::new(ChecksumTree::new(tree, superblock.checksum, superblock.sector_size)),
            Err(error) if rescue.passes_over(&error) => Box::new(NoChecksums),
            Err(error) => return Err(error),
        };
        let transactions = self.open_transactions();
        let sums = NewestSums { transactions: &transactions, tree: &*checksums };
        let source = InFlightFirst { ordered: &state.ordered, volume: &self.volume };
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
                self.reader.read(context, &[Mapped { start, len, piece }], start, part)?;
                continue;
            }
            let frozen_dirty = state.frozen.as_ref().map(|frozen| &frozen.dirty);
            if !frozen_dirty.is_some_and(|dirty| dirty.covers(start..start + len)) {
                let pieces = map.with_lower(state, |stack| stack.resolve(start..start + len))?;
                self.reader.read(context, &pieces, start, part)?;
            }
            if let Some(dirty) = frozen_dirty {
                dirty.overlay(start, part);
            }
        }
        state.dirty.overlay(at, buf);
        Ok(())
    }

    /// Where a symlink leads.
    pub fn read_link(&self, id: InodeId) -> Result<Vec<u8>> {
        let inode = self.inode(id)?;
        let mut target = vec![0; self.volume.sector_size() as usize];
        {
            let state = inode.read();
            if state.file_type() != FileType::Symlink {
                return Err(Errno::INVAL.into());
            }
            let len = state.item.size.min(u64::from(self.volume.sector_size()));
            self.read_sectors(id, &state, 0, &mut target)?;
            target.truncate(len as usize);
        }
        self.touch_atime(&inode);
        Ok(target)
    }

    /// The first offset from `from` on that holds data. `ENXIO` beyond the last data.
    pub fn seek_data(&self, id: InodeId, from: u64) -> Result<u64> {
        self.seek(id, |seek| seek.next_data(from))
    }

    /// The first offset from `from` on that holds none; the file's end counts. `ENXIO` beyond it.
    pub fn seek_hole(&self, id: InodeId, from: u64) -> Result<u64> {
        self.seek(id, |seek| seek.next_hole(from))
    }

    fn seek(&self, id: InodeId, look: impl FnOnce(Seek<'_>) -> DataResult<Option<u64>>) -> Result<u64> {
        let inode = self.inode(id)?;
        let state = inode.read();
        if state.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        let committed = self.committed();
        let map = FileMap::new(&committed, id, &state)?;
        let size = state.item.size;
        let found = match &state.frozen {
            Some(frozen) => {
                // Dirty data of the frozen layer lies below the pending layer's holes; a file that
                // is both dirty there and cut since is rare, and showing data where there are
                // zeroes is allowed.
                let dirty = [&state.dirty, &frozen.dirty];
                map.with_stack(&state, |stack| look(Seek { dirty: &dirty, stack, size }))
            }
            None => map.with_stack(&state, |stack| look(Seek { dirty: &[&state.dirty], stack, size })),
        }?;
        found.ok_or_else(|| Errno::NXIO.into())
    }
}
