//! Replacements of devices of a volume.

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use ubtrfs::{Filesystem, ReplaceOptions, ReplaceProgress, ReplaceState};
use ubtrfs_server::device_ioctls::{CANCEL, Request, STATUS, asking, is_good, progress_of};
use ubtrfs_volume::Volume;

use super::super::on_mount::OnMount;
use super::additions::{about_new, prepare};
use super::unmounted::Unmounted;
use crate::device::open_new;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::remedy::only_on_ours;
use crate::which_device::{no_such_device, of_volume, on_mount, open_without};

/// The interval at which progress is shown.
const INTERVAL: Duration = Duration::from_millis(250);

/// A replacement.
pub struct WantedReplacement<'a> {
    /// The old device: its path, its number, or `missing`.
    pub source: &'a str,
    pub target: &'a Path,
    /// The contents of the new device are overwritten.
    pub force: bool,
    /// The old device is read only if no other device has the data.
    pub avoid_source: bool,
    /// The most bytes that are copied in a second.
    pub limit: Option<u64>,
}

/// The progress of a replacement, or how it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Replaced {
    pub progress: ReplaceProgress,
    /// The part that is done, in thousandths.
    pub thousandths: u64,
}

/// Replaces devices of a volume.
pub trait Replacements {
    /// Replaces a device, and returns how that has ended. Calls `show` with the progress.
    fn replace(&self, wanted: &WantedReplacement<'_>, show: &dyn Fn(&Replaced)) -> Result<Replaced>;

    /// Resumes a replacement that was begun.
    fn resume_replacement(&self, limit: Option<u64>, show: &dyn Fn(&Replaced)) -> Result<Replaced>;

    /// Cancels a replacement.
    fn cancel_replacement(&self) -> Result<()>;

    /// Returns the failure about a replacement that was cancelled, or is resumed later.
    fn not_replaced(&self) -> Failure;
}

impl Replacements for OnMount {
    fn replace(&self, wanted: &WantedReplacement<'_>, show: &dyn Fn(&Replaced)) -> Result<Replaced> {
        let (mounted, place) = (self.opened()?, self.place());
        let failed = |errno| about(place, errno);
        if wanted.limit.is_some() {
            only_on_ours("--limit", place, mounted.is_of_the_kernel().map_err(failed)?)?;
        }
        let source = on_mount(mounted, wanted.source).map_err(failed)?;
        let source = source.ok_or_else(|| no_such_device(wanted.source))?;
        if is_begun(&status(mounted).map_err(failed)?.progress) {
            return Err(failed(Errno::INPROGRESS));
        }
        let (_, size) = mounted.device_bytes(source.0).map_err(failed)?;
        let request = Request {
            source: source.0,
            source_path: String::new(),
            target: prepare(wanted.target, wanted.force, (mounted, place), size)?,
            avoid_source: wanted.avoid_source,
            bytes_per_second: wanted.limit.unwrap_or(0),
            in_background: true,
        };
        let answer = mounted.replace(request.encode().map_err(failed)?);
        if !is_good(&answer.map_err(|errno| about_new(wanted.target, place, errno))?) {
            return Err(failed(Errno::INPROGRESS));
        }
        loop {
            let found = status(mounted).map_err(failed)?;
            if found.progress.state != ReplaceState::Started {
                return Ok(found);
            }
            show(&found);
            std::thread::sleep(INTERVAL);
        }
    }

    fn resume_replacement(&self, _: Option<u64>, _: &dyn Fn(&Replaced)) -> Result<Replaced> {
        Err(Failure::new(format!("{}: a mount goes on with a replacement by itself", self.place().display())))
    }

    fn cancel_replacement(&self) -> Result<()> {
        let answer = self.opened()?.replace(asking(CANCEL)).map_err(|errno| about(self.place(), errno))?;
        if is_good(&answer) { Ok(()) } else { Err(about(self.place(), Errno::NOTCONN)) }
    }

