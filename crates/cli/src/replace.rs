//! `ubtrfs replace`: a new device in the place of an old one, of a volume that is mounted or not.

use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use serde::Serialize;
use ubtrfs::{Filesystem, ReplaceOptions, ReplaceProgress, ReplaceState};
use ubtrfs_format::items::Timespec;
use ubtrfs_server::device_ioctls::{CANCEL, Request, STATUS, asking, is_good, progress_of};

use ubtrfs_volume::Volume;

use crate::add::{about_new, prepare};
use crate::args::Window;
use crate::args::device::{ReplaceArguments, ReplaceCommand, ReplaceStart};
use crate::device::open_new;
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::output::{as_json, say};
use crate::show;
use crate::which_device::{no_such_device, of_volume, on_mount, open_without};

/// How often progress is shown.
const INTERVAL: Duration = Duration::from_millis(250);

/// How far a replacement is.
#[derive(Debug, Serialize)]
struct Shown {
    /// The number of the old device; 0 where that is not known.
    device: u64,
    state: &'static str,
    /// In thousandths.
    progress: u64,
    done_bytes: u64,
    total_bytes: u64,
    /// In seconds since 1970; 0: it has not.
    started: u64,
    stopped: u64,
    write_errors: u64,
    /// Blocks and sectors that could be read of no device.
    unreadable: u64,
}

/// `ubtrfs replace`
pub fn run(arguments: &ReplaceArguments) -> Result<()> {
    match &arguments.what {
        ReplaceCommand::Start(arguments) => match &*arguments.places {
            [directory] if directory.is_dir() => start_on_mount(arguments, directory),
            _ => start_on_devices(arguments),
        },
        ReplaceCommand::Resume(arguments) => {
            let volume = open_without(&arguments.places, Window::default(), |_, _| true)?;
            finish(&volume.fs, arguments.json)
        }
        ReplaceCommand::Status(arguments) => {
            let shown =
                status(&Mounted::open(&arguments.directory)?).map_err(|errno| about(&arguments.directory, errno))?;
            say(&if arguments.json { as_json(&shown)? } else { shown.as_text() })
        }
        ReplaceCommand::Cancel(arguments) => match &*arguments.places {
            [directory] if directory.is_dir() => {
                let answer = Mounted::open(directory)?.replace(asking(CANCEL));
                let answer = answer.map_err(|errno| about(directory, errno))?;
                if is_good(&answer) { Ok(()) } else { Err(about(directory, Errno::NOTCONN)) }
            }
            places => {
                let volume = open_without(places, Window::default(), |_, _| true)?;
                let failed = |error: ubtrfs::Error| match error.errno() {
                    Errno::NOTCONN => about(&places[0], Errno::NOTCONN),
                    _ => Failure::of(&error),
                };
                volume.fs.replacer().cancel().map_err(failed)?;
                volume.fs.close().map_err(|error| Failure::of(&error))
            }
        },
    }
}

fn status(mounted: &Mounted) -> std::result::Result<Shown, Errno> {
    mounted.replace(asking(STATUS)).map(|answer| {
        let (progress, thousandths) = progress_of(&answer);
        Shown::of(&progress, thousandths)
    })
}

fn start_on_mount(arguments: &ReplaceStart, directory: &Path) -> Result<()> {
    let mounted = Mounted::open(directory)?;
    let failed = |errno| about(directory, errno);
    if arguments.limit.is_some() && mounted.is_of_the_kernel().map_err(failed)? {
        let what = "--limit is for mounts of ubtrfs";
        return Err(Failure::new(format!("{}: it is a mount of the kernel's: {what}", directory.display())));
    }
    let source = on_mount(&mounted, &arguments.source).map_err(failed)?;
    let source = source.ok_or_else(|| no_such_device(&arguments.source))?;
    if matches!(status(&mounted).map_err(failed)?.state, "started" | "suspended") {
        return Err(about(directory, Errno::INPROGRESS));
    }
    let (_, size) = mounted.device_bytes(source.0).map_err(failed)?;
    let request = Request {
        source: source.0,
        source_path: String::new(),
        target: prepare(&arguments.target, arguments.force, (&mounted, directory), size)?,
        avoid_source: arguments.avoid_source,
        bytes_per_second: arguments.limit.unwrap_or(0),
        in_background: true,
    };
    let argument = request.encode().map_err(failed)?;
    let answer = mounted.replace(argument);
    let answer = answer.map_err(|errno| about_new(&arguments.target, directory, errno))?;
    if !is_good(&answer) {
        return Err(about(directory, Errno::INPROGRESS));
    }
    let shown = wait(&mounted).map_err(failed)?;
    say(&if arguments.json { as_json(&shown)? } else { shown.as_text() })?;
    match shown.state {
        "finished" => Ok(()),
        "cancelled" if shown.write_errors > 0 => {
            Err(Failure::new("the new device failed: the volume has the devices that it had"))
        }
        _ => Err(about(directory, Errno::CANCELED)),
    }
}

