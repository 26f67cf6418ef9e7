//! `ubtrfs scrub`: on a mount by the ioctls, a thread for each device; of devices by the engine.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde::Serialize;
use ubtrfs::{Filesystem, Options, ScrubOptions, ScrubProgress};
use ubtrfs_format::items::Timespec;
use ubtrfs_format::{DeviceId, TreeId, Uuid};
use ubtrfs_server::scrub::{Request, extent};
use ubtrfs_volume::{OpenOptions, Volume};

use crate::args::scrub::{ScrubArguments, ScrubCommand, ScrubStart, ScrubStatus};
use crate::device::{about_volume_within, open_for_reading, open_for_writing};
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::output;
use crate::report::{Progress, meanwhile};
use crate::scrub_found::{Found, hours};
use crate::scrub_record::{Record, ScrubState};
use crate::show;
use crate::size::show_size;

/// The exit status if something is wrong and stays so, as that of `btrfs scrub`.
const UNCORRECTABLE: u8 = 3;
/// The exit status if all that was compared is right, but a device is missing.
const INCOMPLETE: u8 = 4;

/// How often it is looked whether a scrub that was cancelled has ended.
const CANCELLING: Duration = Duration::from_millis(20);

/// What `scrub status --json` shows of a device.
#[derive(Debug, Serialize)]
struct Shown {
    /// Of the scrub: it runs, or how the last one has ended.
    state: &'static str,
    /// When it began, in seconds since 1970; unknown of one that runs and was begun by somebody
    /// else.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<u64>,
    #[serde(flatten)]
    found: Found,
}

/// `ubtrfs scrub`
pub fn run(arguments: &ScrubArguments) -> Result<()> {
    match &arguments.what {
        ScrubCommand::Start(start) => run_one(start, false),
        ScrubCommand::Resume(start) => run_one(start, true),
        ScrubCommand::Status(of) => status(of),
        ScrubCommand::Cancel(on) => {
            cancel(&Mounted::open(&on.directory)?).map_err(|errno| about_scrub(&on.directory, errno))
        }
    }
}

/// Ends all scrubs of a mount, and waits until they have ended.
fn cancel(mounted: &Mounted) -> std::result::Result<(), Errno> {
    let age = |device| extent(&mounted.scrub_progress(DeviceId(device)).ok()?).map(|(_, millis)| millis);
    let devices = mounted.device_numbers()?;
    let running: Vec<_> = devices.into_iter().filter_map(|device| Some((device, age(device)?))).collect();
    mounted.cancel_scrub()?;
    for (device, began) in running {
        // A younger one is another one.
        while age(device).is_some_and(|now| now >= began) {
            std::thread::sleep(CANCELLING);
        }
    }
    Ok(())
}

fn run_one(arguments: &ScrubStart, resume: bool) -> Result<()> {
    let found = match arguments.places.as_slice() {
        [place] if place.is_dir() => on_mount(arguments, place, resume)?,
        _ if resume => return Err(Failure::new("only the scrub of a mounted volume can be resumed")),
        _ => vec![of_devices(arguments)?],
    };
    if arguments.json {
        output::say(&output::as_json(&found)?)?;
    } else {
        found.iter().try_for_each(|found| output::say(&found.as_text()))?;
    }
    let copies: u64 = found.iter().map(|found| found.uncorrectable).sum();
    if copies > 0 {
        let words = if arguments.readonly { "are wrong" } else { "are wrong and could not be rewritten" };
        return Err(Failure::new(format!("{copies} copies of blocks or sectors {words}")).with_status(UNCORRECTABLE));
    }
    let missing = found.iter().filter(|found| found.missing).filter_map(|found| found.device);
    let missing: Vec<String> = missing.map(|device| device.to_string()).collect();
    let sentence = match &*missing {
        [] => return Ok(()),
        [device] => format!("device {device} is missing: nothing of it was compared"),
        devices => format!("devices {} are missing: nothing of them was compared", devices.join(", ")),
    };
    Err(Failure::new(sentence).with_status(INCOMPLETE))
}

