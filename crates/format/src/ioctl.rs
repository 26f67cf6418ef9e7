//! Numbers of ioctls: those of `linux/fs.h`, `linux/fsverity.h` and `linux/btrfs.h`, and those of
//! this project. The server and the program take them from here.
//!
//! A number holds the direction of its argument, the argument's size in bytes, a kind, and a number
//! within the kind. FUSE passes an argument of that size, and nothing behind it.

/// The direction of the argument: none, from the caller, to the caller.
const NONE: u32 = 0;
const WRITE: u32 = 1;
const READ: u32 = 2;

const FILE: u8 = b'f';
const XFS: u8 = b'X';
const VERSION: u8 = b'v';
const BTRFS: u8 = 0x94;
/// The kind of this project's ioctls.
const OURS: u8 = b'u';

const fn command(direction: u32, kind: u8, number: u8, size: usize) -> u32 {
    assert!(size < 1 << 14, "a number has 14 bits for the size");
    direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number as u32
}

/// Bytes of the argument of the ioctl with this number.
#[must_use]
pub const fn size_of(command: u32) -> usize {
    (command >> 16 & 0x3fff) as usize
}

/// Bytes of `struct btrfs_ioctl_vol_args` and of `struct btrfs_ioctl_vol_args_v2`.
const VOL_ARGS: usize = 4096;
/// Bytes of `struct btrfs_ioctl_scrub_args`, and of `struct btrfs_ioctl_balance_args`.
const KIB: usize = 1024;

/// `FS_IOC_GETFLAGS`
pub const GETFLAGS: u32 = command(READ, FILE, 1, 8);
/// `FS_IOC_SETFLAGS`
pub const SETFLAGS: u32 = command(WRITE, FILE, 2, 8);
/// `FS_IOC32_GETFLAGS`, for programs with words of 32 bits.
pub const GETFLAGS_32: u32 = command(READ, FILE, 1, 4);
/// `FS_IOC32_SETFLAGS`
pub const SETFLAGS_32: u32 = command(WRITE, FILE, 2, 4);
/// `FS_IOC_FSGETXATTR`
pub const FSGETXATTR: u32 = command(READ, XFS, 31, 28);
/// `FS_IOC_FSSETXATTR`
pub const FSSETXATTR: u32 = command(WRITE, XFS, 32, 28);
/// `FS_IOC_GETVERSION`: the transaction in which the inode was made.
pub const GETVERSION: u32 = command(READ, VERSION, 1, 8);
/// `FS_IOC_FIEMAP`, which no kernel passes to a FUSE server: see [`EXTENT_MAP`].
pub const FIEMAP: u32 = command(READ | WRITE, FILE, 11, 32);
/// `FITRIM`
pub const FITRIM: u32 = command(READ | WRITE, XFS, 121, 24);
/// `FS_IOC_ENABLE_VERITY`
pub const ENABLE_VERITY: u32 = command(WRITE, FILE, 133, 128);
/// `FS_IOC_MEASURE_VERITY`
pub const MEASURE_VERITY: u32 = command(READ | WRITE, FILE, 134, 4);

