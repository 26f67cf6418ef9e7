//! `ubtrfs filesystem resize`: a device of a volume, mounted or not, gets another size.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::Serialize;
use ubtrfs::VacateProgress;
use ubtrfs_format::DeviceId;
use ubtrfs_server::vacate_ioctls::{CANCEL, Size, parse_size};

use ubtrfs_volume::Volume;

use crate::args::Window;
use crate::args::filesystem::Resize;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::output::{as_json, say};
use crate::remedy::WITHOUT_FREE_SPACE_TREE;
use crate::report::{Progress, meanwhile};
use crate::signals::Signals;
use crate::size::show_size;
use crate::which_device::{no_such_device, of_volume, open_without};

/// A device that has another size.
#[derive(Debug, Serialize)]
struct Resized {
    device: u64,
    bytes_before: u64,
    bytes: u64,
}

/// `ubtrfs filesystem resize`
pub fn run(arguments: &Resize) -> Result<()> {
    if arguments.place.is_dir() {
        return on_mount(arguments);
    }
    in_devices(arguments)
}

/// The device and the size that are meant; without a device it is the first.
fn parse(text: &str) -> Result<(DeviceId, Size)> {
    let (device, size) = text.split_once(':').unwrap_or(("1", text));
    let (device, size) = (device.parse().ok(), parse_size(size));
    let wrong = || Failure::new(format!("'{text}' is no size: write [DEVID:]SIZE, +SIZE, -SIZE or max"));
    device.zip(size).map(|(device, size)| (DeviceId(device), size)).ok_or_else(wrong)
}

fn on_mount(arguments: &Resize) -> Result<()> {
    let (place, limit) = (&arguments.place, arguments.limit.unwrap_or(0));
    let mounted = Mounted::open(place)?;
    let failed = |errno| about(place, errno);
    if arguments.size == CANCEL {
        return mounted.resize(CANCEL, 0).map_err(|errno| match errno {
            Errno::NOTCONN => Failure::new(format!("{}: no device is being resized", place.display())),
            errno => failed(errno),
        });
    }
    let (device, size) = parse(&arguments.size)?;
    if limit > 0 && mounted.is_of_the_kernel().map_err(failed)? {
        let what = "--limit is for mounts of ubtrfs";
        return Err(Failure::new(format!("{}: it is a mount of the kernel's: {what}", place.display())));
    }
    let (used, before) = mounted.device_bytes(device.0).map_err(|errno| match errno {
        Errno::NODEV => no_such_device(&device.to_string()),
        errno => failed(errno),
    })?;
    let line = Progress::new();
    let look = || {
        if let Ok((now, _)) = mounted.device_bytes(device.0) {
            line.say(&format!("chunks have {} there, {} when it began", show_size(now), show_size(used)));
        }
    };
    let done = meanwhile(|| mounted.resize(&arguments.size, limit), look);
    drop(line);
    done.map_err(|errno| match errno {
        Errno::FBIG => too_large(&mounted, (device, size), before, failed(errno)),
        errno => failed(errno),
    })?;
    let (_, bytes) = mounted.device_bytes(device.0).map_err(failed)?;
    say_resized(arguments, device, before, bytes)
}

/// What makes room for a larger device, where it is known what that is on.
fn too_large(mounted: &Mounted, (device, size): (DeviceId, Size), before: u64, failure: Failure) -> Failure {
    let Ok(path) = mounted.device_path(device.0) else { return failure };
    let is_file = Path::new(&path).is_file();
    let remedy = match size.of(before, 0).filter(|_| is_file) {
        Some(bytes) => {
            format!("'truncate -s {bytes} {path}' makes its file so large, which can be done while it is mounted")
        }
        None => format!("{path} has to be made larger first (a loop device: 'losetup -c {path}' after its file)"),
    };
    failure.map_sentence(|sentence| format!("{sentence}; {remedy}"))
}

/// The file, of those that were given, that holds a device, if it is all of the file.
fn file_of(volume: &Volume, device: DeviceId, paths: &[PathBuf], window: Window) -> Option<PathBuf> {
    let is_file = |path: &&PathBuf| std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let is_it = |path: &&PathBuf| path.to_str().and_then(|path| of_volume(volume, path, window)) == Some(device);
    paths.iter().filter(is_file).find(is_it).filter(|_| window.is_whole()).cloned()
}

