//! Scrubs. On a mount an ioctl scrubs each device, in a thread of its own; devices that are not
//! mounted are scrubbed by the engine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use ubtrfs::{Filesystem, Options, ScrubOptions, ScrubProgress};
use ubtrfs_format::{DeviceId, TreeId, Uuid};
use ubtrfs_server::scrub::Request;
use ubtrfs_volume::{OpenOptions, Volume};

use super::super::on_mount::OnMount;
use super::unmounted::Unmounted;
use crate::device::{about_volume_within, open_for_reading, open_for_writing};
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};
use crate::remedy::{only_on_mounts, only_on_ours};
use crate::report::{Progress, meanwhile};
use crate::scrub_found::{Found, hours};
use crate::scrub_record::{Record, ScrubState};
use crate::size::show_size;

/// The settings of a scrub.
pub struct WantedScrub {
    /// Nothing is rewritten.
    pub read_only: bool,
    /// The most bytes of each device that are read in a second.
    pub limit: Option<u64>,
    /// The scrub continues where the last one has ended.
    pub resume: bool,
}

/// Scrubs volumes.
pub trait Scrubs {
    /// Compares all copies, and returns what was found: for each device of a mount, all at the same
    /// time, or for a volume that is not mounted as a whole. If devices of such a volume lag, they
    /// have all that the others have afterwards.
    fn scrub(&self, wanted: &WantedScrub) -> Result<Vec<Found>>;
}

impl Scrubs for OnMount {
    fn scrub(&self, wanted: &WantedScrub) -> Result<Vec<Found>> {
        let (mounted, place) = (self.opened()?, self.place());
        let failed = |errno| about_scrub(place, errno);
        let devices = device_ids(mounted).map_err(failed)?;
        let volume = Uuid(mounted.volume_id().map_err(failed)?);
        if wanted.limit.is_some() || wanted.resume {
            let what = if wanted.resume { "'scrub resume'" } else { "--limit" };
            only_on_ours(what, place, mounted.is_of_the_kernel().map_err(failed)?)?;
        }
        let request = |device| Request {
            device,
            start: 0,
            end: u64::MAX,
            read_only: wanted.read_only,
            resume: wanted.resume,
            bytes_per_second: wanted.limit.unwrap_or(0),
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
                let ended =
                    running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
                ended.collect::<Vec<_>>()
            })
        };
        let progress = Progress::new();
        // The ioctl of a scrub that is cancelled returns no counters.
        let last_seen: RefCell<BTreeMap<DeviceId, Found>> = RefCell::default();
        let look = || {
            let so_far = running(mounted, &devices).unwrap_or_default();
            let seen = so_far.iter().filter_map(|found| Some((DeviceId(found.device?), found.clone())));
            last_seen.borrow_mut().extend(seen);
            let bytes = so_far.iter().map(Found::bytes).sum();
            let left = so_far.iter().filter_map(|found| found.seconds_left).max();
            let left = left.map_or_else(String::new, |left| format!(", about {} left", hours(left)));
            progress.say(&format!("{} compared{left}", show_size(bytes)));
        };
        let results = meanwhile(scrub_all, look);
        drop(progress);
        let mut last_seen = last_seen.into_inner();
        let (mut found, mut error) = (Vec::new(), None);
        for (device, done, time) in results {
            found.push(match done {
                Ok(argument) => Found::of(device, &argument).within(time),
                Err(Errno::NODEV) => Found::missing(device),
                Err(errno) => {
                    error.get_or_insert(errno);
                    last_seen.remove(&device).unwrap_or_else(|| Found::nothing(device)).within(time)
                }
            });
        }
        let state = match error {
            None => ScrubState::Finished,
            Some(Errno::CANCELED | Errno::INTR) => ScrubState::Cancelled,
            Some(_) => ScrubState::Failed,
        };
        // The findings of a scrub that was running already are not known here.
        if error != Some(Errno::INPROGRESS) {
            record.ended(state, found.clone()).keep(volume);
        }
        error.map_or(Ok(found), |errno| Err(failed(errno)))
    }
}

impl Scrubs for Unmounted {
    fn scrub(&self, wanted: &WantedScrub) -> Result<Vec<Found>> {
        if wanted.resume {
            return Err(only_on_mounts("'scrub resume'"));
        }
        let (paths, window, read_only) = (&self.paths, self.window, wanted.read_only);
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
        let options = ScrubOptions { read_only, bytes_per_second: wanted.limit, ..ScrubOptions::default() };
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
        Ok(vec![found])
    }
}

/// Returns what the scrubs that are running have found so far.
pub fn running(mounted: &Mounted, devices: &[DeviceId]) -> std::result::Result<Vec<Found>, Errno> {
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

/// Returns the numbers of the devices of a mount.
pub fn device_ids(mounted: &Mounted) -> std::result::Result<Vec<DeviceId>, Errno> {
    mounted.device_numbers().map(|numbers| numbers.into_iter().map(DeviceId).collect())
}

/// Describes an error of a scrub on a mount.
pub fn about_scrub(place: &Path, errno: Errno) -> Failure {
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
