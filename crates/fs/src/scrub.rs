//! Scrub: compares all copies of everything that is allocated with the expected content, and
//! rewrites wrong ones. A lagging device is current again after that (invariant 34).
//!
//! Extents are found in the extent tree of the last commit, a batch at a time, so that freed space
//! is kept from being reused only for a moment. New data is written to all devices meanwhile.

use std::sync::Arc;
use std::time::Duration;

use ubtrfs_format::items::ChunkItem;
use ubtrfs_format::{DeviceId, Generation, Logical};
use ubtrfs_threads::atomic::{AtomicBool, Ordering};
use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, Rank};
use ubtrfs_volume::{ParityScrub, ScrubScope};

use crate::allocated::{self, Allocated};
use crate::commit::Committer;
use crate::committed::Committed;
use crate::error::{Errno, Error, Result};
use crate::faults::ResilverFault;
use crate::fs_info::FsInfo;
use crate::resilver::Resilver;
use crate::scrub_progress::ScrubProgress;

/// The most extents in a batch.
const BATCH: usize = 256;
/// How long to leave a failed device alone before it is resilvered again. The pause doubles each
/// time, up to `LAST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LAST_PAUSE: Duration = Duration::from_secs(64);
/// How often a commit records how far a device has been resilvered, even if nothing else is
/// written.
const MIN_SAVED: Duration = Duration::from_secs(60);
/// All addresses.
const ALL: (Logical, Logical) = (Logical(0), Logical(u64::MAX));

/// How to scrub.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubOptions {
    /// Only the copies on this device.
    pub device: Option<DeviceId>,
    /// Whether to only check, and rewrite nothing.
    pub read_only: bool,
    /// The first logical address and the one behind the last.
    pub range: Option<(Logical, Logical)>,
    /// The most bytes that are read per second.
    pub bytes_per_second: Option<u64>,
}

/// Scrubs a volume, and resilvers lagging devices.
pub struct Scrubber {
    info: Arc<FsInfo>,
    committer: Arc<Committer>,
    is_ending: AtomicBool,
    pause: Mutex<()>,
    ended: Condvar,
}

impl Scrubber {
    pub(crate) fn new(info: Arc<FsInfo>, committer: Arc<Committer>) -> Self {
        Self {
            info,
            committer,
            is_ending: AtomicBool::new(false),
            pause: Mutex::with_default(Rank::ScrubPause),
            ended: Condvar::new(),
        }
    }

    /// Asks all scrubs to end soon.
    pub(crate) fn stop(&self) {
        self.is_ending.store(true, Ordering::Release);
        let _turn = self.pause.lock();
        self.ended.notify_all();
    }

    /// Compares all copies of everything that is allocated with the expected content, and rewrites
    /// wrong ones. `goes_on` is called repeatedly with the progress; when it returns false, or the
    /// mount ends, the scrub ends with `ECANCELED`. Lagging devices are current after a scrub that
    /// could rewrite everything that was wrong on them.
    pub fn run(&self, options: ScrubOptions, goes_on: &mut dyn FnMut(&ScrubProgress) -> bool) -> Result<ScrubProgress> {
        ubtrfs_tree::ensure_may_block()?;
        let volume = &self.info.volume;
        if self.info.options.rescue.ignore_data_checksums {
            // The kernel has no checksum tree then, and fails like this.
            return Err(Errno::UCLEAN.into());
        }
        let read_only = options.read_only || self.info.is_read_only();
        let (start, end) = options.range.unwrap_or(ALL);
        let lagging = if read_only || (start, end) != ALL { Vec::new() } else { volume.devices().lagging() };
        let is_scrubbed = |devid: &DeviceId| options.device.is_none_or(|device| device == *devid);
        let lagging: Vec<DeviceId> = lagging.into_iter().filter(is_scrubbed).collect();
        let scope = ScrubScope { device: options.device, read_only };
        self.bring_up(&lagging, || self.compare((start, end), scope, options.bytes_per_second, goes_on))
    }

    /// Returns about how many bytes a scrub reads from an address on: of all copies, or of those on
    /// one device. Parity is not counted.
    pub fn bytes_to_read(&self, device: Option<DeviceId>, from: Logical) -> u64 {
        let volume = &self.info.volume;
        let missing: Vec<DeviceId> = volume.devices().missing().iter().map(|item| item.devid).collect();
        let is_read = |devid: DeviceId| device.is_none_or(|device| device == devid) && !missing.contains(&devid);
        let space = self.info.space.lock();
        let of_chunk = |(start, chunk): &(Logical, ChunkItem)| {
            let (used, ..) = space.usage(*start)?;
            let stripes = chunk.stripes.iter().filter(|stripe| is_read(stripe.devid)).count() as u64;
            Some(used.saturating_mul(stripes) / chunk.flags.raid()?.data_stripes(chunk.stripes.len()).max(1))
        };
        let chunks = volume.chunk_map().all();
        let left = chunks.iter().filter(|(start, chunk)| start.0.saturating_add(chunk.length) > from.0);
        left.filter_map(of_chunk).sum()
    }

