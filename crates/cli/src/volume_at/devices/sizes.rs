//! Sizes of the devices of a volume.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use ubtrfs::VacateProgress;
use ubtrfs_format::DeviceId;
use ubtrfs_server::vacate_ioctls::{CANCEL, Size};
use ubtrfs_volume::Volume;

use super::super::on_mount::OnMount;
use super::unmounted::Unmounted;
use crate::args::Window;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::remedy::{WITHOUT_FREE_SPACE_TREE, only_on_mounts, only_on_ours};
use crate::report::{Progress, meanwhile};
use crate::signals::Signals;
use crate::size::show_size;
use crate::which_device::{no_such_device, of_volume, open_without};

/// Resizes devices of a volume.
pub trait Sizes {
    /// Resizes a device to `size`, which `text` gives as the ioctls take it. Moves at most so many
    /// bytes in a second. Returns the previous and the new size in bytes.
    fn resize(&self, device: DeviceId, size: Size, text: &str, limit: Option<u64>) -> Result<(u64, u64)>;

    /// Cancels the resize that runs.
    fn cancel_resizing(&self) -> Result<()>;
}

impl Sizes for OnMount {
    fn resize(&self, device: DeviceId, size: Size, text: &str, limit: Option<u64>) -> Result<(u64, u64)> {
        let (mounted, place, limit) = (self.opened()?, self.place(), limit.unwrap_or(0));
        let failed = |errno| about(place, errno);
        if limit > 0 {
            only_on_ours("--limit", place, mounted.is_of_the_kernel().map_err(failed)?)?;
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
        let done = meanwhile(|| mounted.resize(text, limit), look);
        drop(line);
        done.map_err(|errno| match errno {
            Errno::FBIG => too_large(mounted, (device, size), before, failed(errno)),
            errno => failed(errno),
        })?;
        let (_, bytes) = mounted.device_bytes(device.0).map_err(failed)?;
        Ok((before, bytes))
    }

    fn cancel_resizing(&self) -> Result<()> {
        self.opened()?.resize(CANCEL, 0).map_err(|errno| match errno {
            Errno::NOTCONN => Failure::new(format!("{}: no device is being resized", self.place().display())),
            errno => about(self.place(), errno),
        })
    }
}

/// Adds to a failure how to make room for a larger device, if it is known what the device is on.
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

impl Sizes for Unmounted {
    fn resize(&self, device: DeviceId, size: Size, _: &str, limit: Option<u64>) -> Result<(u64, u64)> {
        let (paths, window) = (&self.paths, self.window);
        let place = self.place();
        let volume = open_without(paths, window, |_, _| false)?;
        let (fs, signals) = (&volume.fs, Signals::listen()?);
        let item = fs.volume().devices().items().into_iter().find(|item| item.devid == device);
        let before = item.ok_or_else(|| no_such_device(&device.to_string()))?.total_bytes;
        let there = fs.volume().devices().size(device).map_err(|error| Failure::of(&error))?;
        let refusal = |errno| about_refusal(place, errno).unwrap_or_else(|| Failure::about("resize", &errno));
        let bytes = size.of(before, there).ok_or_else(|| refusal(Errno::INVAL))?;
        if i64::try_from(bytes).is_err() {
            return Err(refusal(Errno::FBIG));
        }
        let file = file_of(fs.volume(), device, paths, window);
        if let Some(file) = file.as_ref().filter(|_| bytes > there) {
            set_length(file, bytes)?;
        }
        fs.relocator().limit(limit);
        let line = Progress::new();
        let done = fs.relocator().resize_device(device, bytes, &|progress: &VacateProgress| {
            line.say(&format!("{} of {} left", show_size(progress.left_bytes), show_size(progress.total_bytes)));
            !signals.has_come()
        });
        drop(line);
        let closed = fs.close();
        if let Err(error) = done {
            // The refused change is undone. After any other error a crash may leave the volume with
            // the new size, so the file keeps its length.
            let Some(refusal) = about_refusal(place, error.errno()) else { return Err(Failure::of(&error)) };
            if let Some(file) = file.as_ref().filter(|_| bytes > there) {
                set_length(file, there)?;
            }
            return Err(refusal);
        }
        closed.map_err(|error| Failure::of(&error))?;
        let bytes = fs
            .volume()
            .devices()
            .items()
            .into_iter()
            .find(|item| item.devid == device)
            .map_or(0, |item| item.total_bytes);
        // If the device was smaller than its file, the rest of the file is not the volume's, and is
        // kept.
        if let Some(file) = file.filter(|_| bytes < before && there == before) {
            set_length(&file, bytes)?;
        }
        Ok((before, bytes))
    }

    fn cancel_resizing(&self) -> Result<()> {
        Err(only_on_mounts("'cancel'"))
    }
}

/// Returns the one of the given files that holds a device, if the device is all of the file.
fn file_of(volume: &Volume, device: DeviceId, paths: &[PathBuf], window: Window) -> Option<PathBuf> {
    let is_file = |path: &&PathBuf| std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let is_it = |path: &&PathBuf| path.to_str().and_then(|path| of_volume(volume, path, window)) == Some(device);
    paths.iter().filter(is_file).find(is_it).filter(|_| window.is_whole()).cloned()
}

fn set_length(file: &Path, bytes: u64) -> Result<()> {
    let opened = OpenOptions::new().write(true).open(file);
    opened.and_then(|file| file.set_len(bytes)).map_err(|error| Failure::about(file.display(), &error))
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
