//! Volumes in memory.

use ubtrfs_format::Physical;
use ubtrfs_mkfs::{Medium, MkfsOptions, Profile};
use ubtrfs_volume::MemoryDevice;

use crate::failure::{Failure, Result};

/// The bytes of a device.
struct Image(Vec<u8>);

impl Medium for Image {
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> std::io::Result<()> {
        let place = self.0.get_mut(at.0 as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.ok_or(std::io::ErrorKind::InvalidInput)?.copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What mkfs has for volumes of `size` bytes, as `mkfs.btrfs -m single -d single` makes them.
pub fn layout(size: u64) -> Result<ubtrfs_mkfs::Layout> {
    let profile = Some(Profile::Single);
    let options = MkfsOptions { data_profile: profile, metadata_profile: profile, ..MkfsOptions::new(size) };
    ubtrfs_mkfs::layout(&options).map_err(|error| Failure::about("mkfs", &error))
}

/// A device in memory with a fresh volume. The system gives it memory as it is written.
pub fn volume(size: u64) -> Result<MemoryDevice> {
    let mut image = Image(vec![0; size as usize]);
    layout(size)?.write(&mut [&mut image])?;
    Ok(MemoryDevice::from_bytes(image.0))
}