/// `BTRFS_IOC_SNAP_CREATE`
pub const SNAP_CREATE: u32 = command(WRITE, BTRFS, 1, VOL_ARGS);
/// `BTRFS_IOC_DEFRAG`
pub const DEFRAG: u32 = command(WRITE, BTRFS, 2, VOL_ARGS);
/// `BTRFS_IOC_RESIZE`
pub const RESIZE: u32 = command(WRITE, BTRFS, 3, VOL_ARGS);
/// `BTRFS_IOC_SYNC`
pub const SYNC: u32 = command(NONE, BTRFS, 8, 0);
/// `BTRFS_IOC_ADD_DEV`
pub const ADD_DEVICE: u32 = command(WRITE, BTRFS, 10, VOL_ARGS);
/// `BTRFS_IOC_RM_DEV`
pub const REMOVE_DEVICE: u32 = command(WRITE, BTRFS, 11, VOL_ARGS);
/// `BTRFS_IOC_SUBVOL_CREATE`
pub const SUBVOL_CREATE: u32 = command(WRITE, BTRFS, 14, VOL_ARGS);
/// `BTRFS_IOC_SNAP_DESTROY`
pub const SNAP_DESTROY: u32 = command(WRITE, BTRFS, 15, VOL_ARGS);
/// `BTRFS_IOC_DEFRAG_RANGE`
pub const DEFRAG_RANGE: u32 = command(WRITE, BTRFS, 16, 48);
/// `BTRFS_IOC_TREE_SEARCH`
pub const TREE_SEARCH: u32 = command(READ | WRITE, BTRFS, 17, 4096);
/// `BTRFS_IOC_INO_LOOKUP`
pub const INO_LOOKUP: u32 = command(READ | WRITE, BTRFS, 18, 4096);
/// `BTRFS_IOC_DEFAULT_SUBVOL`
pub const DEFAULT_SUBVOL: u32 = command(WRITE, BTRFS, 19, 8);
/// `BTRFS_IOC_WAIT_SYNC`
pub const WAIT_SYNC: u32 = command(WRITE, BTRFS, 22, 8);
/// `BTRFS_IOC_SNAP_CREATE_V2`
pub const SNAP_CREATE_V2: u32 = command(WRITE, BTRFS, 23, VOL_ARGS);
/// `BTRFS_IOC_START_SYNC`
pub const START_SYNC: u32 = command(READ, BTRFS, 24, 8);
/// `BTRFS_IOC_SUBVOL_CREATE_V2`
pub const SUBVOL_CREATE_V2: u32 = command(WRITE, BTRFS, 24, VOL_ARGS);
/// `BTRFS_IOC_SUBVOL_GETFLAGS`
pub const SUBVOL_GETFLAGS: u32 = command(READ, BTRFS, 25, 8);
/// `BTRFS_IOC_SUBVOL_SETFLAGS`
pub const SUBVOL_SETFLAGS: u32 = command(WRITE, BTRFS, 26, 8);
/// `BTRFS_IOC_SCRUB`
pub const SCRUB: u32 = command(READ | WRITE, BTRFS, 27, KIB);
/// `BTRFS_IOC_SCRUB_CANCEL`
pub const SCRUB_CANCEL: u32 = command(NONE, BTRFS, 28, 0);
/// `BTRFS_IOC_SCRUB_PROGRESS`
pub const SCRUB_PROGRESS: u32 = command(READ | WRITE, BTRFS, 29, KIB);
/// `BTRFS_IOC_DEV_INFO`
pub const DEV_INFO: u32 = command(READ | WRITE, BTRFS, 30, 4096);
/// `BTRFS_IOC_FS_INFO`
pub const FS_INFO: u32 = command(READ, BTRFS, 31, KIB);
/// `BTRFS_IOC_BALANCE_V2`
pub const BALANCE: u32 = command(READ | WRITE, BTRFS, 32, KIB);
/// The project's form of `BTRFS_IOC_BALANCE_CTL`. That is `_IOW(0x94, 33, int)`; this has a number
/// in place of a pointer, which FUSE does not pass on.
pub const BALANCE_CONTROL: u32 = command(WRITE, BTRFS, 33, 8);
/// `BTRFS_IOC_BALANCE_PROGRESS`
pub const BALANCE_PROGRESS: u32 = command(READ, BTRFS, 34, KIB);
/// `BTRFS_IOC_SET_RECEIVED_SUBVOL`
pub const SET_RECEIVED_SUBVOL: u32 = command(READ | WRITE, BTRFS, 37, 200);
/// `BTRFS_IOC_GET_FSLABEL`, which is `FS_IOC_GETFSLABEL`.
pub const GET_LABEL: u32 = command(READ, BTRFS, 49, 256);
/// `BTRFS_IOC_SET_FSLABEL`, which is `FS_IOC_SETFSLABEL`.
pub const SET_LABEL: u32 = command(WRITE, BTRFS, 50, 256);
/// `BTRFS_IOC_GET_DEV_STATS`
pub const GET_DEV_STATS: u32 = command(READ | WRITE, BTRFS, 52, 1032);
/// `BTRFS_IOC_DEV_REPLACE`
pub const REPLACE: u32 = command(READ | WRITE, BTRFS, 53, 2600);
/// `BTRFS_IOC_GET_FEATURES`
pub const GET_FEATURES: u32 = command(READ, BTRFS, 57, 24);
/// `BTRFS_IOC_RM_DEV_V2`
pub const REMOVE_DEVICE_V2: u32 = command(WRITE, BTRFS, 58, VOL_ARGS);
/// `BTRFS_IOC_GET_SUBVOL_INFO`
pub const GET_SUBVOL_INFO: u32 = command(READ, BTRFS, 60, 504);
/// `BTRFS_IOC_GET_SUBVOL_ROOTREF`
pub const GET_SUBVOL_ROOTREF: u32 = command(READ | WRITE, BTRFS, 61, 4096);
/// `BTRFS_IOC_INO_LOOKUP_USER`
pub const INO_LOOKUP_USER: u32 = command(READ | WRITE, BTRFS, 62, 4096);
/// `BTRFS_IOC_SNAP_DESTROY_V2`
pub const SNAP_DESTROY_V2: u32 = command(WRITE, BTRFS, 63, VOL_ARGS);

