//! Bits that appear in requests and replies.

use bitflags::bitflags;

bitflags! {
    /// The capabilities that the kernel offers and the filesystem requests when a mount begins
    /// (`FUSE_*` flags of INIT).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Capabilities: u64 {
        /// Several reads of one file at a time, and read-ahead.
        const ASYNC_READ = 1;
        /// The filesystem implements POSIX locks.
        const POSIX_LOCKS = 1 << 1;
        /// OPEN handles `O_TRUNC`. Must not be combined with opens that are answered ENOSYS, since
        /// these lose the truncation.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// The filesystem looks up "." and ".." (for NFS export).
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than one page.
        const BIG_WRITES = 1 << 5;
        /// The filesystem applies the umask (or the default ACL), not the kernel.
        const DONT_MASK = 1 << 6;
        /// The filesystem implements BSD locks (flock(2)).
        const FLOCK_LOCKS = 1 << 10;
        /// ioctl on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Cached data is dropped when a refreshed mtime or size differs.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel chooses between READDIR and READDIRPLUS.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O in parallel.
        const ASYNC_DIO = 1 << 15;
        /// Writes are gathered in the kernel's page cache.
        const WRITEBACK_CACHE = 1 << 16;
        /// OPEN answered ENOSYS means that no file needs opening (and none is released).
        const NO_OPEN_SUPPORT = 1 << 17;
        /// LOOKUP and READDIR of one directory in parallel.
        const PARALLEL_DIROPS = 1 << 18;
        /// The filesystem clears set-user-id bits and capabilities by itself (first version).
        const HANDLE_KILLPRIV = 1 << 19;
        /// POSIX ACLs; turns `default_permissions` on.
        const POSIX_ACL = 1 << 20;
        /// Reading the device after an abort gives ECONNABORTED.
        const ABORT_ERROR = 1 << 21;
        /// The reply to INIT says how many pages a request may have.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// OPENDIR answered ENOSYS means that no directory needs opening.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached data is dropped only when the filesystem says so.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// The filesystem clears set-id bits and capabilities when the kernel says so.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR in its extended form.
        const SETXATTR_EXT = 1 << 29;
        /// INIT in its extended form, with 64 flags.
        const INIT_EXT = 1 << 30;
        /// Security contexts in requests that create.
        const SECURITY_CTX = 1 << 32;
        /// The caller's group that matches the parent's, in requests that create.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Entries can be expired without being dropped.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mappings of files in direct I/O.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Reads and writes handed to another file.
        const PASSTHROUGH = 1 << 37;
        /// No export by handles.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// Requests can be sent again to a restarted server.
        const HAS_RESEND = 1 << 39;
        /// Id-mapped mounts. Needs `default_permissions`, or the kernel refuses the mount; and
        /// requests that create nothing then come without user and group ([`super::UNKNOWN_ID`]).
        const ALLOW_IDMAP = 1 << 40;
        /// Requests over io_uring.
        const OVER_IO_URING = 1 << 41;
        /// A limit of time for each request.
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// How the kernel treats what OPEN, CREATE, TMPFILE or OPENDIR opened (`FOPEN_*`).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u32 {
        /// No page cache.
        const DIRECT_IO = 1;
        /// Cached data stays valid.
        const KEEP_CACHE = 1 << 1;
        /// No seeking.
        const NONSEEKABLE = 1 << 2;
        /// The listing of this directory may be cached.
        const CACHE_DIR = 1 << 3;
        /// No position at all.
        const STREAM = 1 << 4;
        /// close(2) sends no FLUSH (unless the writeback cache is on).
        const NOFLUSH = 1 << 5;
        /// Direct writes in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// What a WRITE carries besides its data (`FUSE_WRITE_*`).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct WriteFlags: u32 {
        /// The data comes from writeback of the page cache: the filesystem sets mtime, and the
        /// handle is a guess.
        const CACHE = 1;
        /// The lock owner is valid.
        const LOCKOWNER = 1 << 1;
        /// Clear set-user-id, and set-group-id if the group may execute.
        const KILL_SUIDGID = 1 << 2;
    }

    /// What an IOCTL carries besides its command (`FUSE_IOCTL_*`).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct IoctlFlags: u32 {
        /// From a 32-bit program on a 64-bit kernel.
        const COMPAT = 1;
        /// Arguments of any form (CUSE only).
        const UNRESTRICTED = 1 << 1;
        /// With 32-bit structures.
        const BITS32 = 1 << 3;
        /// On a directory.
        const DIR = 1 << 4;
        /// From an x32 program.
        const COMPAT_X32 = 1 << 5;
    }

    /// Which fields of a SETATTR are valid (`FATTR_*`).
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct SetAttrValid: u32 {
        /// The mode.
        const MODE = 1;
        /// The user.
        const UID = 1 << 1;
        /// The group.
        const GID = 1 << 2;
        /// The size.
        const SIZE = 1 << 3;
        /// The time of access.
        const ATIME = 1 << 4;
        /// The time of modification.
        const MTIME = 1 << 5;
        /// The handle.
        const FH = 1 << 6;
        /// The time of access becomes now.
        const ATIME_NOW = 1 << 7;
        /// The time of modification becomes now.
        const MTIME_NOW = 1 << 8;
        /// The lock owner.
        const LOCKOWNER = 1 << 9;
        /// The time of change.
        const CTIME = 1 << 10;
        /// Clear set-id bits.
        const KILL_SUIDGID = 1 << 11;
    }
}

/// GETATTR and STATX: the handle is valid.
pub const GETATTR_FH: u32 = 1;
/// FSYNC: only the data and what is needed to find it.
pub const FSYNC_DATA_ONLY: u32 = 1;
/// OPEN and CREATE: clear set-id bits (with `O_TRUNC`).
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// RELEASE: flush too.
pub const RELEASE_FLUSH: u32 = 1;
/// SETXATTR of an access ACL: clear set-group-id.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// `INVAL_ENTRY`: expire instead of drop.
pub const EXPIRE_ONLY: u32 = 1;
