//! The ioctls that remove devices from a volume or resize them: btrfs's own, with their numbers and
//! arguments.

use ubtrfs::{Filesystem, VacateProgress};
use ubtrfs_format::DeviceId;
use ubtrfs_format::ioctl::{RESIZE, size_of};
use ubtrfs_fuse::Errno;

use crate::btrfs_ioctls::{put_text, text, u64_at};
use crate::devices::Devices;
use crate::long_ioctls::{Kind, within_limit};

/// Bytes of the arguments of these ioctls.
pub const ARGUMENT_SIZE: usize = size_of(RESIZE);
/// The name that, in place of a device to remove, means the first one that is missing.
pub const MISSING: &str = "missing";
/// The text that, in place of a device to remove or of a size, cancels the operation that is under
/// way.
pub const CANCEL: &str = "cancel";

/// The offset of our own limit, where the kernel has a descriptor that these commands don't use:
/// the most bytes per second; 0 is no limit.
const LIMIT: usize = 0;
/// The offset of the name in the first version of the argument, and in the second one.
const NAME: usize = 8;
const NAME_V2: usize = 56;
const FLAGS: usize = 16;
/// The flag that says that the place of the name has the number of the device.
const BY_ID: u64 = 1 << 3;

/// The device to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Its number.
    Number(u64),
    /// Its path, or [`MISSING`], or [`CANCEL`].
    Name(String),
}

/// A size that a device is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// So many bytes more.
    More(u64),
    /// So many bytes fewer.
    Fewer(u64),
    /// All bytes of the device.
    Most,
}

/// One of these commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VacateIoctl {
    Remove { which: Which, bytes_per_second: u64 },
    Resize { device: DeviceId, size: Size, bytes_per_second: u64 },
    CancelRemoval,
    CancelResizing,
}

fn argument_with(name: &str, at: usize, bytes_per_second: u64) -> Result<[u8; ARGUMENT_SIZE], Errno> {
    let mut argument = [0; ARGUMENT_SIZE];
    argument[LIMIT..LIMIT + 8].copy_from_slice(&bytes_per_second.to_le_bytes());
    put_text(&mut argument, at, ARGUMENT_SIZE - at, name)?;
    Ok(argument)
}

/// The argument of [`REMOVE_DEVICE_V2`](ubtrfs_format::ioctl::REMOVE_DEVICE_V2).
pub fn encode_removed(which: &Which, bytes_per_second: u64) -> Result<[u8; ARGUMENT_SIZE], Errno> {
    match which {
        Which::Name(name) => argument_with(name, NAME_V2, bytes_per_second),
        Which::Number(number) => {
            let mut argument = argument_with("", NAME_V2, bytes_per_second)?;
            argument[FLAGS..FLAGS + 8].copy_from_slice(&BY_ID.to_le_bytes());
            argument[NAME_V2..NAME_V2 + 8].copy_from_slice(&number.to_le_bytes());
            Ok(argument)
        }
    }
}

/// The argument of [`RESIZE`]: `DEVID:SIZE`, or [`CANCEL`].
pub fn encode_resized(what: &str, bytes_per_second: u64) -> Result<[u8; ARGUMENT_SIZE], Errno> {
    argument_with(what, NAME, bytes_per_second)
}

fn name_at(data: &[u8], at: usize) -> Result<String, Errno> {
    data.get(at..).ok_or(Errno::INVAL).and_then(text)
}

/// Parses a size: a number of bytes with a suffix from K to E, `+` or `-` and such a number, or
/// `max`.
pub fn parse_size(text: &str) -> Option<Size> {
    if text == "max" {
        return Some(Size::Most);
    }
    let number = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = number.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &*number[digits.len()..].to_ascii_lowercase() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "e" => 60,
        _ => return None,
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(1 << shift)?;
    Some(match text.as_bytes().first() {
        Some(b'+') => Size::More(bytes),
        Some(b'-') => Size::Fewer(bytes),
        _ => Size::Bytes(bytes),
    })
}

impl Size {
    /// The new size in bytes of a device that has `before` bytes in the volume, and `there` bytes
    /// in all.
    pub fn of(self, before: u64, there: u64) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::More(bytes) => before.checked_add(bytes),
            Self::Fewer(bytes) => before.checked_sub(bytes),
            Self::Most => Some(there),
        }
    }
}

impl VacateIoctl {
    /// Reads the argument of `REMOVE_DEVICE`.
    pub(crate) fn remove(data: &[u8]) -> Result<Self, Errno> {
        Self::parse_removal(data, false)
    }

    /// Reads the argument of `REMOVE_DEVICE_V2`.
    pub(crate) fn remove_v2(data: &[u8]) -> Result<Self, Errno> {
        Self::parse_removal(data, true)
    }

    fn parse_removal(data: &[u8], is_v2: bool) -> Result<Self, Errno> {
        let flags = if is_v2 { u64_at(data, FLAGS).ok_or(Errno::INVAL)? } else { 0 };
        let which = match flags {
            0 => Which::Name(name_at(data, if is_v2 { NAME_V2 } else { NAME })?),
            BY_ID => Which::Number(u64_at(data, NAME_V2).ok_or(Errno::INVAL)?),
            _ => return Err(Errno::OPNOTSUPP),
        };
        if which == Which::Name(CANCEL.into()) {
            return Ok(Self::CancelRemoval);
        }
        Ok(Self::Remove { which, bytes_per_second: u64_at(data, LIMIT).ok_or(Errno::INVAL)? })
    }

