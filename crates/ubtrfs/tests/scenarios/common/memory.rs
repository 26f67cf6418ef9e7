//! Makes new volumes in memory.

use std::os::unix::fs::FileExt;

use ubtrfs_mkfs::MkfsOptions;
use ubtrfs_volume::MemoryDevice;

/// Returns a device of `size` bytes with a new volume.
pub fn new_volume(size: u64) -> MemoryDevice {
    let file = tempfile::tempfile().unwrap();
    file.set_len(size).unwrap();
    ubtrfs_mkfs::layout(&MkfsOptions::new(size)).unwrap().write(&mut [&mut file.try_clone().unwrap()]).unwrap();
    let mut bytes = vec![0; size as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    MemoryDevice::from_bytes(bytes)
}
