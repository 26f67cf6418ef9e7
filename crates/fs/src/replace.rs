//! The replacement of a device by a new one: the content of the old device is copied, while new
//! data is written to both.
//!
//! The old device's extents are copied in the order of their places on it, as the kernel's driver
//! does; the item in the device tree records up to where everything is copied. What is copied is
//! the space that the extent tree of the last commit has as allocated. It is verified as for any
//! reader, so what the old device can't return any more is read from others. As long as that
//! commit's trees are referred to, all of it stays unchanged, except for data without checksums,
//! which nobody may write to while it is copied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ubtrfs_format::items::{ChunkItem, DevReplaceItem};
use ubtrfs_format::{DeviceId, Logical};
use ubtrfs_threads::atomic::AtomicBool;
use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};
use ubtrfs_volume::{Copied, Device, Error as VolumeError};

use crate::allocated::{self, Allocated};
use crate::commit::Committer;
use crate::error::{Errno, Error, Result};
use crate::fs_info::FsInfo;
use crate::replacement::Replacement;
use ubtrfs_space::stripe_length;

/// The most extents in a batch.
const BATCH: usize = 64;
/// How often the progress is shown.
const SHOWN_EVERY: Duration = Duration::from_millis(100);
/// How often to try to copy data that is being written, with a commit in between.
const ATTEMPTS: u32 = 20;

/// How to replace a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaceOptions {
    /// Whether to read the old device only if no other device has the same data.
    pub avoid_source: bool,
    /// The most bytes that are copied per second.
    pub bytes_per_second: Option<u64>,
}

/// The state of a replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplaceState {
    /// There has never been one.
    #[default]
    Never,
    /// It is in progress.
    Started,
    /// The new device has replaced the old one.
    Finished,
    /// It was cancelled, or abandoned since the new device failed.
    Canceled,
    /// It is in progress, but the new device is missing, or the volume is only read.
    Suspended,
}

/// The progress of a replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaceProgress {
    /// The device that is replaced.
    pub source: DeviceId,
    /// The state.
    pub state: ReplaceState,
    /// Bytes of the device's extents that are copied.
    pub done_bytes: u64,
    /// Bytes of all extents of the device.
    pub total_bytes: u64,
    /// When it began, in seconds since 1970.
    pub started: u64,
    /// When it ended, in seconds since 1970.
    pub stopped: u64,
    /// Writes to the new device that failed.
    pub write_errors: u64,
    /// Sectors and tree blocks that could be read from no device.
    pub unreadable: u64,
}

/// The extents that chunks have on the device, as of these counts of chunks made and removed.
#[derive(Default)]
struct KnownExtents {
    counts: Option<(u64, u64)>,
    extents: Vec<DeviceExtent>,
}

/// A part of a chunk on the device that is replaced.
#[derive(Clone, Copy)]
struct DeviceExtent {
    start: u64,
    length: u64,
    chunk: Logical,
    chunk_length: u64,
}

/// How much was copied since when, and when the progress was last reported.
struct Pace {
    bytes: u64,
    begun: Instant,
    shown: Option<Instant>,
}

/// Replaces devices, one at a time.
pub struct Replacer {
    info: Arc<FsInfo>,
    committer: Arc<Committer>,
    replacement: Arc<Replacement>,
    is_ending: AtomicBool,
    /// Held while data is copied.
    running: Mutex<()>,
    pause: Mutex<()>,
    ended: Condvar,
    bytes_per_second: AtomicU64,
}

impl Replacer {
    pub(crate) fn new(info: Arc<FsInfo>, committer: Arc<Committer>) -> Self {
        let replacement = committer.replacement().clone();
        Self {
            info,
            committer,
            replacement,
            is_ending: AtomicBool::new(false),
            running: Mutex::with_default(Rank::ReplaceRunning),
            pause: Mutex::with_default(Rank::ReplacePause),
            ended: Condvar::new(),
            bytes_per_second: AtomicU64::new(0),
        }
    }

    /// Asks the copying to end soon. The next mount resumes it.
    pub(crate) fn stop(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let _turn = self.pause.lock();
        self.ended.notify_all();
    }

    /// Records, for the last commit, that the volume is unmounted.
    pub(crate) fn suspend(&self) {
        if self.replacement.suspend() {
            self.committer.want_commit();
        }
    }

    /// Begins to replace a device, which may be missing, by a new one that is as large, whatever is
    /// on that; this is durable when it returns. [`Self::run`] does the copying. `EINPROGRESS` if a
    /// device is being replaced already.
    pub fn begin(&self, source: DeviceId, target: Arc<dyn Device>, options: ReplaceOptions) -> Result<()> {
        // With this lock, the copying for the last replacement has ended.
        let Some(_idle) = self.running.try_lock() else { return Err(Errno::INPROGRESS.into()) };
        let _exclusive = self.info.exclusive_op.begin()?;
        self.limit(options.bytes_per_second);
        self.replacement.begin(source, target, options.avoid_source)?;
        self.committer.commit_anyway()
    }

