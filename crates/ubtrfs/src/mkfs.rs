//! Makes volumes.

use std::io;

use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE};
use ubtrfs_mkfs::{Medium, existing_signature, layout};
#[doc(inline)]
pub use ubtrfs_mkfs::{MkfsError, MkfsOptions, NewDevice, Profile};
use ubtrfs_volume::{Buffer, Device, DeviceWrite};

/// The offset of a superblock's own address.
const SUPERBLOCK_PLACE: std::ops::Range<usize> = 48..56;
/// The offset of its magic.
const SUPERBLOCK_MAGIC_PLACE: std::ops::Range<usize> = 64..72;

/// The reason why no volume was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device is not empty.
    #[error("a device holds a {0}")]
    Occupied(String),
    /// No volume can be made of these options.
    #[error(transparent)]
    Options(#[from] MkfsError),
    /// A device failed.
    #[error(transparent)]
    Device(io::Error),
}

/// Makes a volume on empty devices, as many as the options name. The volume is durable when this
/// returns. Refuses a device that holds a file system or another known signature.
pub fn make(devices: &[&dyn Device], options: &MkfsOptions) -> Result<(), Error> {
    for device in devices {
        let mut read = |at: u64, buffer: &mut [u8]| device.read_at(Physical(at), buffer);
        if let Some(found) = existing_signature(device.size(), &mut read).map_err(Error::Device)? {
            return Err(Error::Occupied(found));
        }
    }
    make_over(devices, options)
}

/// Makes a volume on devices, and overwrites whatever they hold. The volume is durable when this
/// returns.
pub fn make_over(devices: &[&dyn Device], options: &MkfsOptions) -> Result<(), Error> {
    let mut layout = layout(options)?;
    for ((device, new), (_, of)) in devices.iter().zip(&mut layout.devices).zip(options.devices()) {
        new.zero.extend(left_superblocks(*device, of.total_bytes).map_err(Error::Device)?);
    }
    let mut media: Vec<_> = devices.iter().map(|device| DeviceMedium(*device)).collect();
    let mut media: Vec<&mut dyn Medium> = media.iter_mut().map(|medium| medium as _).collect();
    layout.write(&mut media).map_err(Error::Device)
}

/// Returns the superblocks that a larger, older volume has left behind the end of the new one.
fn left_superblocks(device: &dyn Device, end: u64) -> io::Result<Vec<(Physical, u64)>> {
    let size = SUPERBLOCK_SIZE as u64;
    let mut left = Vec::new();
    for at in SUPERBLOCK_COPIES {
        if at.0 + size <= end || at.0 + size > device.size() {
            continue;
        }
        let mut bytes = Buffer::zeroed(SUPERBLOCK_SIZE);
        device.read_at(at, &mut bytes)?;
        // Takes only a superblock that has its own address, whether it is sound or not: other data
        // behind the end may be in use.
        let (place, magic) = (&bytes[SUPERBLOCK_PLACE], &bytes[SUPERBLOCK_MAGIC_PLACE]);
        if *place == at.0.to_le_bytes() && *magic == ubtrfs_format::SUPERBLOCK_MAGIC {
            left.push((at, size));
        }
    }
    Ok(left)
}

/// A device to which a layout is written.
struct DeviceMedium<'a>(&'a dyn Device);

impl Medium for DeviceMedium<'_> {
    fn write_at(&mut self, at: Physical, bytes: &[u8]) -> io::Result<()> {
        let mut data = Buffer::zeroed(bytes.len());
        data.copy_from_slice(bytes);
        self.0.submit(vec![DeviceWrite { at, data: data.share() }]).wait().map_err(Into::into)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
