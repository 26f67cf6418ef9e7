//! The flags of inodes that protect files from changes.

use ubtrfs_format::items::InodeFlags;

/// Immutable and append-only: to set or clear these takes more than to own the file.
pub(crate) const PROTECTING: u64 = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