    /// Lets `compare` compare these lagging devices with the others. They are current afterwards if
    /// all copies on them are right now, and they have not failed again.
    fn bring_up(&self, lagging: &[DeviceId], compare: impl FnOnce() -> Result<ScrubProgress>) -> Result<ScrubProgress> {
        let volume = &self.info.volume;
        for devid in lagging {
            volume.devices().take_writes_again(*devid);
        }
        let before: Vec<(DeviceId, u64)> =
            lagging.iter().map(|devid| (*devid, volume.devices().missed_writes(*devid))).collect();
        if !before.is_empty() {
            // From here on every commit contains what is written, and all of it goes to all
            // devices. The first lock waits for copies that are made elsewhere before a commit
            // contains them (invariant 34).
            if !self.info.options.faults().in_resilver(ResilverFault::OverlookCopies) {
                drop(self.info.uncommitted_copies.write());
            }
            self.committer.commit()?;
        }
        let faults = self.info.options.faults();
        let fresh = (!faults.in_resilver(ResilverFault::CompareKept)).then(|| volume.devices().compare());
        let compared = compare();
        drop(fresh);
        volume.devices().say_bad_copies();
        let progress = compared?;
        // Content that no other device has does not count as missing on a device.
        let nowhere = if faults.in_resilver(ResilverFault::MissWhatNobodyHas) { 0 } else { progress.nowhere() };
        let lacking = progress.uncorrectable() - nowhere;
        if lacking > 0 && !before.is_empty() {
            tracing::error!("{lacking} copies could not be rewritten: devices still lag");
            return Ok(progress);
        }
        let mut is_any = false;
        for (devid, missed) in before {
            if volume.superblocks().set_device_current(devid, missed) {
                tracing::info!(device = devid.0, "it has all that the others have");
                is_any = true;
            }
        }
        if is_any {
            // The devices get superblocks again.
            self.committer.commit_anyway()?;
        }
        Ok(progress)
    }

