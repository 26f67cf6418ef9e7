//! Volumes in memory.

use ubtrfs_format::Physical;
use ubtrfs_mkfs::{Medium, MkfsOptions, NewDevice, Profile};
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

/// Returns what mkfs writes for a volume of so many devices of `size` bytes, as `mkfs.btrfs -m
/// PROFILE -d PROFILE` makes it.
pub fn layout(size: u64, devices: usize, profile: Profile) -> Result<ubtrfs_mkfs::Layout> {
    let profile = Some(profile);
    let more_devices =
        (1..devices).map(|_| NewDevice { total_bytes: size, uuid: ubtrfs_mkfs::random_uuid() }).collect();
    let options =
        MkfsOptions { data_profile: profile, metadata_profile: profile, more_devices, ..MkfsOptions::new(size) };
    ubtrfs_mkfs::layout(&options).map_err(|error| Failure::about("mkfs", &error))
}

/// Returns a device in memory with a fresh volume. The system allocates its memory when it is
/// written.
pub fn volume(size: u64) -> Result<MemoryDevice> {
    let mut devices = volume_of_several(size, 1, Profile::Single)?;
    devices.pop().ok_or_else(|| Failure::new("no device"))
}

/// Returns so many devices with one fresh volume.
pub fn volume_of_several(size: u64, devices: usize, profile: Profile) -> Result<Vec<MemoryDevice>> {
    let mut images: Vec<Image> = (0..devices).map(|_| Image(vec![0; size as usize])).collect();
    let mut media: Vec<&mut dyn Medium> = images.iter_mut().map(|image| image as _).collect();
    layout(size, devices, profile)?.write(&mut media)?;
    Ok(images.into_iter().map(|image| MemoryDevice::from_bytes(image.0)).collect())
}
