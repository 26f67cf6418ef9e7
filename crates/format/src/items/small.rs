//! Items of a few fixed fields.

use super::record::record;
use crate::{DeviceId, Generation, ItemType, Key, KeyBytes, Logical, Uuid};

record! {
    /// A device of the volume. Key `(1 DEV_ITEM devid)` in the chunk tree, and in the superblock.
    DevItem / DevItemBytes [98] "device item" {
        /// The device's number.
        devid: DeviceId,
        /// Bytes of the device that the volume may use.
        total_bytes: u64,
        /// Bytes given to device extents.
        bytes_used: u64,
        /// Alignment of I/O: the sector size.
        io_align: u32,
        /// The sector size.
        io_width: u32,
        /// The sector size.
        sector_size: u32,
        /// 0.
        device_type: u64,
        /// 0.
        generation: Generation,
        /// Where allocation may start; 0.
        start_offset: u64,
        /// 0.
        dev_group: u32,
        /// 0.
        seek_speed: u8,
        /// 0.
        bandwidth: u8,
        /// The device's id.
        uuid: Uuid,
        /// The volume's id (in metadata's form).
        fsid: Uuid,
    }
}

record! {
    /// An allocated range of a device. Key `(devid DEV_EXTENT physical)`.
    DevExtent / DevExtentBytes [48] "device extent" {
        /// 3, the chunk tree.
        chunk_tree: u64,
        /// 256.
        chunk_objectid: u64,
        /// The chunk's logical address.
        chunk_offset: Logical,
        /// Bytes on this device.
        length: u64,
        /// The chunk tree's id.
        chunk_tree_uuid: Uuid,
    }
}

record! {
    /// The state of the replacement of a device. Key `(0 DEV_REPLACE 0)` in the device tree.
    DevReplaceItem / DevReplaceItemBytes [72] "device replacement item" {
        /// The device that is replaced.
        source: DeviceId,
        /// The address of the source up to which everything is copied.
        cursor_left: u64,
        /// The address of the source where the range ends that is being copied.
        cursor_right: u64,
        /// If 1, the source is only read where no other device has the same data.
        read_mode: u64,
        /// One of the constants.
        state: u64,
        /// When it began, in seconds.
        time_started: u64,
        /// When it ended.
        time_stopped: u64,
        /// Writes to the target that failed.
        write_errors: u64,
        /// How much could be read from no device.
        unreadable: u64,
    }
}

impl DevReplaceItem {
    /// There was no replacement yet.
    pub const NEVER: u64 = 0;
    /// The replacement is in progress.
    pub const STARTED: u64 = 1;
    /// The target has taken the source's place.
    pub const FINISHED: u64 = 2;
    /// The replacement was given up.
    pub const CANCELED: u64 = 3;
    /// The replacement is in progress, but the volume is not mounted.
    pub const SUSPENDED: u64 = 4;

    /// The key of the item.
    pub const KEY: Key = Key::new(0, ItemType::DEV_REPLACE, 0);

    /// Returns whether the next mount has to continue it.
    pub fn is_in_progress(&self) -> bool {
        matches!(self.state, Self::STARTED | Self::SUSPENDED)
    }
}

record! {
    /// How much of a block group is used. Key `(logical BLOCK_GROUP_ITEM length)`.
    BlockGroupItem / BlockGroupItemBytes [24] "block group item" {
        /// Bytes allocated.
        used: u64,
        /// 256.
        chunk_objectid: u64,
        /// [`BlockGroupFlags`](super::BlockGroupFlags).
        flags: u64,
    }
}

record! {
    /// How a block group's free space is stored. Key `(logical FREE_SPACE_INFO length)`.
    FreeSpaceInfo / FreeSpaceInfoBytes [8] "free space info" {
        /// Free ranges, however they are stored.
        extent_count: u32,
        /// If bit 0 is set, the ranges are stored as bitmaps.
        flags: u32,
    }
}

impl FreeSpaceInfo {
    /// The group's free space is stored as bitmaps.
    pub const USING_BITMAPS: u32 = 1;
    /// Bytes of a bitmap item: 2048 sectors.
    pub const BITMAP_BYTES: usize = 256;
}

record! {
    /// The header of a v1 free-space cache. Key `(-11 0 logical)` in the root tree.
    FreeSpaceHeader / FreeSpaceHeaderBytes [41] "free space cache header" {
        /// The inode that holds the cache.
        location: KeyBytes,
        /// The transaction that wrote the cache.
        generation: Generation,
        /// Entries in the cache.
        num_entries: u64,
        /// Bitmaps among them.
        num_bitmaps: u64,
    }
}

impl super::record::Field for KeyBytes {
    type Disk = Self;
    fn to_disk(self) -> Self {
        self
    }
    fn from_disk(disk: Self) -> Self {
        disk
    }
}