/// Shows how far a replacement is until it has ended; how.
fn wait(mounted: &Mounted) -> std::result::Result<Shown, Errno> {
    let progress = crate::report::Progress::new();
    loop {
        let shown = status(mounted)?;
        if shown.state != "started" {
            return Ok(shown);
        }
        progress.say(shown.as_text().trim_end());
        std::thread::sleep(INTERVAL);
    }
}

fn start_on_devices(arguments: &ReplaceStart) -> Result<()> {
    let window = Window::default();
    let is_source = |volume: &Volume, devid| of_volume(volume, &arguments.source, window) == Some(devid);
    let volume = open_without(&arguments.places, window, is_source)?;
    let fs = &volume.fs;
    let source = of_volume(fs.volume(), &arguments.source, window).ok_or_else(|| no_such_device(&arguments.source))?;
    if matches!(fs.replacer().progress().state, ReplaceState::Started | ReplaceState::Suspended) {
        return Err(about(&arguments.places[0], Errno::INPROGRESS));
    }
    let target = open_new(&arguments.target, arguments.force)?;
    let options = ReplaceOptions { avoid_source: arguments.avoid_source, bytes_per_second: arguments.limit };
    let failed = |error: ubtrfs::Error| Failure::about(arguments.target.display(), &error);
    fs.replacer().begin(source, target, options).map_err(failed)?;
    finish(fs, arguments.json)
}

/// Does what has been begun.
fn finish(fs: &Filesystem, json: bool) -> Result<()> {
    let progress = crate::report::Progress::new();
    let done = fs.replacer().run(&mut |found| {
        progress.say(Shown::of(found, thousandths(found)).as_text().trim_end());
        true
    });
    drop(progress);
    let closed = fs.close();
    done.map_err(|error| match error.errno() {
        Errno::NOTCONN => Failure::new("no device is being replaced, or the new one is not among the devices"),
        _ => Failure::of(&error),
    })?;
    closed.map_err(|error| Failure::of(&error))?;
    let found = fs.replacer().progress();
    let shown = Shown::of(&found, thousandths(&found));
    say(&if json { as_json(&shown)? } else { shown.as_text() })
}

fn thousandths(progress: &ReplaceProgress) -> u64 {
    let done = u128::from(progress.done_bytes) * 1000;
    done.checked_div(progress.total_bytes.into()).map_or(1000, |thousandths| thousandths as u64)
}

impl Shown {
    fn of(progress: &ReplaceProgress, thousandths: u64) -> Self {
        Self {
            device: progress.source.0,
            state: match progress.state {
                ReplaceState::Never => "never started",
                ReplaceState::Started => "started",
                ReplaceState::Finished => "finished",
                ReplaceState::Canceled => "cancelled",
                ReplaceState::Suspended => "suspended",
            },
            progress: if progress.state == ReplaceState::Never { 0 } else { thousandths },
            done_bytes: progress.done_bytes,
            total_bytes: progress.total_bytes,
            started: progress.started,
            stopped: progress.stopped,
            write_errors: progress.write_errors,
            unreadable: progress.unreadable,
        }
    }

    fn as_text(&self) -> String {
        let time = |seconds| show::seconds(Timespec { sec: seconds, nsec: 0 });
        let percent = format!("{}.{}%", self.progress / 10, self.progress % 10);
        let errors = format!("{} write errors, {} unreadable", self.write_errors, self.unreadable);
        let began = time(self.started);
        match self.state {
            "never started" => "no device has been replaced\n".into(),
            "finished" => format!("started {began}, finished {}, {errors}\n", time(self.stopped)),
            "cancelled" => format!("started {began}, cancelled {} at {percent}, {errors}\n", time(self.stopped)),
            "suspended" => format!("started {began}, suspended at {percent}, {errors}\n"),
            _ => format!("{percent} done, {errors}\n"),
        }
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