/// Scrubs all devices of a mount at the same time.
fn on_mount(arguments: &ScrubStart, place: &Path, resume: bool) -> Result<Vec<Found>> {
    let mounted = Mounted::open(place)?;
    let failed = |errno| about_scrub(place, errno);
    let devices = device_ids(&mounted).map_err(failed)?;
    let volume = Uuid(mounted.volume_id().map_err(failed)?);
    if (arguments.limit.is_some() || resume) && mounted.is_of_the_kernel().map_err(failed)? {
        let what = "--limit and resume are for mounts of ubtrfs";
        return Err(Failure::new(format!("{}: it is a mount of the kernel's: {what}", place.display())));
    }
    let request = |device| Request {
        device,
        start: 0,
        end: u64::MAX,
        read_only: arguments.readonly,
        resume,
        bytes_per_second: arguments.limit.unwrap_or(0),
    };
    let record = Record::new();
    record.keep(volume);
    let scrub_all = || {
        std::thread::scope(|scope| {
            let scrub = |device: &DeviceId| {
                let began = Instant::now();
                let done = mounted.scrub(&request(*device));
                (*device, done, began.elapsed())
            };
            let running: Vec<_> = devices.iter().map(|device| scope.spawn(move || scrub(device))).collect();
            let ended = running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.collect::<Vec<_>>()
        })
    };
    let progress = Progress::new();
    let look = || {
        let so_far = running(&mounted, &devices).unwrap_or_default();
        let bytes = so_far.iter().map(Found::bytes).sum();
        let left = so_far.iter().filter_map(|found| found.seconds_left).max();
        let left = left.map_or_else(String::new, |left| format!(", about {} left", hours(left)));
        progress.say(&format!("{} compared{left}", show_size(bytes)));
    };
    let results = meanwhile(scrub_all, look);
    drop(progress);
    let ended = results.into_iter().map(|(device, done, time)| match done {
        Ok(argument) => Ok(Found::of(device, &argument).within(time)),
        Err(Errno::NODEV) => Ok(Found::missing(device)),
        Err(errno) => Err(errno),
    });
    let (found, errors): (Vec<_>, Vec<_>) = ended.partition(std::result::Result::is_ok);
    let found: Vec<Found> = found.into_iter().flatten().collect();
    let error = errors.into_iter().find_map(std::result::Result::err);
    let state = match error {
        None => ScrubState::Finished,
        Some(Errno::CANCELED | Errno::INTR) => ScrubState::Cancelled,
        Some(_) => ScrubState::Failed,
    };
    // Of one that was running already this one knows nothing.
    if error != Some(Errno::INPROGRESS) {
        record.ended(state, found.clone()).keep(volume);
    }
    error.map_or(Ok(found), |errno| Err(failed(errno)))
}

/// Scrubs a volume that is not mounted. Devices that lag have all that the others have after that.
fn of_devices(arguments: &ScrubStart) -> Result<Found> {
    let (paths, window, read_only) = (&arguments.places, arguments.window, arguments.readonly);
    let opened = if read_only { open_for_reading } else { open_for_writing }(paths, window)?;
    let about = |error: &ubtrfs_volume::Error| about_volume_within(paths, window, error);
    let volume = Volume::open(opened.devices, OpenOptions { read_only }).map_err(|error| about(&error))?;
    let id = volume.fsid();
    let options = Options {
        read_only,
        background_commits: false,
        subvolume_id: Some(TreeId::FS.0),
        no_atime: true,
        ..Options::default()
    };
    let failed = |error: ubtrfs::Error| Failure::of(&error);
    let fs: Arc<Filesystem> = Filesystem::open(Arc::new(volume), options).map_err(failed)?;
    let progress = Progress::new();
    let mut show = |found: &ScrubProgress| {
        progress.say(&format!("{} compared", show_size(found.data.bytes + found.trees.bytes)));
        true
    };
    let options = ScrubOptions { read_only, bytes_per_second: arguments.limit, ..ScrubOptions::default() };
    let (record, began) = (Record::new(), Instant::now());
    record.keep(id);
    let found = fs.scrubber().run(options, &mut show);
    drop(progress);
    let (state, found) = match found {
        Ok(found) => (ScrubState::Finished, Ok(Found::of_volume(&found).within(began.elapsed()))),
        Err(error) => (ScrubState::Failed, Err(failed(error))),
    };
    record.ended(state, found.iter().cloned().collect()).keep(id);
    let found = found?;
    if !read_only {
        fs.close().map_err(failed)?;
    }
    Ok(found)
}