    /// From now on so many bytes are copied in a second at the most, by what is under way, too.
    pub fn limit(&self, bytes_per_second: Option<u64>) {
        self.bytes_per_second.store(bytes_per_second.unwrap_or(0), Ordering::Release);
    }

    /// Returns the progress of the replacement of a device, or how the last one ended.
    pub fn progress(&self) -> ReplaceProgress {
        let item = self.replacement.item();
        let extents = self.extents(item.source, 0);
        let total_bytes = extents.iter().map(|extent| extent.length).sum();
        let is_done = |extent: &&DeviceExtent| extent.start + extent.length <= item.cursor_left;
        let is_pending = self.info.volume.replacement().state().is_some();
        let state = match item.state {
            // The end is not durable, so both devices are still needed.
            DevReplaceItem::FINISHED | DevReplaceItem::CANCELED if is_pending && self.info.aborted().is_some() => {
                ReplaceState::Suspended
            }
            DevReplaceItem::FINISHED | DevReplaceItem::CANCELED if is_pending => ReplaceState::Started,
            DevReplaceItem::STARTED => ReplaceState::Started,
            DevReplaceItem::FINISHED => ReplaceState::Finished,
            DevReplaceItem::CANCELED => ReplaceState::Canceled,
            DevReplaceItem::SUSPENDED => ReplaceState::Suspended,
            _ => ReplaceState::Never,
        };
        let done_bytes = match state {
            ReplaceState::Finished => total_bytes,
            _ => extents.iter().filter(is_done).map(|extent| extent.length).sum(),
        };
        ReplaceProgress {
            source: item.source,
            state,
            done_bytes,
            total_bytes,
            started: item.time_started,
            stopped: item.time_stopped,
            write_errors: item.write_errors,
            unreadable: item.unreadable,
        }
    }

    /// Cancels the replacement of a device: the volume keeps the devices that it had before.
    /// `ENOTCONN` if there is none.
    pub fn cancel(&self) -> Result<()> {
        self.end(DevReplaceItem::CANCELED)?;
        self.wake();
        // With this lock, nothing is written to the new device any more.
        drop(self.running.lock());
        Ok(())
    }

    /// Copies the content of the old device to the new one, and puts the new one in its place; the
    /// old one is not a device of the volume any more. `goes_on` is called repeatedly; when it
    /// returns false, or the mount ends, this fails with `ECANCELED`, and the next mount resumes.
    /// It also fails with `ECANCELED` when the replacement is cancelled. `EIO` if the new device
    /// failed: the volume is as before.
    pub fn run(&self, goes_on: &mut dyn FnMut(&ReplaceProgress) -> bool) -> Result<()> {
        ubtrfs_tree::ensure_may_block()?;
        let Some(running) = self.running.try_lock() else { return Err(Errno::INPROGRESS.into()) };
        self.run_alone(&running, goes_on)
    }

    fn run_alone(
        &self,
        _running: &MutexGuard<'_, ()>,
        goes_on: &mut dyn FnMut(&ReplaceProgress) -> bool,
    ) -> Result<()> {
        if self.info.volume.replacement().state().is_none() {
            return Err(Errno::NOTCONN.into());
        }
        self.replacement.go_on();
        let mut pace = Pace { bytes: 0, begun: Instant::now(), shown: None };
        let mut known = KnownExtents::default();
        loop {
            let item = self.replacement.item();
            let Some(extent) = self.next_extent(&mut known, item.source, item.cursor_left) else { break };
            self.replacement.copies(extent.start, extent.start + extent.length);
            let mut from = Some(extent.chunk);
            while let Some(start) = from {
                if !self.may_go_on(goes_on, &mut pace)? {
                    return Err(Errno::CANCELED.into());
                }
                let (next, copied) = self.copy(&extent, start).or_else(|error| self.given_up(error))?;
                pace.bytes += copied.bytes;
                self.replacement.add_unreadable(copied.unreadable);
                from = next;
            }
            self.replacement.has_copied();
        }
        // The last copy may have exceeded the rate.
        if !self.may_go_on(goes_on, &mut pace)? {
            return Err(Errno::CANCELED.into());
        }
        match self.end(DevReplaceItem::FINISHED) {
            Ok(DevReplaceItem::FINISHED) => {
                tracing::info!("a device of the volume has been replaced");
                Ok(())
            }
            Ok(_) => Err(Errno::IO.into()),
            Err(error) if error.errno() == Errno::NOTCONN => Err(Errno::CANCELED.into()),
            Err(error) => Err(error),
        }
    }

    /// Ends the replacement by a commit. Returns how it has ended. `ENOTCONN` if there is none.
    fn end(&self, how: u64) -> Result<u64> {
        self.replacement.end(how)?;
        self.committer.commit_anyway()?;
        Ok(self.replacement.item().state)
    }

