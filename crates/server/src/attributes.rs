//! The attributes that stat(2) and statx(2) show.

use ubtrfs_format::items::{InodeFlags, Timespec};
use ubtrfs_fuse::{Attributes, StatFs, Statx, Timestamp};

use crate::device_number;
use crate::nodes::NodeNumbers;

/// `STATX_ATTR_*`, each with the inode's flag that it shows.
const STATX_ATTRIBUTES: [(u64, u64); 4] = [
    (0x4, InodeFlags::COMPRESS),
    (0x10, InodeFlags::IMMUTABLE),
    (0x20, InodeFlags::APPEND),
    (0x40, InodeFlags::NODUMP),
];

pub(crate) fn timestamp(time: Timespec) -> Timestamp {
    Timestamp { seconds: time.sec.cast_signed(), nanoseconds: time.nsec }
}

pub(crate) fn timespec(time: Timestamp) -> Timespec {
    Timespec { sec: time.seconds.cast_unsigned(), nsec: time.nanoseconds }
}

pub(crate) fn attributes(numbers: &NodeNumbers, block_size: u32, of: &ubtrfs::Attributes) -> Attributes {
    Attributes {
        ino: numbers.shown(of.id),
        size: of.size,
        blocks: of.blocks,
        atime: timestamp(of.atime),
        mtime: timestamp(of.mtime),
        ctime: timestamp(of.ctime),
        mode: of.mode,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: device_number::from_disk(of.rdev),
        blksize: block_size,
    }
}

pub(crate) fn statx(numbers: &NodeNumbers, block_size: u32, of: &ubtrfs::Attributes) -> Statx {
    let bits = |keep: &dyn Fn(u64) -> bool| {
        STATX_ATTRIBUTES.iter().filter(|(_, flag)| keep(*flag)).fold(0, |bits, (bit, _)| bits | bit)
    };
    Statx {
        attributes: attributes(numbers, block_size, of),
        // Very old volumes have no creation times.
        btime: (of.btime != Timespec::default()).then(|| timestamp(of.btime)),
        flags: bits(&|flag| of.flags & flag != 0),
        flags_mask: bits(&|_| true),
    }
}

pub(crate) fn statfs(of: &ubtrfs::FilesystemStats) -> StatFs {
    StatFs {
        blocks: of.blocks,
        free: of.blocks_free,
        available: of.blocks_available,
        files: 0,
        files_free: 0,
        block_size: of.block_size,
        name_length: of.name_len,
        fragment_size: of.block_size,
    }
}