fn in_devices(arguments: &Resize) -> Result<()> {
    let (device, size) = parse(&arguments.size)?;
    let paths = [std::slice::from_ref(&arguments.place), &*arguments.image.devices].concat();
    let window = arguments.image.window;
    let volume = open_without(&paths, window, |_, _| false)?;
    let (fs, signals) = (&volume.fs, Signals::listen()?);
    let item = fs.volume().devices().into_iter().find(|item| item.devid == device);
    let before = item.ok_or_else(|| no_such_device(&device.to_string()))?.total_bytes;
    let there = fs.volume().device_size(device).map_err(|error| Failure::of(&error))?;
    let refusal = |errno| about_refusal(&arguments.place, errno).unwrap_or_else(|| Failure::about("resize", &errno));
    let bytes = size.of(before, there).ok_or_else(|| refusal(Errno::INVAL))?;
    if i64::try_from(bytes).is_err() {
        return Err(refusal(Errno::FBIG));
    }
    let file = file_of(fs.volume(), device, &paths, window);
    if let Some(file) = file.as_ref().filter(|_| bytes > there) {
        set_length(file, bytes)?;
    }
    fs.relocator().limit(arguments.limit);
    let line = Progress::new();
    let done = fs.relocator().resize_device(device, bytes, &|progress: &VacateProgress| {
        line.say(&format!("{} of {} left", show_size(progress.left_bytes), show_size(progress.total_bytes)));
        !signals.has_come()
    });
    drop(line);
    let closed = fs.close();
    if let Err(error) = done {
        // After any other error a crash may leave the volume with the new size.
        let Some(refusal) = about_refusal(&arguments.place, error.errno()) else { return Err(Failure::of(&error)) };
        if let Some(file) = file.as_ref().filter(|_| bytes > there) {
            set_length(file, there)?;
        }
        return Err(refusal);
    }
    closed.map_err(|error| Failure::of(&error))?;
    let bytes = fs.volume().devices().into_iter().find(|item| item.devid == device).map_or(0, |item| item.total_bytes);
    // What is behind a volume that ends before its file does is not the volume's.
    if let Some(file) = file.filter(|_| bytes < before && there == before) {
        set_length(&file, bytes)?;
    }
    say_resized(arguments, device, before, bytes)
}

fn set_length(file: &Path, bytes: u64) -> Result<()> {
    let opened = OpenOptions::new().write(true).open(file);
    opened.and_then(|file| file.set_len(bytes)).map_err(|error| Failure::about(file.display(), &error))
}

fn say_resized(arguments: &Resize, device: DeviceId, before: u64, bytes: u64) -> Result<()> {
    if arguments.json {
        return say(&as_json(&Resized { device: device.0, bytes_before: before, bytes })?);
    }
    say(&format!("device {device} has {} now, and had {}\n", show_size(bytes), show_size(before)))
}

fn about_refusal(place: &Path, errno: Errno) -> Option<Failure> {
    let what = match errno {
        Errno::INVAL => {
            "that is no size that a device can have: it has 16 MiB at the least, on mounts of the kernel's 256 MiB"
        }
        Errno::BUSY => "the device lacks something that the others have: 'ubtrfs scrub start' brings it up to them",
        Errno::CANCELED => "it was ended, and the device has the size that it had",
        Errno::FBIG => "the device is not that large",
        Errno::NOSPC => "there is no room for what is behind the new end",
        Errno::OPNOTSUPP => WITHOUT_FREE_SPACE_TREE,
        Errno::PERM => "it is the device of a seed",
        Errno::NODEV => "the volume has no such device, or it is not there",
        Errno::INPROGRESS => "a balance or another change of devices is under way",
        _ => return None,
    };
    Some(Failure::new(format!("{}: {what}", place.display())))
}

fn about(directory: &Path, errno: Errno) -> Failure {
    let place = directory.display();
    match errno {
        Errno::PERM => {
            Failure::new(format!("{place}: only root may resize a mounted volume, and nobody the device of a seed"))
        }
        Errno::INTR => Failure::new(format!("{place}: it was interrupted, and the device has the size that it had")),
        Errno::ROFS => Failure::new(format!("{place}: it is mounted read-only")),
        errno => about_refusal(directory, errno).unwrap_or_else(|| about_mount(place, errno)),
    }
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
