//! Content of files.

use ubtrfs_file::{CompressionMode, VerityDigest, VerityParameters};

use super::Filesystem;
use crate::error::Result;
use crate::inode::InodeId;
use crate::ops::{Defragmentation, FoundExtent, WriteAt, has_verity};

impl Filesystem {
    /// Makes `len` bytes of a file from `to_offset` on the same as those of another from
    /// `from_offset` on, by sharing their extents. Returns the number of bytes that it shared:
    /// fewer where the source ends, where the range does not end with a sector, and after an error
    /// in between.
    ///
    /// `EOPNOTSUPP` if these can't share: the offsets are not those of sectors, or one file has
    /// checksums and the other has not. `EINVAL` if the ranges overlap.
    pub fn clone_range(
        &self,
        source: InodeId,
        from_offset: u64,
        target: InodeId,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.ops.clone_range(source, from_offset, target, to_offset, len, usize::MAX)
    }

    /// The same of the first extents of the range, as many as take no long time. Zero only where
    /// nothing is to be shared.
    pub fn clone_some(
        &self,
        source: InodeId,
        from_offset: u64,
        target: InodeId,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        /// Each of these takes up to 64 extents, and at most three are commits.
        const STEPS: usize = 20;
        self.ops.clone_range(source, from_offset, target, to_offset, len, STEPS)
    }

    /// Reserves space for a range of a file, so that writing there cannot fail for lack of it (but
    /// for extents that become shared meanwhile). Existing data stays. Unless `keep_size`, the file
    /// is extended to the end of the range.
    ///
    /// A range that takes more than a thousand extents gets them in steps; each is done whole or
    /// not at all, and the size changes with the last.
    pub fn allocate(&self, id: InodeId, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        self.ops.allocate(id, offset, len, keep_size)
    }

    /// Makes a range of a file read as zeroes, with space reserved for it. Unless `keep_size`, the
    /// file is extended to the end of the range. It proceeds in steps as [`Self::allocate`] does.
    pub fn zero_range(&self, id: InodeId, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        self.ops.zero_range(id, offset, len, keep_size)
    }

    /// Rewrites parts of a regular file so that they lie in fewer places on disk, or are
    /// compressed otherwise. Content and times stay. Returns how many bytes were rewritten; what
    /// was done stays done after an error.
    ///
    /// It takes as much free space as it writes, until the next commit frees the old extents.
    /// `EINVAL` if it is no regular file.
    pub fn defragment(&self, id: InodeId, how: &Defragmentation) -> Result<u64> {
        self.ops.defragment(id, how, &|| true)
    }

    /// The same, but it ends with `ECANCELED` once `goes_on` says no, which it is asked before each
    /// part.
    pub fn defragment_while(&self, id: InodeId, how: &Defragmentation, goes_on: &dyn Fn() -> bool) -> Result<u64> {
        self.ops.defragment(id, how, goes_on)
    }

    /// Makes a range of a file read as zeroes and frees its whole sectors. The size stays. A range
    /// of many pieces is emptied in steps, each whole or not done, since one transaction may not
    /// hold all of them (invariant 26).
    pub fn punch_hole(&self, id: InodeId, offset: u64, len: u64) -> Result<()> {
        self.ops.punch_hole(id, offset, len)
    }

    /// Reads up to `len` bytes from `offset`; fewer at the end of the file.
    pub fn read(&self, id: InodeId, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.ops.read(id, offset, len)
    }

    /// Reads from `offset` on into `buf`, as much of it as the file has, and returns how many bytes
    /// that is. No intermediate copy is made where offset and end are at sectors' bounds and the
    /// memory is aligned to 4096 bytes. Bytes of `buf` beyond the end of the file may change, too.
    pub fn read_into(&self, id: InodeId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.ops.read_into(id, offset, buf)
    }

    /// The same without a change of the access time, as for a file that was opened with
    /// `O_NOATIME`.
    pub fn read_into_unseen(&self, id: InodeId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.ops.read_into_unseen(id, offset, buf)
    }

