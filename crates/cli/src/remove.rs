//! `ubtrfs device remove`: devices that leave a volume that is mounted or not.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::Serialize;
use ubtrfs::VacateProgress;
use ubtrfs_format::DeviceId;
use ubtrfs_server::vacate_ioctls::{CANCEL, MISSING, Which};
use ubtrfs_volume::Volume;

use crate::args::device::DeviceRemove;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::output::{as_json, say};
use crate::place::is_same;
use crate::remedy::WITHOUT_FREE_SPACE_TREE;
use crate::report::{Progress, meanwhile};
use crate::signals::Signals;
use crate::size::show_size;
use crate::which_device::{no_such_device, of_volume, on_mount, open_without};

/// A device that has left.
#[derive(Debug, Serialize)]
struct Removed {
    /// Its number; 0 where that is not known.
    device: u64,
    /// How it was named.
    name: String,
}

/// `ubtrfs device remove`
pub fn run(arguments: &DeviceRemove) -> Result<()> {
    let [old @ .., place] = &*arguments.places else { return Ok(()) };
    let names = old.iter().map(|path| path.to_str().ok_or_else(|| Failure::new("the name of the device is no UTF-8")));
    let names = names.collect::<Result<Vec<&str>>>()?;
    if place.is_dir() {
        let mounted = Mounted::open(place)?;
        if names == [CANCEL] {
            let done = mounted.remove_device(&Which::Name(CANCEL.into()), 0);
            return done.map_err(|errno| match errno {
                Errno::NOTCONN => Failure::new(format!("{}: no device is being removed", place.display())),
                errno => about(place, errno),
            });
        }
        if arguments.limit.is_some() && mounted.is_of_the_kernel().map_err(|errno| about(place, errno))? {
            let what = "--limit is for mounts of ubtrfs";
            return Err(Failure::new(format!("{}: it is a mount of the kernel's: {what}", place.display())));
        }
        let mut removed = Vec::new();
        let done = names.into_iter().try_for_each(|name| {
            removed.push(from_mount(arguments, &mounted, name, place)?);
            Ok(())
        });
        return say_removed(arguments, &removed).and(done);
    }
    let mut removed = Vec::new();
    let done = from_devices(arguments, &names, place, &mut removed);
    say_removed(arguments, &removed).and(done)
}

fn from_mount(arguments: &DeviceRemove, mounted: &Mounted, name: &str, directory: &Path) -> Result<Removed> {
    let failed = |errno| about(directory, errno);
    let (which, number) = if name == MISSING {
        (Which::Name(MISSING.into()), None)
    } else {
        let number = on_mount(mounted, name).map_err(failed)?.ok_or_else(|| no_such_device(name))?;
        (Which::Number(number.0), Some(number.0))
    };
    let bytes = |number: u64| mounted.device_bytes(number).map(|(used, _)| used).ok();
    let line = Progress::new();
    let total = number.and_then(bytes);
    let look = || {
        if let (Some(total), Some(left)) = (total, number.and_then(bytes)) {
            line.say(&moved(total, left));
        }
    };
    let done = meanwhile(|| mounted.remove_device(&which, arguments.limit.unwrap_or(0)), look);
    drop(line);
    done.map_err(failed)?;
    Ok(Removed { device: number.unwrap_or(0), name: name.to_owned() })
}

fn from_devices(arguments: &DeviceRemove, names: &[&str], place: &PathBuf, removed: &mut Vec<Removed>) -> Result<()> {
    let window = arguments.image.window;
    let mut paths = [std::slice::from_ref(place), &*arguments.image.devices].concat();
    for path in names.iter().map(Path::new).filter(|path| path.exists()) {
        if !paths.iter().any(|known| is_same(known, path)) {
            paths.push(path.to_owned());
        }
    }
    let goes = |volume: &Volume, devid| {
        names.iter().any(|name| *name == MISSING || of_volume(volume, name, window) == Some(devid))
    };
    let volume = open_without(&paths, window, goes)?;
    let (fs, signals) = (&volume.fs, Signals::listen()?);
    fs.relocator().limit(arguments.limit);
    for name in names.iter().copied() {
        let number = of_volume(fs.volume(), name, window).ok_or_else(|| no_such_device(name))?;
        let line = Progress::new();
        let done = fs.relocator().remove_device(number, &|progress: &VacateProgress| {
            line.say(&moved(progress.total_bytes, progress.left_bytes));
            !signals.has_come()
        });
        drop(line);
        if let Err(error) = done {
            let closed = fs.close();
            let failure = about_refusal(number, error.errno()).unwrap_or_else(|| Failure::of(&error));
            return closed.map_err(|error| Failure::of(&error)).and(Err(failure));
        }
        removed.push(Removed { device: number.0, name: name.to_owned() });
    }
    fs.close().map_err(|error| Failure::of(&error))
}

fn moved(total: u64, left: u64) -> String {
    format!("{} of {} left", show_size(left), show_size(total))
}

fn say_removed(arguments: &DeviceRemove, removed: &[Removed]) -> Result<()> {
    if arguments.json {
        return say(&as_json(&removed)?);
    }
    removed.iter().try_for_each(|Removed { name, .. }| say(&format!("{name} is no device of the volume any more\n")))
}

fn about_refusal(number: DeviceId, errno: Errno) -> Option<Failure> {
    let what = match errno {
        Errno::INVAL => "the others are too few for the profiles of the volume",
        Errno::NOSPC => "the others have no room for what it has",
        Errno::OPNOTSUPP => WITHOUT_FREE_SPACE_TREE,
        Errno::CANCELED => "a signal has ended that; what was moved stays where it is",
        _ => return None,
    };
    Some(Failure::new(format!("device {number} can't be removed: {what}")))
}

fn about(directory: &Path, errno: Errno) -> Failure {
    let place = directory.display();
    match errno {
        Errno::PERM => Failure::new(format!("{place}: only root may change the devices of a mounted volume")),
        Errno::INVAL => Failure::new(format!("{place}: the other devices are too few for the profiles of the volume")),
        Errno::NOSPC => Failure::new(format!("{place}: the other devices have no room for what it has")),
        Errno::OPNOTSUPP => Failure::new(format!("{place}: {WITHOUT_FREE_SPACE_TREE}")),
        Errno::NODEV => Failure::new(format!("{place}: the volume has no such device")),
        Errno::INPROGRESS => Failure::new(format!("{place}: a balance or another change of devices is under way")),
        Errno::CANCELED | Errno::INTR => {
            Failure::new(format!("{place}: the removal was ended; what was moved stays where it is"))
        }
        Errno::ROFS => Failure::new(format!("{place}: it is mounted read-only")),
        errno => about_mount(place, errno),
    }
}
