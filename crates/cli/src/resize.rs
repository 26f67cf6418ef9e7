//! `ubtrfs filesystem resize`: resizes a device of a volume, mounted or not.

use serde::Serialize;
use ubtrfs_format::DeviceId;
use ubtrfs_server::vacate_ioctls::{CANCEL, Size, parse_size};

use crate::args::filesystem::Resize;
use crate::failure::{Failure, Result};
use crate::json::as_json;
use crate::output::say;
use crate::place::with_more;
use crate::size::show_size;
use crate::volume_at::devices::devices;

/// A device that was resized.
#[derive(Debug, Serialize)]
struct Resized {
    device: u64,
    bytes_before: u64,
    bytes: u64,
}

/// `ubtrfs filesystem resize`
pub fn run(arguments: &Resize) -> Result<()> {
    let volume = devices(&with_more(&arguments.place, &arguments.image.devices), arguments.image.window);
    if arguments.size == CANCEL {
        return volume.cancel_resizing();
    }
    let (device, size) = parse(&arguments.size)?;
    let (bytes_before, bytes) = volume.resize(device, size, &arguments.size, arguments.limit)?;
    if arguments.json {
        say(&as_json(&Resized { device: device.0, bytes_before, bytes })?);
        return Ok(());
    }
    say(&format!("device {device} has {} now, and had {}\n", show_size(bytes), show_size(bytes_before)));
    Ok(())
}

/// Parses the device and its size. Without a device, device 1 is meant.
fn parse(text: &str) -> Result<(DeviceId, Size)> {
    let (device, size) = text.split_once(':').unwrap_or(("1", text));
    let (device, size) = (device.parse().ok(), parse_size(size));
    let wrong = || Failure::new(format!("'{text}' is no size: write [DEVID:]SIZE, +SIZE, -SIZE or max"));
    device.zip(size).map(|(device, size)| (DeviceId(device), size)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_may_be_that_of_any_device() {
        let read = |text: &str| parse(text).ok();
        assert_eq!(read("2:+1G"), Some((DeviceId(2), Size::More(1 << 30))));
        assert_eq!(read("max"), Some((DeviceId(1), Size::Most)));
        for wrong in ["", "x:1G", "1:", "1:1X", "cancel"] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }
}