    /// Reads the argument of [`RESIZE`].
    pub(crate) fn resize(data: &[u8]) -> Result<Self, Errno> {
        let text = name_at(data, NAME)?;
        if text == CANCEL {
            return Ok(Self::CancelResizing);
        }
        let (device, size) = match text.split_once(':') {
            Some((device, size)) => (device.parse().map_err(|_| Errno::INVAL)?, size),
            None => (1, &*text),
        };
        Ok(Self::Resize {
            device: DeviceId(device),
            size: parse_size(size).ok_or(Errno::INVAL)?,
            bytes_per_second: u64_at(data, LIMIT).ok_or(Errno::INVAL)?,
        })
    }

    /// The kind of the command, by which others can cancel it.
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Remove { .. } | Self::CancelRemoval => Kind::Remove,
            Self::Resize { .. } | Self::CancelResizing => Kind::Resize,
        }
    }

    /// Returns whether it cancels another one.
    pub(crate) fn cancels(&self) -> bool {
        matches!(self, Self::CancelRemoval | Self::CancelResizing)
    }

    /// Executes a command that is no cancellation. For a large device that may take long.
    pub(crate) fn answer(
        self,
        engine: &Filesystem,
        devices: &Devices,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Errno> {
        let failed = |error: ubtrfs::Error| error.errno();
        match self {
            Self::Remove { which, bytes_per_second } => {
                let goes_on = within_limit(engine, bytes_per_second, goes_on);
                let number = match &which {
                    Which::Number(number) => DeviceId(*number),
                    Which::Name(name) if name == MISSING => {
                        engine.volume().devices().missing().first().ok_or(Errno::NODEV)?.devid
                    }
                    Which::Name(path) => devices.number_of(engine, 0, path)?,
                };
                devices.remove(engine, number, &|_: &VacateProgress| goes_on())?;
            }
            Self::Resize { device, size, bytes_per_second } => {
                let goes_on = within_limit(engine, bytes_per_second, goes_on);
                let item = engine.volume().devices().items().into_iter().find(|item| item.devid == device);
                let before = item.ok_or(Errno::NODEV)?.total_bytes;
                let there =
                    engine.volume().devices().size(device).map_err(|error| ubtrfs::Error::from(error).errno())?;
                let bytes = size.of(before, there).ok_or(Errno::INVAL)?;
                engine.relocator().resize_device(device, bytes, &|_: &VacateProgress| goes_on()).map_err(failed)?;
            }
            Self::CancelRemoval | Self::CancelResizing => {}
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removals_are_read_from_both_arguments() {
        let remove = |which| Ok(VacateIoctl::Remove { which, bytes_per_second: 5 });
        for which in [Which::Number(3), Which::Name("/dev/old".into()), Which::Name(MISSING.into())] {
            let argument = encode_removed(&which, 5).unwrap();
            assert_eq!(VacateIoctl::remove_v2(&argument), remove(which));
        }
        let argument = encode_resized("/dev/old", 5).unwrap();
        assert_eq!(VacateIoctl::remove(&argument), remove(Which::Name("/dev/old".into())));
        let cancel = encode_removed(&Which::Name(CANCEL.into()), 0).unwrap();
        assert_eq!(VacateIoctl::remove_v2(&cancel), Ok(VacateIoctl::CancelRemoval));
        let mut unknown = encode_removed(&Which::Number(3), 0).unwrap();
        unknown[FLAGS] |= 1;
        assert_eq!(VacateIoctl::remove_v2(&unknown), Err(Errno::OPNOTSUPP));
        for read in [VacateIoctl::resize, VacateIoctl::remove, VacateIoctl::remove_v2] {
            assert_eq!(read(&[]), Err(Errno::INVAL));
        }
    }

    #[test]
    fn sizes_are_absolute_or_relative() {
        let read = |text: &str| VacateIoctl::resize(&encode_resized(text, 5).unwrap());
        let resize = |device, size| Ok(VacateIoctl::Resize { device: DeviceId(device), size, bytes_per_second: 5 });
        assert_eq!(read("4096"), resize(1, Size::Bytes(4096)));
        assert_eq!(read("2:+1G"), resize(2, Size::More(1 << 30)));
        assert_eq!(read("-3m"), resize(1, Size::Fewer(3 << 20)));
        assert_eq!(read("7:max"), resize(7, Size::Most));
        assert_eq!(read(CANCEL), Ok(VacateIoctl::CancelResizing));
        for wrong in ["", "x", "1:", ":1G", "+", "--1", "+-1", "1GG", "1KiB", "17e", "1:2:3"] {
            assert_eq!(read(wrong), Err(Errno::INVAL), "{wrong}");
        }
        assert_eq!(Size::More(u64::MAX).of(1, 1), None);
        assert_eq!(Size::Fewer(2).of(1, 1), None);
        assert_eq!(Size::Most.of(1, 5), Some(5));
    }
}
