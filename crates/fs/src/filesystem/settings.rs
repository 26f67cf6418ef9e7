//! Settings that a remount may change: how new data and new files are stored.

use ubtrfs_file::CompressionMode;

use super::Filesystem;

impl Filesystem {
    /// Whether the volume may contain files that fs-verity protects.
    pub fn uses_verity(&self) -> bool {
        self.info.uses_verity()
    }

    /// Returns how data is compressed as it is written; at first this is
    /// [`Options::compression`](crate::Options).
    pub fn compression(&self) -> Option<CompressionMode> {
        self.info.file_defaults.compression()
    }

    /// Sets how data is compressed that is written from now on.
    pub fn set_compression(&self, mode: Option<CompressionMode>) {
        self.info.file_defaults.set_compression(mode);
    }

    /// The most threads that compress data of one file at a time.
    pub fn compression_threads(&self) -> usize {
        self.writeback.compression_threads()
    }

    /// Sets the most threads that compress data of one file at a time.
    pub fn set_compression_threads(&self, threads: usize) {
        self.writeback.set_compression_threads(threads);
    }

    /// Returns the flags that new regular files get, out of `NODATACOW` and `NODATASUM`.
    pub fn new_file_flags(&self) -> u64 {
        self.info.file_defaults.flags_of_new_files()
    }

    /// Sets the flags that regular files created from now on get.
    pub fn set_new_file_flags(&self, flags: u64) {
        self.info.file_defaults.set_flags_of_new_files(flags);
    }
}