    /// The target of a symlink.
    pub fn read_link(&self, id: InodeId) -> Result<Vec<u8>> {
        self.ops.read_link(id)
    }

    /// The first offset from `from` on that holds data. `ENXIO` beyond the last data.
    pub fn seek_data(&self, id: InodeId, from: u64) -> Result<u64> {
        self.ops.seek_data(id, from)
    }

    /// The first offset from `from` on that holds none; the file's end counts. `ENXIO` beyond it.
    pub fn seek_hole(&self, id: InodeId, from: u64) -> Result<u64> {
        self.ops.seek_hole(id, from)
    }

    /// The parts of a regular file from the offset `from` on that are not holes, in order, at most
    /// `most` of them: where they are, and whether they are shared. Data that was not written back
    /// has no place yet, and is left out. Other inodes have none.
    pub fn extents(&self, id: InodeId, from: u64, most: usize) -> Result<Vec<FoundExtent>> {
        self.ops.extents(id, from, most)
    }

    /// Writes. `kill_privileges`: set-id bits and capabilities are cleared, as for a write by a
    /// process without privileges.
    pub fn write(&self, id: InodeId, at: WriteAt, data: &[u8], kill_privileges: bool) -> Result<usize> {
        self.ops.write(id, at, data, kill_privileges, false)
    }

    /// The same by a descriptor with `O_DIRECT`: the data is not compressed.
    pub fn write_directly(&self, id: InodeId, at: WriteAt, data: &[u8], kill_privileges: bool) -> Result<usize> {
        self.ops.write(id, at, data, kill_privileges, true)
    }

    /// What fs-verity measures a file to be. `ENODATA` if it does not protect the file.
    pub fn verity_digest(&self, id: InodeId) -> Result<VerityDigest> {
        self.ops.verity_digest(id)
    }

    /// Puts a file under the protection of fs-verity, for good: when this returns, it is durable
    /// that its content is what it is now, and that nobody writes to it. A crash before leaves a
    /// file like others.
    ///
    /// `EEXIST` if it is protected already, `EISDIR` and `EINVAL` if it is no regular file,
    /// `EINVAL` for parameters that fs-verity does not have, `ETXTBSY` if the file is being written
    /// to, and `EFBIG` if its tree of hashes takes more than a sixteenth of the mount's memory.
    pub fn enable_verity(&self, id: InodeId, parameters: &VerityParameters) -> Result<()> {
        self.ops.enable_verity(id, parameters)
    }

    /// Whether fs-verity protects the content of a file, so that nobody may write to it.
    pub fn has_verity(&self, id: InodeId) -> bool {
        self.info.inode(id).is_ok_and(|inode| has_verity(&inode.read()))
    }

    /// Whether it may protect any.
    pub fn uses_verity(&self) -> bool {
        self.info.uses_verity()
    }

    /// How data is compressed as it is written, as [`Options::compression`](crate::Options) says
    /// it at first.
    pub fn compression(&self) -> Option<CompressionMode> {
        self.info.file_defaults.compression()
    }

    /// The most threads that compress data of one file at a time.
    pub fn compression_threads(&self) -> usize {
        self.writeback.compression_threads()
    }

    /// Changes that.
    pub fn set_compression_threads(&self, threads: usize) {
        self.writeback.set_compression_threads(threads);
    }

    /// Flags that new regular files get, of `NODATACOW` and `NODATASUM`.
    pub fn new_file_flags(&self) -> u64 {
        self.info.file_defaults.flags_of_new_files()
    }

    /// Changes those of files that are made from now on.
    pub fn set_new_file_flags(&self, flags: u64) {
        self.info.file_defaults.set_flags_of_new_files(flags);
    }

    /// Changes how data is compressed that is written from now on.
    pub fn set_compression(&self, mode: Option<CompressionMode>) {
        self.info.file_defaults.set_compression(mode);
    }
}
