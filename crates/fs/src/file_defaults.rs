//! What a mount's options give files: how data is compressed, and flags.

use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_file::CompressionMode;
use ubtrfs_format::items::InodeFlags;
use ubtrfs_threads::{Rank, RwLock};

/// What files get where they say nothing else. A remount may change it.
pub(crate) struct FileDefaults {
    compression: RwLock<Option<CompressionMode>>,
    flags_of_new_files: AtomicU64,
}

impl FileDefaults {
    /// As options say it.
    pub(crate) fn new(compression: Option<CompressionMode>, flags_of_new_files: u64) -> Self {
        Self {
            compression: RwLock::new(Rank::Compression, compression),
            flags_of_new_files: AtomicU64::new(flags_of_new_files),
        }
    }

    /// How data is compressed as it is written.
    pub(crate) fn compression(&self) -> Option<CompressionMode> {
        *self.compression.read()
    }

    /// Data that is written from now on is compressed like this.
    pub(crate) fn set_compression(&self, mode: Option<CompressionMode>) {
        *self.compression.write() = mode;
    }

    /// Flags that new regular files get, of `NODATACOW` and `NODATASUM`.
    pub(crate) fn flags_of_new_files(&self) -> u64 {
        self.flags_of_new_files.load(Ordering::Relaxed) & (InodeFlags::NODATACOW | InodeFlags::NODATASUM)
    }

    /// Files that are made from now on get these flags.
    pub(crate) fn set_flags_of_new_files(&self, flags: u64) {
        self.flags_of_new_files.store(flags, Ordering::Relaxed);
    }
}
