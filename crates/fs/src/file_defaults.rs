//! Defaults of a mount for files: the compression of data, and the flags of new files.

use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_file::CompressionMode;
use ubtrfs_format::items::InodeFlags;
use ubtrfs_threads::{Rank, RwLock};

/// What applies to files that have no settings of their own. A remount may change it.
pub(crate) struct FileDefaults {
    compression: RwLock<Option<CompressionMode>>,
    flags_of_new_files: AtomicU64,
}

impl FileDefaults {
    /// Takes the defaults from the options.
    pub(crate) fn new(compression: Option<CompressionMode>, flags_of_new_files: u64) -> Self {
        Self {
            compression: RwLock::new(Rank::Compression, compression),
            flags_of_new_files: AtomicU64::new(flags_of_new_files),
        }
    }

    /// Returns how data is compressed as it is written.
    pub(crate) fn compression(&self) -> Option<CompressionMode> {
        *self.compression.read()
    }

    /// Sets how data is compressed that is written from now on.
    pub(crate) fn set_compression(&self, mode: Option<CompressionMode>) {
        *self.compression.write() = mode;
    }

    /// Returns the flags that new regular files get, out of `NODATACOW` and `NODATASUM`.
    pub(crate) fn flags_of_new_files(&self) -> u64 {
        self.flags_of_new_files.load(Ordering::Relaxed) & (InodeFlags::NODATACOW | InodeFlags::NODATASUM)
    }

    /// Sets the flags that regular files created from now on get.
    pub(crate) fn set_flags_of_new_files(&self, flags: u64) {
        self.flags_of_new_files.store(flags, Ordering::Relaxed);
    }
}
