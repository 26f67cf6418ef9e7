//! Values of POSIX for inodes that the format keeps: types and permissions of a mode. Also limits
//! that Linux has for all file systems.

/// The bits of a mode that are the type.
pub const S_IFMT: u32 = 0o170_000;
/// The type of sockets.
pub const S_IFSOCK: u32 = 0o140_000;
/// The type of symbolic links.
pub const S_IFLNK: u32 = 0o120_000;
/// The type of regular files.
pub const S_IFREG: u32 = 0o100_000;
/// The type of block devices.
pub const S_IFBLK: u32 = 0o060_000;
/// The type of directories.
pub const S_IFDIR: u32 = 0o040_000;
/// The type of character devices.
pub const S_IFCHR: u32 = 0o020_000;
/// The type of FIFOs.
pub const S_IFIFO: u32 = 0o010_000;

/// Set-user-id.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id.
pub const S_ISGID: u32 = 0o2000;
/// Both set-id bits.
pub const SET_ID: u32 = S_ISUID | S_ISGID;
/// The group may execute.
pub const S_IXGRP: u32 = 0o0010;

/// Permissions that new inodes don't get by default: the usual umask of a process.
pub const UMASK: u32 = 0o022;

/// The most symbolic links that one path may follow, as in the kernel.
pub const MAX_SYMLINKS: usize = 40;

/// Seconds of a day.
pub const SECONDS_PER_DAY: i64 = 24 * 60 * 60;