    /// Compares what the others have written since this device had the commit `has`. Continues
    /// where an earlier comparison, also in an earlier mount, has ended. `missed` is the number of
    /// writes that the device had missed at the beginning.
    fn compare_later(
        &self,
        (device, missed): (DeviceId, u64),
        has: Generation,
        goes_on: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<ScrubProgress> {
        let volume = &self.info.volume;
        let mut resilver = Resilver::new(device, has, volume.superblocks().resilvered(device));
        let mut saved = Instant::now();
        while resilver.step(volume, &self.info.committed())? {
            if let Some(resilvered) = resilver.has_come_to() {
                volume.superblocks().set_resilvered(resilvered, missed);
            }
            let is_over = self.is_ending.load(Ordering::Acquire) || !goes_on(&resilver.progress);
            if is_over || saved.elapsed() >= MIN_SAVED {
                self.save_position(device)?;
                saved = Instant::now();
            }
            if is_over {
                return Err(Errno::CANCELED.into());
            }
        }
        goes_on(&resilver.progress);
        Ok(resilver.progress)
    }

    /// Lets a commit record how far a device has been resilvered, if no commit has done so.
    fn save_position(&self, device: DeviceId) -> Result<()> {
        let resilvered = self.info.volume.superblocks().resilvered(device);
        if resilvered.is_none()
            || resilvered == self.info.volume.superblocks().current().resilvered
            || self.info.is_read_only()
        {
            return Ok(());
        }
        self.committer.commit_anyway()
    }

    fn compare(
        &self,
        (start, end): (Logical, Logical),
        scope: ScrubScope,
        bytes_per_second: Option<u64>,
        goes_on: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<ScrubProgress> {
        let mut progress = ScrubProgress { last: start, ..ScrubProgress::default() };
        for (devid, _) in self.info.volume.devices().errors() {
            if scope.device.is_none_or(|device| device == devid) {
                progress.super_errors += self.info.volume.scrub().superblocks(devid)?;
            }
        }
        let begun = Instant::now();
        let mut parity = ParityScrub::default();
        while progress.last < end {
            let committed = self.info.committed();
            let is_more = self.batch(&committed, end, scope, (&mut progress, &mut parity))?;
            drop(committed);
            if !is_more {
                parity.end_row(self.info.volume.scrub(), scope);
            }
            progress.parity = parity.found;
            let goes_on_now = goes_on(&progress);
            if !is_more {
                break;
            }
            if self.is_ending.load(Ordering::Acquire) || !goes_on_now {
                return Err(Errno::CANCELED.into());
            }
            if let Some(rate) = bytes_per_second.filter(|rate| *rate > 0) {
                let bytes = progress.data.bytes + progress.trees.bytes + progress.parity.bytes;
                let micros = u128::from(bytes) * 1_000_000 / u128::from(rate);
                let due = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
                while begun.elapsed() < due {
                    self.rest(due.saturating_sub(begun.elapsed()));
                    if self.is_ending.load(Ordering::Acquire) || !goes_on(&progress) {
                        return Err(Errno::CANCELED.into());
                    }
                }
            }
        }
        Ok(progress)
    }

    fn rest(&self, time: Duration) {
        let mut turn = self.pause.lock();
        if !self.is_ending.load(Ordering::Acquire) && !time.is_zero() {
            self.ended.wait_for(&mut turn, time.min(Duration::from_secs(1)));
        }
    }

    /// Scrubs a few extents. Returns whether there may be more.
    fn batch(
        &self,
        committed: &Arc<Committed>,
        end: Logical,
        scope: ScrubScope,
        (progress, parity): (&mut ScrubProgress, &mut ParityScrub),
    ) -> Result<bool> {
        let volume = &self.info.volume;
        let sector_size = u64::from(committed.superblock.sector_size);
        let next = allocated::visit(committed, progress.last, end, BATCH, &mut |found| {
            match found {
                Allocated::Node { at, level, generation } => {
                    progress.trees =
                        progress.trees.plus(volume.scrub().node(at, Some(level), generation, scope, parity)?);
                    progress.tree_extents += 1;
                }
                Allocated::Extent => progress.data_extents += 1,
                Allocated::Data { at, len, sums } => {
                    progress.no_checksum += if sums.is_none() { len / sector_size } else { 0 };
                    progress.data = progress.data.plus(volume.scrub().data(at, len, sums.as_deref(), scope, parity)?);
                }
            }
            Ok(())
        })?;
        progress.last = next.unwrap_or(end);
        Ok(next.is_some())
    }

    /// Resilvers lagging devices. Returns those that are current now. Mounts do this by themselves,
    /// in the background.
    pub fn catch_up(&self, goes_on: &mut dyn FnMut(&ScrubProgress) -> bool) -> Result<Vec<DeviceId>> {
        let mut lagging = self.info.volume.devices().lagging();
        if self.info.is_read_only() {
            return Ok(Vec::new());
        }
        let mut failed = Ok(());
        for device in &lagging {
            match self.catch_up_one(*device, goes_on) {
                Err(Error::Posix(Errno::CANCELED)) => return Err(Errno::CANCELED.into()),
                Err(error) => failed = Err(error),
                Ok(()) => {}
            }
        }
        failed?;
        let still = self.info.volume.devices().lagging();
        lagging.retain(|devid| !still.contains(devid));
        Ok(lagging)
    }

    /// Compares what the others have written since this device had its last commit, or everything
    /// if that commit is not known. Ends when the device fails: the rest can wait until it accepts
    /// writes.
    fn catch_up_one(&self, device: DeviceId, goes_on: &mut dyn FnMut(&ScrubProgress) -> bool) -> Result<()> {
        let before = self.info.volume.devices().missed_writes(device);
        let has_failed = || self.info.volume.devices().missed_writes(device) != before;
        let mut goes_on = |progress: &ScrubProgress| goes_on(progress) && !has_failed() && !self.info.is_read_only();
        // Without the checksums nothing tells what was written later.
        let has =
            self.info.volume.devices().has_all_of(device).filter(|_| !self.info.options.rescue.ignore_data_checksums);
        let caught_up = match has {
            Some(has) => self.bring_up(&[device], || self.compare_later((device, before), has, &mut goes_on)),
            None => self.run(ScrubOptions { device: Some(device), ..ScrubOptions::default() }, &mut goes_on),
        };
        if has_failed() {
            tracing::warn!(device = device.0, "it has failed again, and is brought up to the others later");
            return Ok(());
        }
        caught_up.map(drop)
    }

    /// Starts the thread that resilvers devices whenever any lag.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let scrubber = Arc::clone(self);
        if !self.info.volume.devices().lagging().is_empty() {
            self.info.resilver_request.ask();
        }
        ubtrfs_threads::thread::Builder::new().name("resilver".into()).spawn(move || scrubber.keep_up())
    }

    /// Resilvers devices in the background. Failed devices may accept writes again soon, or never.
    fn keep_up(&self) {
        let mut pause = FIRST_PAUSE;
        while self.info.resilver_request.wait(None) {
            if self.info.options.faults().in_resilver(ResilverFault::LeaveBehind) {
                continue;
            }
            match self.catch_up(&mut |_| true) {
                Err(Error::Posix(Errno::CANCELED)) | Ok(_) => {}
                Err(error) => {
                    tracing::error!("devices that lag could not be brought up to the others: {}", error.chain());
                }
            }
            if self.info.is_read_only() || self.info.volume.devices().lagging().is_empty() {
                pause = FIRST_PAUSE;
                continue;
            }
            let until = Instant::now() + pause;
            while !self.is_ending.load(Ordering::Acquire) && Instant::now() < until {
                self.rest(until.saturating_duration_since(Instant::now()));
            }
            pause = (pause * 2).min(LAST_PAUSE);
            self.info.resilver_request.ask();
        }
    }
}
