//! Scrub: all copies of all that is allocated are compared with what they should be, and those that
//! are wrong are rewritten. A device that lags is current again after that (invariant 34).
//!
//! Extents are found in the extent tree of the last commit, a batch at a time, so that what is
//! freed meanwhile is kept from being used again only for a moment. What is written meanwhile goes
//! to all devices.

use std::sync::Arc;
use std::time::Duration;

use ubtrfs_format::{DeviceId, Logical};
use ubtrfs_threads::atomic::{AtomicBool, Ordering};
use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, Rank};
use ubtrfs_volume::{DeviceErrors, ParityScrub, ScrubScope, Scrubbed};

use crate::allocated::{self, Allocated};
use crate::commit::Committer;
use crate::committed::Committed;
use crate::error::{Errno, Error, Result};
use crate::fs_info::FsInfo;

/// Extents of a batch.
const BATCH: usize = 256;
/// All addresses.
const ALL: (Logical, Logical) = (Logical(0), Logical(u64::MAX));

/// How to scrub.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubOptions {
    /// Only the copies on this device.
    pub device: Option<DeviceId>,
    /// Nothing is rewritten.
    pub read_only: bool,
    /// The first logical address and the one behind the last.
    pub range: Option<(Logical, Logical)>,
    /// The most bytes that are read in a second.
    pub bytes_per_second: Option<u64>,
}

/// What a scrub has done so far, as `btrfs scrub status` counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Extents of data.
    pub data_extents: u64,
    /// Tree blocks.
    pub tree_extents: u64,
    /// What was found of data.
    pub data: Scrubbed,
    /// What was found of tree blocks.
    pub trees: Scrubbed,
    /// What was found of parity, in sectors.
    pub parity: Scrubbed,
    /// Sectors of data without checksums.
    pub no_checksum: u64,
    /// Copies of superblocks that are damaged.
    pub super_errors: u64,
    /// The address up to which all is done.
    pub last: Logical,
}

impl ScrubProgress {
    /// Copies that were wrong and could not be rewritten.
    pub fn uncorrectable(&self) -> u64 {
        self.data.uncorrectable + self.trees.uncorrectable + self.parity.uncorrectable
    }

    /// Copies that could not be read or were wrong.
    pub fn errors(&self) -> u64 {
        let of = |found: &Scrubbed| found.read_errors + found.checksum_errors;
        of(&self.data) + of(&self.trees) + of(&self.parity) + self.super_errors
    }
}

/// Scrubs a volume, and brings devices that lag up to the others.
pub(crate) struct Scrubber {
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

    /// Ends all scrubs soon.
    pub(crate) fn stop(&self) {
        self.is_ending.store(true, Ordering::Release);
        let _turn = self.pause.lock();
        self.ended.notify_all();
    }

    /// Scrubs. `goes_on` is called again and again with what was done so far; if it says no, or the
    /// mount ends, that is all: `ECANCELED`. Devices that lag are current after it, if all copies
    /// on them were compared and are right now, and they have not failed again.
    pub(crate) fn run(
        &self,
        options: ScrubOptions,
        goes_on: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<ScrubProgress> {
        ubtrfs_tree::ensure_may_block()?;
        let volume = &self.info.volume;
        if self.info.options.rescue.ignore_data_checksums {
            // The kernel has no checksum tree then, and says so.
            return Err(Errno::UCLEAN.into());
        }
        let read_only = options.read_only || self.info.is_read_only();
        let (start, end) = options.range.unwrap_or(ALL);
        let lagging = if read_only || (start, end) != ALL { Vec::new() } else { volume.lagging_devices() };
        let is_scrubbed = |devid: &DeviceId| options.device.is_none_or(|device| device == *devid);
        let before: Vec<(DeviceId, DeviceErrors)> = volume
            .device_errors()
            .into_iter()
            .filter(|(devid, _)| lagging.contains(devid) && is_scrubbed(devid))
            .collect();
        if !before.is_empty() {
            // From here on a commit has what is written, and all of that goes to all devices.
            self.committer.commit()?;
        }
        let scope = ScrubScope { device: options.device, read_only };
        let progress = self.compare((start, end), scope, options.bytes_per_second, goes_on)?;
        if progress.uncorrectable() > 0 && !before.is_empty() {
            tracing::error!("{} copies could not be rewritten: devices still lag", progress.uncorrectable());
            return Ok(progress);
        }
        let mut is_any = false;
        for (devid, errors) in before {
            if volume.set_device_current(devid, errors) {
                tracing::info!(device = devid.0, "it has all that the others have");
                is_any = true;
            }
        }
        if is_any {
            // They get superblocks again.
            self.committer.commit_anyway()?;
        }
        Ok(progress)
    }

    fn compare(
        &self,
        (start, end): (Logical, Logical),
        scope: ScrubScope,
        bytes_per_second: Option<u64>,
        goes_on: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<ScrubProgress> {
        let mut progress = ScrubProgress { last: start, ..ScrubProgress::default() };
        for (devid, _) in self.info.volume.device_errors() {
            if scope.device.is_none_or(|device| device == devid) {
                progress.super_errors += self.info.volume.damaged_superblocks(devid)?;
            }
        }
        let begun = Instant::now();
        let mut parity = ParityScrub::default();
        while progress.last < end {
            let committed = self.info.committed();
            let is_more = self.batch(&committed, end, scope, (&mut progress, &mut parity))?;
            drop(committed);
            if !is_more {
                parity.end_row(&self.info.volume, scope);
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

    /// Scrubs a few extents; whether there may be more.
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
                        progress.trees.plus(volume.scrub_node(at, Some(level), generation, scope, parity)?);
                    progress.tree_extents += 1;
                }
                Allocated::Extent => progress.data_extents += 1,
                Allocated::Data { at, len, sums } => {
                    progress.no_checksum += if sums.is_none() { len / sector_size } else { 0 };
                    progress.data = progress.data.plus(volume.scrub_data(at, len, sums.as_deref(), scope, parity)?);
                }
            }
            Ok(())
        })?;
        progress.last = next.unwrap_or(end);
        Ok(next.is_some())
    }

    /// Brings all devices that lag up to the others. Returns those that are current again.
    pub(crate) fn catch_up(&self, goes_on: &mut dyn FnMut(&ScrubProgress) -> bool) -> Result<Vec<DeviceId>> {
        let mut lagging = self.info.volume.lagging_devices();
        if self.info.is_read_only() {
            return Ok(Vec::new());
        }
        for device in &lagging {
            self.run(ScrubOptions { device: Some(*device), ..ScrubOptions::default() }, goes_on)?;
        }
        let still = self.info.volume.lagging_devices();
        lagging.retain(|devid| !still.contains(devid));
        Ok(lagging)
    }

    /// Starts a thread that brings devices up to the others, if any lag.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<Option<JoinHandle<()>>> {
        if self.info.volume.lagging_devices().is_empty() {
            return Ok(None);
        }
        let scrubber = Arc::clone(self);
        let catch_up = move || match scrubber.catch_up(&mut |_| true) {
            Err(Error::Posix(Errno::CANCELED)) | Ok(_) => {}
            Err(error) => tracing::error!("devices that lag could not be brought up to the others: {error}"),
        };
        ubtrfs_threads::thread::Builder::new().name("scrub".into()).spawn(catch_up).map(Some)
    }
}
