//! Removals of devices from a volume.

use std::path::Path;

use rustix::io::Errno;
use ubtrfs::VacateProgress;
use ubtrfs_format::DeviceId;
use ubtrfs_server::vacate_ioctls::{CANCEL, MISSING, Which};
use ubtrfs_volume::Volume;

use super::super::on_mount::OnMount;
use super::unmounted::Unmounted;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::place::is_same;
use crate::remedy::{WITHOUT_FREE_SPACE_TREE, only_on_mounts, only_on_ours};
use crate::report::{Progress, meanwhile};
use crate::signals::Signals;
use crate::size::show_size;
use crate::which_device::{no_such_device, of_volume, on_mount, open_without};

/// Removes devices from a volume.
pub trait Removals {
    /// Removes the devices with these names, one after the other. Moves at most so many bytes in a
    /// second. Calls `removed` for each device that was removed, with its number if that is known.
    fn remove(&self, names: &[&str], limit: Option<u64>, removed: &mut dyn FnMut(Option<DeviceId>, &str))
    -> Result<()>;

    /// Cancels the removal that runs.
    fn cancel_removal(&self) -> Result<()>;
}

impl Removals for OnMount {
    fn remove(
        &self,
        names: &[&str],
        limit: Option<u64>,
        removed: &mut dyn FnMut(Option<DeviceId>, &str),
    ) -> Result<()> {
        let (mounted, place) = (self.opened()?, self.place());
        if limit.is_some() {
            only_on_ours("--limit", place, mounted.is_of_the_kernel().map_err(|errno| about(place, errno))?)?;
        }
        names.iter().try_for_each(|name| {
            removed(from_mount(limit, mounted, name, place)?, name);
            Ok(())
        })
    }

    fn cancel_removal(&self) -> Result<()> {
        let done = self.opened()?.remove_device(&Which::Name(CANCEL.into()), 0);
        done.map_err(|errno| match errno {
            Errno::NOTCONN => Failure::new(format!("{}: no device is being removed", self.place().display())),
            errno => about(self.place(), errno),
        })
    }
}

/// Removes one device of a mount, and returns its number if that is known.
fn from_mount(limit: Option<u64>, mounted: &Mounted, name: &str, directory: &Path) -> Result<Option<DeviceId>> {
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
    let done = meanwhile(|| mounted.remove_device(&which, limit.unwrap_or(0)), look);
    drop(line);
    done.map_err(failed)?;
    Ok(number.map(DeviceId))
}

impl Removals for Unmounted {
    fn remove(
        &self,
        names: &[&str],
        limit: Option<u64>,
        removed: &mut dyn FnMut(Option<DeviceId>, &str),
    ) -> Result<()> {
        let (window, mut paths) = (self.window, self.paths.clone());
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
        fs.relocator().limit(limit);
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
            removed(Some(number), name);
        }
        fs.close().map_err(|error| Failure::of(&error))
    }

    fn cancel_removal(&self) -> Result<()> {
        Err(only_on_mounts("'cancel'"))
    }
}

fn moved(total: u64, left: u64) -> String {
    format!("{} of {} left", show_size(left), show_size(total))
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
        Errno::PERM => Failure::new(format!(
            "{place}: only root, or the user who has mounted it, may change the devices of a mounted volume"
        )),
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
