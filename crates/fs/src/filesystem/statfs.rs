//! How full the volume is.

use super::Filesystem;

/// The result of statfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesystemStats {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks free.
    pub blocks_free: u64,
    /// Blocks that programs can allocate.
    pub blocks_available: u64,
    /// Bytes of the longest possible name.
    pub name_len: u32,
}

impl Filesystem {
    /// Returns how full the volume is, in bytes of data (with two copies, a byte of data takes two
    /// bytes of the devices). Free space includes free metadata space. Available space is what data
    /// can get, and is zero once no file can be created or grow for lack of metadata space. Inodes
    /// are not counted, since the format does not limit them.
    pub fn statfs(&self) -> FilesystemStats {
        let totals = self.info.space.totals();
        let block_size = self.info.volume.sector_size();
        let copies = totals.data_copies.max(1);
        let used = totals.used_on_devices.saturating_add(totals.data_reserved.saturating_mul(copies));
        let free = totals.device_bytes.saturating_sub(used) / copies;
        FilesystemStats {
            block_size,
            blocks: totals.device_bytes / copies / u64::from(block_size),
            blocks_free: free / u64::from(block_size),
            blocks_available: totals.data_available.min(free) / u64::from(block_size),
            name_len: ubtrfs_format::items::MAX_NAME_LEN as u32,
        }
    }
}