/// Ours, on a directory, with `struct btrfs_ioctl_vol_args_v2`: replaces the subvolume `name` by a
/// snapshot of the subvolume that the caller has open as `fd`.
pub const RESET_SUBVOLUME: u32 = command(WRITE, OURS, 1, VOL_ARGS);
/// Ours, on any inode of the target: begins a merge into its subvolume. The number of the stream
/// with the answer replaces the first word.
pub const MERGE: u32 = command(READ | WRITE, OURS, 2, 32);
/// Ours: returns what FIEMAP returns with flags of 0, 72 extents at a time.
pub const EXTENT_MAP: u32 = command(READ | WRITE, OURS, 2, 4096);
/// Ours: makes all earlier changes of the volume durable, as syncfs(2) does on other file systems.
pub const CONTROL_SYNC: u32 = command(NONE, OURS, 4, 0);
/// Ours: the server's part of a remount. The argument is a text that ends with a zero: `ro`, `rw`,
/// a mount option about how data is written, or an empty text to ask whether the caller may
/// remount.
pub const REMOUNT: u32 = command(WRITE, OURS, 5, 256);
/// Ours: announces an unmount by force.
pub const FORCE: u32 = command(NONE, OURS, 6, 0);
/// Ours: begins the list of differences between two subvolumes, whose numbers the argument has. The
/// number of the stream with the answer replaces the first word.
pub const CHANGES: u32 = command(READ | WRITE, OURS, 7, 16);
/// Ours: begins the list of what a commit and later ones have changed in a subvolume. The argument
/// has the numbers of the subvolume and of the commit. The answer is like that of [`CHANGES`].
pub const CHANGES_SINCE: u32 = command(READ | WRITE, OURS, 8, 16);
/// Ours: returns the next piece of a stream, whose number the first word has. The answer has the
/// piece's length in its place, followed by the piece.
pub const NEXT: u32 = command(READ | WRITE, OURS, 9, 16_376);
/// Ours: shows that the reader of the stream of this number is still there.
pub const KEEP: u32 = command(WRITE, OURS, 10, 8);

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares numbers of each form with those that programs use.
    #[test]
    fn numbers_are_those_of_the_kernels_headers() {
        assert_eq!(
            [GETFLAGS, SETFLAGS_32, FSGETXATTR, GETVERSION],
            [0x8008_6601, 0x4004_6602, 0x801c_581f, 0x8008_7601]
        );
        assert_eq!(
            [FIEMAP, FITRIM, ENABLE_VERITY, MEASURE_VERITY],
            [0xc020_660b, 0xc018_5879, 0x4080_6685, 0xc004_6686]
        );
        assert_eq!([SYNC, SCRUB, TREE_SEARCH, GET_LABEL], [0x9408, 0xc400_941b, 0xd000_9411, 0x8100_9431]);
        assert_eq!([GET_SUBVOL_INFO, REPLACE, GET_DEV_STATS], [0x81f8_943c, 0xca28_9435, 0xc408_9434]);
        assert_eq!([RESET_SUBVOLUME, MERGE, EXTENT_MAP], [0x5000_7501, 0xc020_7502, 0xd000_7502]);
        assert_eq!([size_of(SYNC), size_of(NEXT), size_of(SET_RECEIVED_SUBVOL)], [0, 16_376, 200]);
    }
}
