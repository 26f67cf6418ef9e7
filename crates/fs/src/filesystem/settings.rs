//! How new data and new files are stored: what a remount may change.

use ubtrfs_file::CompressionMode;

use super::Filesystem;

impl Filesystem {
    /// Whether it may protect any.
    pub fn uses_verity(&self) -> bool {
        self.info.uses_verity()
    }

    /// How data is compressed as it is written, as [`Options::compression`](crate::Options) says
    /// it at first.
    pub fn compression(&self) -> Option<CompressionMode> {
        self.info.file_defaults.compression()
    }

    /// Changes how data is compressed that is written from now on.
    pub fn set_compression(&self, mode: Option<CompressionMode>) {
        self.info.file_defaults.set_compression(mode);
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
}