/// What scrubs that are going on have found so far.
fn running(mounted: &Mounted, devices: &[DeviceId]) -> std::result::Result<Vec<Found>, Errno> {
    let mut running = Vec::new();
    for device in devices {
        match mounted.scrub_progress(*device) {
            Ok(argument) => running.push(Found::so_far(*device, &argument)),
            Err(Errno::NOTCONN | Errno::NODEV) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(running)
}

fn status(arguments: &ScrubStatus) -> Result<()> {
    let directory = &arguments.on.directory;
    let mounted = Mounted::open(directory)?;
    let failed = |errno| about_scrub(directory, errno);
    let devices = device_ids(&mounted).map_err(failed)?;
    let running = running(&mounted, &devices).map_err(failed)?;
    let record = Record::of(Uuid(mounted.volume_id().map_err(failed)?));
    if !running.is_empty() {
        let started = record.filter(|record| record.state == ScrubState::Running).map(|record| record.started);
        if arguments.json {
            let shown = |found| Shown { state: "running", started, ended: None, found };
            return output::say(&output::as_json(&running.into_iter().map(shown).collect::<Vec<_>>())?);
        }
        return running.iter().try_for_each(|found| output::say(&format!("{} so far", found.as_text())));
    }
    let Some(Record { state, started, ended, devices }) = record else {
        let none: [Shown; 0] = [];
        let text = "no scrub is running, and none is known";
        return output::say(&if arguments.json { output::as_json(&none)? } else { text.to_owned() });
    };
    let state = match state {
        ScrubState::Running => "interrupted",
        ScrubState::Finished => "finished",
        ScrubState::Cancelled => "cancelled",
        ScrubState::Failed => "failed",
    };
    if arguments.json {
        let shown = |found| Shown { state, started: Some(started), ended, found };
        return output::say(&output::as_json(&devices.into_iter().map(shown).collect::<Vec<_>>())?);
    }
    let time = |seconds| show::seconds(Timespec { sec: seconds, nsec: 0 });
    let after = ended.map(|ended| Duration::from_secs(ended.saturating_sub(started)).as_secs());
    let after = after.map_or_else(String::new, |seconds| format!(" after {}", hours(seconds)));
    output::say(&format!("no scrub is running; the last one began {} and {}{after}", time(started), as_verb(state)))?;
    devices.iter().try_for_each(|found| output::say(&found.as_text()))
}

/// What a scrub did when it ended.
fn as_verb(state: &str) -> &str {
    match state {
        "finished" => "was done",
        "cancelled" => "was cancelled",
        "failed" => "failed",
        _ => "was interrupted",
    }
}

fn device_ids(mounted: &Mounted) -> std::result::Result<Vec<DeviceId>, Errno> {
    mounted.device_numbers().map(|numbers| numbers.into_iter().map(DeviceId).collect())
}

fn about_scrub(place: &Path, errno: Errno) -> Failure {
    let place = place.display();
    match errno {
        Errno::PERM => {
            Failure::new(format!("{place}: only root, or the user who has mounted it, may scrub a mounted volume"))
        }
        Errno::INPROGRESS => Failure::new(format!("{place}: it is being scrubbed already")),
        Errno::CANCELED => Failure::new(format!("{place}: the scrub was cancelled; 'ubtrfs scrub resume' goes on")),
        Errno::NOTCONN => Failure::new(format!("{place}: no scrub is running")),
        errno => about_mount(place, errno),
    }
}