    /// Waits as long as the rate limit and the mount require. Returns whether to go on.
    fn may_go_on(&self, goes_on: &mut dyn FnMut(&ReplaceProgress) -> bool, pace: &mut Pace) -> Result<bool> {
        loop {
            if let Some(error) = self.info.aborted() {
                return Err(Error::Aborted(error));
            }
            let is_started = self.replacement.item().state == DevReplaceItem::STARTED;
            if self.is_ending.load(Ordering::Acquire) || !is_started {
                return Ok(false);
            }
            if pace.shown.is_none_or(|shown| shown.elapsed() >= SHOWN_EVERY) {
                pace.shown = Some(Instant::now());
                if !goes_on(&self.progress()) {
                    return Ok(false);
                }
            }
            let rate = self.bytes_per_second.load(Ordering::Acquire);
            let micros = (u128::from(pace.bytes) * 1_000_000).checked_div(u128::from(rate)).unwrap_or(0);
            let due = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
            let mut rest = due.saturating_sub(pace.begun.elapsed());
            if self.info.is_read_only() {
                // The copying continues when the mount may write again.
                rest = Duration::from_secs(1);
            }
            if rest.is_zero() {
                return Ok(true);
            }
            let mut turn = self.pause.lock();
            if !self.is_ending.load(Ordering::Acquire) {
                self.ended.wait_for(&mut turn, rest.min(Duration::from_secs(1)));
            }
        }
    }

    /// Abandons the replacement if the new device failed, since the copies are of no use then.
    fn given_up<T>(&self, error: Error) -> Result<T> {
        if !matches!(error, Error::Volume(VolumeError::NoTarget)) {
            return Err(error);
        }
        // The next commit records this.
        self.committer.commit_anyway()?;
        let is_cancelled = self.replacement.item().write_errors == 0;
        Err(if is_cancelled { Errno::CANCELED } else { Errno::IO }.into())
    }

    /// Copies a few extents. Returns where to continue, and what was copied.
    fn copy(&self, extent: &DeviceExtent, from: Logical) -> Result<(Option<Logical>, Copied)> {
        let volume = &self.info.volume;
        let range = extent.start..extent.start + extent.length;
        let mut copied = Copied::default();
        for attempt in 0.. {
            // Meanwhile no space that this commit refers to is allocated again.
            let committed = self.info.committed();
            let end = extent.chunk.plus(extent.chunk_length);
            copied = Copied::default();
            // With a rate limit, as little as possible is copied before checking again.
            let is_paced = self.bytes_per_second.load(Ordering::Acquire) > 0;
            let batch = if is_paced { 1 } else { BATCH };
            let next = allocated::visit(&committed, from, end, batch, &mut |found| {
                copied = copied.plus(match found {
                    Allocated::Node { at, level, generation } => {
                        volume.replacement().copy_node(at, Some(level), generation, &range)?
                    }
                    Allocated::Extent => Copied::default(),
                    Allocated::Data { at, len, sums } => {
                        volume.replacement().copy_data(at, len, sums.as_deref(), &range)?
                    }
                });
                Ok(())
            });
            match next {
                Ok(next) => return Ok((next, copied)),
                Err(Error::Volume(VolumeError::Busy { .. })) if attempt < ATTEMPTS => {
                    drop(committed);
                    self.committer.commit_anyway()?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((None, copied))
    }

    /// Returns the first extent of a chunk on a device from `from` on.
    fn next_extent(&self, known: &mut KnownExtents, devid: DeviceId, from: u64) -> Option<DeviceExtent> {
        let counts = self.info.space.lock().chunk_counts();
        if known.counts != Some(counts) {
            *known = KnownExtents { counts: Some(counts), extents: self.extents(devid, from) };
        }
        let next = known.extents.partition_point(|extent| extent.start + extent.length <= from);
        known.extents.get(next).copied()
    }

    /// Returns the extents of chunks on a device from `from` on, by address.
    fn extents(&self, devid: DeviceId, from: u64) -> Vec<DeviceExtent> {
        let mut extents = Vec::new();
        let own = |(start, chunk): (Logical, ChunkItem)| {
            let length = stripe_length(&chunk);
            let stripes = chunk.stripes.into_iter().filter(|stripe| stripe.devid == devid);
            let places: Vec<u64> = stripes.map(|stripe| stripe.offset.0).collect();
            let chunk_length = chunk.length;
            places.into_iter().map(move |at| DeviceExtent { start: at, length, chunk: start, chunk_length })
        };
        extents.extend(
            self.info
                .volume
                .chunk_map()
                .all()
                .into_iter()
                .flat_map(own)
                .filter(|extent| extent.start + extent.length > from),
        );
        extents.sort_by_key(|extent| extent.start);
        extents
    }

    /// Starts a thread that resumes the replacement that another mount began.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<Option<JoinHandle<()>>> {
        if self.info.volume.replacement().state().is_none() {
            return Ok(None);
        }
        let replacer = Arc::clone(self);
        let run = move || {
            // The thread waits for this lock: its holder may be about to find that it can't begin
            // another replacement, and then no other thread would copy for this one.
            let running = replacer.running.lock();
            match replacer.run_alone(&running, &mut |_| true) {
                // The replacement has ended meanwhile.
                Err(Error::Posix(Errno::CANCELED | Errno::NOTCONN)) | Ok(()) => {}
                Err(error) => tracing::error!("a device could not be replaced: {}", error.chain()),
            }
        };
        ubtrfs_threads::thread::Builder::new().name("replace".into()).spawn(run).map(Some)
    }
}
