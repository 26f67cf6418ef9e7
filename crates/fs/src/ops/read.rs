//! Reads content and symlinks, and finds data and holes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_file::{Result as DataResult, Seek, Verity, VerityDigest, VeritySource};
use ubtrfs_format::items::FileType;

use super::checks::has_verity;
use super::operations::FileOperations;
use crate::deferred_reads::BegunRead;
use crate::error::{Errno, Error, Result, Step};
use crate::inode::{InodeId, InodeState};

/// The most bytes that are read and verified against a Merkle tree at once.
const MAX_PROVED: u64 = 1 << 20;
/// The most files whose Merkle trees are kept in memory.
const MAX_VERITIES: usize = 16;

impl FileOperations {
    /// Whether fs-verity protects the content of a file, so that nobody may write to it.
    pub fn has_verity(&self, id: InodeId) -> bool {
        self.info.inode(id).is_ok_and(|inode| has_verity(&inode.read()))
    }

    /// Reads up to `len` bytes from `offset`; fewer at the end of the file.
    pub fn read(&self, id: InodeId, offset: u64, len: usize) -> Result<Vec<u8>> {
        // This value would show bytes that a read has not filled.
        const POISON: u8 = 0xA5;
        let size = self.info.inode(id)?.read().item.size;
        let mut data = vec![POISON; (len as u64).min(size.saturating_sub(offset)) as usize];
        let read = self.read_into(id, offset, &mut data)?;
        data.truncate(read);
        Ok(data)
    }

    /// Reads from `offset` on into `buf`, up to the end of the file, and returns the number of
    /// bytes read. No intermediate copy is made if the offset and the end are multiples of the
    /// sector size and the memory is aligned to 4096 bytes. Bytes of `buf` beyond the end of the
    /// file may change, too.
    pub fn read_into(&self, id: InodeId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.read_into_unseen(id, offset, buf)?;
        if read > 0 {
            self.access_times.touch(&self.info.inode(id)?)?;
        }
        Ok(read)
    }

    /// Does the same without updating the access time, as for a file that was opened with
    /// `O_NOATIME`.
    pub fn read_into_unseen(&self, id: InodeId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.info.inode(id)?;
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
        if has_verity(&state) && !self.info.options.rescue.reads_unproved() {
            self.read_proved(id, &state, offset, &mut buf[..len]).map_err(|error| self.unreadable(id, error))?;
            self.info.counters.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
            return Ok(len);
        }
        let sector = u64::from(self.info.volume.sector_size());
        let skip = (offset % sector) as usize;
        let whole = (skip + len).next_multiple_of(sector as usize);
        if let Some(sectors) = buf.get_mut(..whole).filter(|_| skip == 0) {
            self.reader.read_sectors(id, &state, offset, sectors).map_err(|error| self.unreadable(id, error))?;
        } else {
            let mut sectors = vec![0; whole];
            let read = self.reader.read_sectors(id, &state, offset - skip as u64, &mut sectors);
            read.map_err(|error| self.unreadable(id, error))?;
            buf[..len].copy_from_slice(&sectors[skip..skip + len]);
        }
        self.info.counters.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }

    /// Reads whole blocks of a file that fs-verity protects, and verifies each of them.
    fn read_proved(&self, id: InodeId, state: &InodeState, offset: u64, buf: &mut [u8]) -> Result<()> {
        ubtrfs_tree::ensure_may_block()?;
        let source = self.verity_source(id, state)?;
        let verity = self.verity_of(id, state, &source)?;
        let block = verity.block() as u64;
        let unit = block.max(self.info.volume.sector_size().into());
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let start = at - at % unit;
            let end = (offset + buf.len() as u64).min(start + MAX_PROVED).next_multiple_of(unit);
            let mut content = vec![0; (end - start) as usize];
            self.reader.read_sectors(id, state, start, &mut content)?;
            let size = state.item.size.saturating_sub(start) as usize;
            content[size.min((end - start) as usize)..].fill(0);
            for (number, content) in (start / block..).zip(content.chunks(block as usize)) {
                // The file has no block behind its end.
                if number * block < state.item.size {
                    verity.prove(&source, id.ino, number, content).map_err(Error::from)?;
                }
            }
            let skip = (at - start) as usize;
            let len = (content.len() - skip).min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&content[skip..skip + len]);
            done += len;
        }
        Ok(())
    }

    /// Returns the Merkle tree of a file. Those of the last few files are kept in memory.
    fn verity_of(&self, id: InodeId, state: &InodeState, source: &VeritySource<'_>) -> Result<Arc<Verity>> {
        let kept = self.verities.lock().iter().find(|(kept, _)| *kept == id).map(|(_, verity)| Arc::clone(verity));
        if let Some(verity) = kept {
            return Ok(verity);
        }
        let verity = Arc::new(Verity::load(source, id.ino, state.item.size)?);
        let mut kept = self.verities.lock();
        kept.truncate(MAX_VERITIES - 1);
        kept.push_front((id, Arc::clone(&verity)));
        Ok(verity)
    }

    /// Returns where the verity items of a file are: in a batch or in the committed tree.
    fn verity_source<'a>(&self, id: InodeId, state: &'a InodeState) -> Result<VeritySource<'a>> {
        match state.batches().find_map(|batch| batch.verity.as_deref()) {
            Some(items) => Ok(VeritySource::Pending(items)),
            None => Ok(VeritySource::Committed(self.info.committed().tree(id.subvolume)?)),
        }
    }

    /// Returns the fs-verity digest of a file. `ENODATA` if fs-verity does not protect the file.
    pub fn verity_digest(&self, id: InodeId) -> Result<VerityDigest> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        if !has_verity(&state) {
            return Err(Errno::NODATA.into());
        }
        let source = self.verity_source(id, &state)?;
        self.verity_of(id, &state, &source).map(|verity| verity.digest().clone())
    }

    /// Begins to read as [`Self::read_into`] does. The caller completes the reads from devices.
    /// `EAGAIN` if this is impossible, would block, or has failed.
    pub fn begin_read(&self, id: InodeId, offset: u64, buf: &mut [u8], seen: bool) -> Result<BegunRead> {
        let inode = self.info.inode(id)?;
        let begun = {
            let state = inode.try_read().ok_or(Errno::AGAIN)?;
            let len = (buf.len() as u64).min(state.item.size.saturating_sub(offset)) as usize;
            let sector = u64::from(self.info.volume.sector_size());
            let sectors = buf.get_mut(..len.next_multiple_of(sector as usize));
            let is_plain = state.file_type() == FileType::Regular && !has_verity(&state);
            match sectors.filter(|_| is_plain && offset.is_multiple_of(sector)) {
                // The caller then reads the file in the usual way, which reports the error.
                Some(sectors) => self.reader.begin_read(id, &state, offset, sectors, len).map_err(|_| Errno::AGAIN)?,
                None => return Err(Errno::AGAIN.into()),
            }
        };
        if seen && begun.len > 0 {
            self.access_times.touch(&inode)?;
        }
        self.info.counters.bytes_read.fetch_add(begun.len as u64, Ordering::Relaxed);
        Ok(begun)
    }

    /// Describes the error of reading a file's content, and records it if it is `EIO`.
    fn unreadable(&self, id: InodeId, error: impl Into<Error>) -> Error {
        let error = error.into().at(Step::ReadData { subvolume: id.subvolume, ino: id.ino });
        if error.errno() == Errno::IO {
            self.info.writability.last_errors().note(&error);
        }
        error
    }

    /// The target of a symlink.
    pub fn read_link(&self, id: InodeId) -> Result<Vec<u8>> {
        let inode = self.info.inode(id)?;
        let mut target = vec![0; self.info.volume.sector_size() as usize];
        {
            let state = inode.read();
            if state.file_type() != FileType::Symlink {
                return Err(Errno::INVAL.into());
            }
            let len = state.item.size.min(u64::from(self.info.volume.sector_size()));
            self.reader.read_sectors(id, &state, 0, &mut target)?;
            target.truncate(len as usize);
        }
        self.access_times.touch(&inode)?;
        Ok(target)
    }

    /// Returns the first offset from `from` on that holds data. `ENXIO` beyond the last data.
    pub fn seek_data(&self, id: InodeId, from: u64) -> Result<u64> {
        self.seek(id, |seek| seek.next_data(from))
    }

    /// Returns the first offset from `from` on that holds no data, which may be the end of the
    /// file. `ENXIO` beyond the end.
    pub fn seek_hole(&self, id: InodeId, from: u64) -> Result<u64> {
        self.seek(id, |seek| seek.next_hole(from))
    }

    fn seek(&self, id: InodeId, look: impl FnOnce(Seek<'_>) -> DataResult<Option<u64>>) -> Result<u64> {
        let inode = self.info.inode(id)?;
        let state = inode.read();
        if state.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        // Dirty data of the frozen layer lies below the holes of the pending layer. A file with
        // frozen dirty data that has been truncated since is rare, and it is allowed to report data
        // where there are zeroes.
        let dirty: Vec<_> = state.dirty_layers().collect();
        let map = self.info.view(id, &state).map()?;
        let size = state.item.size;
        let found = map.with_stack(&state, |stack| look(Seek { dirty: &dirty, stack, size }))?;
        found.ok_or_else(|| Errno::NXIO.into())
    }
}