    fn not_replaced(&self) -> Failure {
        about(self.place(), Errno::CANCELED)
    }
}

/// Returns the progress of the replacement on a mount, or how the last one has ended.
pub fn replacement_on(directory: &Path) -> Result<Replaced> {
    status(&Mounted::open(directory)?).map_err(|errno| about(directory, errno))
}

fn status(mounted: &Mounted) -> std::result::Result<Replaced, Errno> {
    mounted.replace(asking(STATUS)).map(|answer| {
        let (progress, thousandths) = progress_of(&answer);
        Replaced { progress, thousandths }
    })
}

fn is_begun(progress: &ReplaceProgress) -> bool {
    matches!(progress.state, ReplaceState::Started | ReplaceState::Suspended)
}

impl Replacements for Unmounted {
    fn replace(&self, wanted: &WantedReplacement<'_>, show: &dyn Fn(&Replaced)) -> Result<Replaced> {
        let is_source = |volume: &Volume, devid| of_volume(volume, wanted.source, self.window) == Some(devid);
        let volume = open_without(&self.paths, self.window, is_source)?;
        let fs = &volume.fs;
        let source = of_volume(fs.volume(), wanted.source, self.window);
        let source = source.ok_or_else(|| no_such_device(wanted.source))?;
        if is_begun(&fs.replacer().progress()) {
            return Err(self.about(Errno::INPROGRESS));
        }
        let target = open_new(wanted.target, wanted.force)?;
        let options = ReplaceOptions { avoid_source: wanted.avoid_source, bytes_per_second: wanted.limit };
        let failed = |error: ubtrfs::Error| Failure::about(wanted.target.display(), &error);
        fs.replacer().begin(source, target, options).map_err(failed)?;
        finish(fs, show)
    }

    fn resume_replacement(&self, limit: Option<u64>, show: &dyn Fn(&Replaced)) -> Result<Replaced> {
        let volume = open_without(&self.paths, self.window, |_, _| true)?;
        volume.fs.replacer().limit(limit);
        finish(&volume.fs, show)
    }

    fn cancel_replacement(&self) -> Result<()> {
        let volume = open_without(&self.paths, self.window, |_, _| true)?;
        volume.fs.replacer().cancel().map_err(|error| match error.errno() {
            Errno::NOTCONN => self.about(Errno::NOTCONN),
            _ => Failure::of(&error),
        })?;
        volume.fs.close().map_err(|error| Failure::of(&error))
    }

    fn not_replaced(&self) -> Failure {
        self.about(Errno::CANCELED)
    }
}

impl Unmounted {
    fn about(&self, errno: Errno) -> Failure {
        about(self.place(), errno)
    }
}

/// Carries out the replacement that was begun.
fn finish(fs: &Filesystem, show: &dyn Fn(&Replaced)) -> Result<Replaced> {
    let done = fs.replacer().run(&mut |found| {
        show(&Replaced::of(*found));
        true
    });
    let closed = fs.close();
    done.map_err(|error| match error.errno() {
        Errno::NOTCONN => Failure::new("no device is being replaced, or the new one is not among the devices"),
        _ => Failure::of(&error),
    })?;
    closed.map_err(|error| Failure::of(&error))?;
    Ok(Replaced::of(fs.replacer().progress()))
}

impl Replaced {
    fn of(progress: ReplaceProgress) -> Self {
        let done = u128::from(progress.done_bytes) * 1000;
        let thousandths = done.checked_div(progress.total_bytes.into()).map_or(1000, |thousandths| thousandths as u64);
        Self { progress, thousandths }
    }
}

fn about(place: &Path, errno: Errno) -> Failure {
    let shown = place.display();
    match errno {
        Errno::PERM => Failure::new(format!(
            "{shown}: only root, or the user who has mounted it, may change the devices of a mounted volume"
        )),
        Errno::INPROGRESS => Failure::new(format!(
            "{shown}: a device is being replaced already, or a balance, a removal or a resizing is under way"
        )),
        Errno::CANCELED => {
            Failure::new(format!("{shown}: the replacement was cancelled, or goes on with the next mount"))
        }
        Errno::NOTCONN => Failure::new(format!("{shown}: no device is being replaced")),
        errno => about_mount(shown, errno),
    }
}
