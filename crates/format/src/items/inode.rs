//! `INODE_ITEM`: an inode's attributes.

use super::record::{Field, record};
use crate::Generation;

record! {
    /// A point in time.
    Timespec / TimespecBytes [12] "time" {
        /// Seconds since 1970; negative ones in two's complement.
        sec: u64,
        /// Nanoseconds, below a thousand million.
        nsec: u32,
    }
}

impl Field for Timespec {
    type Disk = TimespecBytes;
    fn to_disk(self) -> TimespecBytes {
        self.into()
    }
    fn from_disk(disk: TimespecBytes) -> Self {
        disk.into()
    }
}

record! {
    /// An inode's attributes. Key `(ino INODE_ITEM 0)`.
    InodeItem / InodeItemBytes [160] "inode item" {
        /// The transaction that made the inode.
        generation: Generation,
        /// The transaction that last changed it.
        transid: Generation,
        /// Bytes of content; for directories twice the sum of the entries' name lengths.
        size: u64,
        /// Bytes that the content takes on disk (before compression): the sum of extents' lengths
        /// without holes.
        nbytes: u64,
        /// Unused hint; 0.
        block_group: u64,
        /// Names of the inode; always 1 for directories.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Type and permissions.
        mode: u32,
        /// Device number of device nodes, as the kernel's 64-bit encoding.
        rdev: u64,
        /// [`InodeFlags`].
        flags: u64,
        /// Counts changes.
        sequence: u64,
        /// Zero.
        reserved0: u64,
        /// Zero.
        reserved1: u64,
        /// Zero.
        reserved2: u64,
        /// Zero.
        reserved3: u64,
        /// Last access.
        atime: Timespec,
        /// Last change of the attributes.
        ctime: Timespec,
        /// Last change of the content.
        mtime: Timespec,
        /// Creation.
        otime: Timespec,
    }
}

/// Flags of an inode.
pub struct InodeFlags;

impl InodeFlags {
    /// Data has no checksums.
    pub const NODATASUM: u64 = 1 << 0;
    /// Data is overwritten in place.
    pub const NODATACOW: u64 = 1 << 1;
    /// The inode can't be changed (an old flag).
    pub const READONLY: u64 = 1 << 2;
    /// Never compress.
    pub const NOCOMPRESS: u64 = 1 << 3;
    /// May have extents beyond its end.
    pub const PREALLOC: u64 = 1 << 4;
    /// All changes are synchronous.
    pub const SYNC: u64 = 1 << 5;
    /// Can't be changed.
    pub const IMMUTABLE: u64 = 1 << 6;
    /// Can only grow.
    pub const APPEND: u64 = 1 << 7;
    /// The flags that protect an inode from changes: to set or clear them takes more than owning
    /// the inode.
    pub const PROTECTING: u64 = Self::IMMUTABLE | Self::APPEND;
    /// Not dumped.
    pub const NODUMP: u64 = 1 << 8;
    /// Access times are not kept.
    pub const NOATIME: u64 = 1 << 9;
    /// Changes of the directory are synchronous.
    pub const DIRSYNC: u64 = 1 << 10;
    /// Compress.
    pub const COMPRESS: u64 = 1 << 11;
    /// Set by the kernels of Synology's devices, on many files. Its meaning is not known to us, so
    /// it is kept as it is.
    pub const SYNOLOGY: u64 = 1 << 30;
    /// A subvolume's root item's embedded inode was initialised.
    pub const ROOT_ITEM_INIT: u64 = 1 << 31;
    /// fs-verity protects the file. The upper half of the field has flags that older writers need
    /// not know.
    pub const RO_VERITY: u64 = 1 << 32;
    /// All known flags.
    pub const ALL: u64 = 0xfff | Self::SYNOLOGY | Self::ROOT_ITEM_INIT | Self::RO_VERITY;
}
