//! `ubtrfs scrub`: on a mount by the ioctls, a thread for each device; of devices by the engine.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use serde::Serialize;
use ubtrfs::{Filesystem, Options, ScrubOptions, ScrubProgress};
use ubtrfs_format::{DeviceId, TreeId};
use ubtrfs_server::scrub::{ARGUMENT_SIZE, Request, counters};
use ubtrfs_volume::{OpenOptions, Volume};

use crate::args::scrub::{ScrubArguments, ScrubCommand, ScrubStart, ScrubStatus};
use crate::device::{about_volume_within, open_for_reading, open_for_writing};
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::output;
use crate::report::{Progress, meanwhile};
use crate::size::show_size;

/// The exit status if something is wrong and stays so, as that of `btrfs scrub`.
const UNCORRECTABLE: u8 = 3;

/// What was found on one device, or on all of a volume that is not mounted.
#[derive(Debug, Default, Serialize)]
struct Found {
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u64>,
    data_bytes: u64,
    tree_bytes: u64,
    read_errors: u64,
    checksum_errors: u64,
    /// How many of these are sectors of parity; unknown of a mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    parity_errors: Option<u64>,
    super_errors: u64,
    corrected: u64,
    uncorrectable: u64,
}

/// `ubtrfs scrub`
pub fn run(arguments: &ScrubArguments) -> Result<()> {
    match &arguments.what {
        ScrubCommand::Start(start) => run_one(start, false),
        ScrubCommand::Resume(start) => run_one(start, true),
        ScrubCommand::Status(of) => status(of),
        ScrubCommand::Cancel(on) => {
            let failed = |errno| about_scrub(&on.directory, errno);
            Mounted::open(&on.directory)?.cancel_scrub().map_err(failed)
        }
    }
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
    match found.iter().map(|found| found.uncorrectable).sum() {
        0_u64 => Ok(()),
        copies => {
            let words = if arguments.readonly { "are wrong" } else { "are wrong and could not be rewritten" };
            Err(Failure::new(format!("{copies} copies of blocks or sectors {words}")).with_status(UNCORRECTABLE))
        }
    }
}

/// Scrubs all devices of a mount at the same time.
fn on_mount(arguments: &ScrubStart, place: &Path, resume: bool) -> Result<Vec<Found>> {
    let mounted = Mounted::open(place)?;
    let failed = |errno| about_scrub(place, errno);
    let devices = device_ids(&mounted).map_err(failed)?;
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
    let scrub_all = || {
        std::thread::scope(|scope| {
            let scrub = |device: &DeviceId| (*device, mounted.scrub(&request(*device)));
            let running: Vec<_> = devices.iter().map(|device| scope.spawn(move || scrub(device))).collect();
            let ended = running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
            ended.collect::<Vec<_>>()
        })
    };
    let progress = Progress::new();
    let look = || {
        let so_far = devices.iter().filter_map(|device| mounted.scrub_progress(*device).ok());
        progress.say(&format!("{} compared", show_size(so_far.map(|found| bytes(&Found::of(None, &found))).sum())));
    };
    let results = meanwhile(scrub_all, look);
    drop(progress);
    results
        .into_iter()
        // One that is missing.
        .filter(|(_, done)| !matches!(done, Err(Errno::NODEV)))
        .map(|(device, done)| done.map(|argument| Found::of(Some(device), &argument)).map_err(failed))
        .collect()
}

/// Scrubs a volume that is not mounted. Devices that lag have all that the others have after that.
fn of_devices(arguments: &ScrubStart) -> Result<Found> {
    let (paths, window, read_only) = (&arguments.places, arguments.window, arguments.readonly);
    let opened = if read_only { open_for_reading } else { open_for_writing }(paths, window)?;
    let about = |error: &ubtrfs_volume::Error| about_volume_within(paths, window, error);
    let volume = Volume::open(opened.devices, OpenOptions { read_only }).map_err(|error| about(&error))?;
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
    let found = fs.scrub(options, &mut show).map_err(failed)?;
    if !read_only {
        fs.close().map_err(failed)?;
    }
    Ok(Found {
        device: None,
        data_bytes: found.data.bytes,
        tree_bytes: found.trees.bytes,
        read_errors: found.data.read_errors + found.trees.read_errors + found.parity.read_errors,
        checksum_errors: found.data.checksum_errors + found.trees.checksum_errors + found.parity.checksum_errors,
        parity_errors: Some(found.parity.checksum_errors),
        super_errors: found.super_errors,
        corrected: found.data.corrected + found.trees.corrected,
        uncorrectable: found.uncorrectable(),
    })
}

fn status(arguments: &ScrubStatus) -> Result<()> {
    let directory = &arguments.on.directory;
    let mounted = Mounted::open(directory)?;
    let failed = |errno| about_scrub(directory, errno);
    let mut running = Vec::new();
    for device in device_ids(&mounted).map_err(failed)? {
        match mounted.scrub_progress(device) {
            Ok(argument) => running.push(Found::of(Some(device), &argument)),
            Err(Errno::NOTCONN) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    if arguments.json {
        return output::say(&output::as_json(&running)?);
    }
    if running.is_empty() {
        return output::say("no scrub is running");
    }
    running.iter().try_for_each(|found| output::say(&format!("{} so far", found.as_text())))
}

fn device_ids(mounted: &Mounted) -> std::result::Result<Vec<DeviceId>, Errno> {
    mounted.device_numbers().map(|numbers| numbers.into_iter().map(DeviceId).collect())
}

fn bytes(found: &Found) -> u64 {
    found.data_bytes + found.tree_bytes
}

impl Found {
    fn of(device: Option<DeviceId>, argument: &[u8; ARGUMENT_SIZE]) -> Self {
        let counters = counters(argument);
        let of = |name: &str| counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, value)| *value);
        Self {
            device: device.map(|device| device.0),
            data_bytes: of("data_bytes_scrubbed"),
            tree_bytes: of("tree_bytes_scrubbed"),
            read_errors: of("read_errors"),
            checksum_errors: of("csum_errors") + of("verify_errors"),
            parity_errors: None,
            super_errors: of("super_errors"),
            corrected: of("corrected_errors"),
            uncorrectable: of("uncorrectable_errors"),
        }
    }

    fn as_text(&self) -> String {
        let device = self.device.map_or_else(String::new, |device| format!("device {device}: "));
        let wrong = self.read_errors + self.checksum_errors + self.super_errors;
        let compared = show_size(bytes(self));
        if wrong == 0 {
            return format!("{device}{compared} compared, no error");
        }
        let parity = self.parity_errors.filter(|sectors| *sectors > 0);
        let parity = parity.map_or_else(String::new, |sectors| format!(" ({sectors} of them sectors of parity)"));
        format!(
            "{device}{compared} compared, {} unreadable, {} wrong{parity}, {} damaged superblocks; {} rewritten, {} could not be",
            self.read_errors, self.checksum_errors, self.super_errors, self.corrected, self.uncorrectable
        )
    }
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
