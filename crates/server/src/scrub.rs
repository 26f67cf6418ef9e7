//! The ioctls that scrub: btrfs's own, with their numbers and arguments.
//!
//! `start` and `end` are logical addresses here, as is `last_physical` of the progress.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs::{Filesystem, ScrubOptions, ScrubProgress};
use ubtrfs_format::ioctl::{SCRUB, size_of};
use ubtrfs_format::{DeviceId, Logical};
use ubtrfs_fuse::Errno;
use ubtrfs_threads::atomic::{AtomicBool, Ordering};
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Mutex, Rank};

use crate::btrfs_ioctls::u64_at;

/// Bytes of the argument.
pub const ARGUMENT_SIZE: usize = size_of(SCRUB);

const READ_ONLY: u64 = 1;
/// Our own flag: begin where the last scrub of the device was cancelled.
const RESUME: u64 = 1 << 63;
/// Offsets in the argument.
const FLAGS: usize = 24;
const PROGRESS: usize = 32;
const COUNTERS: usize = 15;
/// The offset of our own limit, in bytes that the kernel does not use: the most bytes per second.
const LIMIT: usize = PROGRESS + COUNTERS * 8;
/// The offsets of our own fields in an answer to `SCRUB_PROGRESS`: how many bytes are to be
/// checked, and for how many milliseconds the scrub has been running.
const TOTAL: usize = LIMIT + 8;
const MILLIS: usize = TOTAL + 8;

/// One of these commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScrubIoctl {
    Start(Request),
    Cancel,
    Progress(DeviceId),
}

/// A scrub that is to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The device whose copies are checked.
    pub device: DeviceId,
    /// The first logical address, in bytes.
    pub start: u64,
    /// The logical address up to which to check, in bytes.
    pub end: u64,
    /// Nothing is rewritten.
    pub read_only: bool,
    /// Begin where the last scrub of the device was cancelled.
    pub resume: bool,
    /// The most bytes per second; 0 is no limit.
    pub bytes_per_second: u64,
}

impl ScrubIoctl {
    /// Reads the argument of [`SCRUB`].
    pub(crate) fn start(data: &[u8]) -> Result<Self, Errno> {
        Request::decode(data).map(Self::Start)
    }

    /// Reads the argument of `SCRUB_PROGRESS`.
    pub(crate) fn progress(data: &[u8]) -> Result<Self, Errno> {
        u64_at(data, 0).map(|device| Self::Progress(DeviceId(device))).ok_or(Errno::INVAL)
    }
}

impl Request {
    /// The argument that asks for this scrub.
    pub fn encode(&self) -> [u8; ARGUMENT_SIZE] {
        let mut argument = [0; ARGUMENT_SIZE];
        let flags = (u64::from(self.read_only) * READ_ONLY) | (u64::from(self.resume) * RESUME);
        for (place, number) in [(0, self.device.0), (8, self.start), (16, self.end), (FLAGS, flags)] {
            argument[place..place + 8].copy_from_slice(&number.to_le_bytes());
        }
        argument[LIMIT..LIMIT + 8].copy_from_slice(&self.bytes_per_second.to_le_bytes());
        argument
    }

    fn decode(data: &[u8]) -> Result<Self, Errno> {
        let number = |at| u64_at(data, at).ok_or(Errno::INVAL);
        let flags = number(FLAGS)?;
        if flags & !(READ_ONLY | RESUME) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        Ok(Self {
            device: DeviceId(number(0)?),
            start: number(8)?,
            end: number(16)?,
            read_only: flags & READ_ONLY != 0,
            resume: flags & RESUME != 0,
            bytes_per_second: number(LIMIT)?,
        })
    }
}

/// Returns whether an argument of [`SCRUB`] asks not to repair anything.
pub(crate) fn writes_nothing(data: &[u8]) -> bool {
    u64_at(data, FLAGS).is_some_and(|flags| flags & READ_ONLY != 0)
}

/// The argument with what was done so far.
fn encode_progress(device: DeviceId, progress: &ScrubProgress) -> Vec<u8> {
    let ScrubProgress { data, trees, parity, .. } = progress;
    let counters: [u64; COUNTERS] = [
        progress.data_extents,
        progress.tree_extents,
        data.bytes,
        trees.bytes,
        data.read_errors + trees.read_errors + parity.read_errors,
        // There is no counter for parity.
        data.checksum_errors + parity.checksum_errors,
        trees.checksum_errors,
        progress.no_checksum,
        0,
        progress.super_errors,
        0,
        progress.uncorrectable(),
        data.corrected + trees.corrected,
        progress.last.0,
        0,
    ];
    let mut argument = vec![0; ARGUMENT_SIZE];
    argument[..8].copy_from_slice(&device.0.to_le_bytes());
    for (place, counter) in argument[PROGRESS..].chunks_exact_mut(8).zip(counters) {
        place.copy_from_slice(&counter.to_le_bytes());
    }
    argument
}

/// The scrubs of a mount, one for each device at a time.
#[derive(Debug)]
pub(crate) struct Scrubs {
    running: Mutex<BTreeMap<DeviceId, Arc<Running>>>,
    /// The logical address at which each cancelled scrub ended.
    cancelled: Mutex<BTreeMap<DeviceId, u64>>,
}

impl Default for Scrubs {
    fn default() -> Self {
        Self {
            running: Mutex::with_default(Rank::ScrubsRunning),
            cancelled: Mutex::with_default(Rank::ScrubsCancelled),
        }
    }
}

#[derive(Debug)]
struct Running {
    progress: Mutex<ScrubProgress>,
    is_cancelled: AtomicBool,
    began: Instant,
    /// About how many bytes are to be checked.
    total: u64,
}

impl Running {
    fn new(total: u64) -> Self {
        let progress = Mutex::with_default(Rank::ScrubProgress);
        Self { progress, is_cancelled: AtomicBool::new(false), began: Instant::now(), total }
    }
}

impl Scrubs {
    /// Scrubs one device. Returns `EINPROGRESS` if a scrub of it is running already, `ENODEV` if
    /// there is no such device, and `ECANCELED` with the progress if somebody cancelled it, or if
    /// `goes_on` returns false.
    pub(crate) fn run(
        &self,
        engine: &Filesystem,
        request: &Request,
        goes_on: &dyn Fn() -> bool,
    ) -> (Result<(), Errno>, Vec<u8>) {
        let device = request.device;
        let nothing = |errno| (Err(errno), encode_progress(device, &ScrubProgress::default()));
        let missing = engine.volume().devices().missing();
        if !engine.volume().devices().items().iter().any(|item| item.devid == device)
            || missing.iter().any(|item| item.devid == device)
        {
            return nothing(Errno::NODEV);
        }
        // On a device that lags, parts that were checked before may be wrong again.
        let goes_on_there = request.resume && !engine.volume().devices().lagging().contains(&device);
        let cancelled = if goes_on_there { self.cancelled.lock().get(&device).copied() } else { None };
        let start = Logical(cancelled.unwrap_or(request.start));
        let running = Arc::new(Running::new(engine.scrubber().bytes_to_read(Some(device), start)));
        {
            let mut all = self.running.lock();
            if all.contains_key(&device) {
                return nothing(Errno::INPROGRESS);
            }
            all.insert(device, Arc::clone(&running));
        }
        if goes_on_there {
            self.cancelled.lock().remove(&device);
        }
        let options = ScrubOptions {
            device: Some(device),
            read_only: request.read_only,
            range: Some((start, Logical(request.end))),
            bytes_per_second: Some(request.bytes_per_second).filter(|limit| *limit > 0),
        };
        let mut note = |progress: &ScrubProgress| {
            *running.progress.lock() = *progress;
            !running.is_cancelled.load(Ordering::Acquire) && goes_on()
        };
        let done = engine.scrubber().run(options, &mut note).map(|progress| *running.progress.lock() = progress);
        let progress = *running.progress.lock();
        let done = done.map_err(|error| error.errno());
        if done == Err(Errno::CANCELED) {
            self.cancelled.lock().insert(device, progress.last.0);
        }
        self.running.lock().remove(&device);
        (done, encode_progress(device, &progress))
    }

    /// Has all scrubs end soon. `ENOTCONN` if there are none.
    pub(crate) fn cancel(&self) -> Result<(), Errno> {
        let running = self.running.lock();
        running.values().for_each(|running| running.is_cancelled.store(true, Ordering::Release));
        if running.is_empty() { Err(Errno::NOTCONN) } else { Ok(()) }
    }

    /// The progress of the scrub of a device. `ENOTCONN` if there is none.
    pub(crate) fn progress(&self, device: DeviceId) -> Result<Vec<u8>, Errno> {
        let running = self.running.lock();
        let running = running.get(&device).ok_or(Errno::NOTCONN)?;
        let mut argument = encode_progress(device, &running.progress.lock());
        let millis = u64::try_from(running.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        for (place, number) in [(TOTAL, running.total), (MILLIS, millis)] {
            argument[place..place + 8].copy_from_slice(&number.to_le_bytes());
        }
        Ok(argument)
    }
}

/// Reads from an answer to `SCRUB_PROGRESS` about how many bytes the scrub checks in all, and for
/// how many milliseconds it has been running. `None` for an answer of the kernel's driver.
pub fn extent(argument: &[u8; ARGUMENT_SIZE]) -> Option<(u64, u64)> {
    let of = |place| u64_at(argument, place).filter(|number| *number > 0);
    Some((of(TOTAL)?, of(MILLIS)?))
}

/// The counters of an argument that [`SCRUB`] or `SCRUB_PROGRESS` has filled in, with their names
/// as `btrfs scrub status -R` shows them.
pub fn counters(argument: &[u8; ARGUMENT_SIZE]) -> Vec<(&'static str, u64)> {
    const NAMES: [&str; COUNTERS] = [
        "data_extents_scrubbed",
        "tree_extents_scrubbed",
        "data_bytes_scrubbed",
        "tree_bytes_scrubbed",
        "read_errors",
        "csum_errors",
        "verify_errors",
        "no_csum",
        "csum_discards",
        "super_errors",
        "malloc_errors",
        "uncorrectable_errors",
        "corrected_errors",
        "last_physical",
        "unverified_errors",
    ];
    let value = |number: usize| u64_at(argument, PROGRESS + number * 8).unwrap_or_default();
    NAMES.into_iter().enumerate().map(|(number, name)| (name, value(number))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_and_what_was_done_is_shown() {
        let request = Request {
            device: DeviceId(3),
            start: 1 << 20,
            end: u64::MAX,
            read_only: true,
            resume: true,
            bytes_per_second: 7,
        };
        assert_eq!(ScrubIoctl::start(&request.encode()), Ok(ScrubIoctl::Start(request)));
        assert_eq!(ScrubIoctl::start(&[0; 10]), Err(Errno::INVAL));
        let progress = ScrubProgress { data_extents: 5, super_errors: 1, last: Logical(9), ..ScrubProgress::default() };
        let shown = encode_progress(DeviceId(3), &progress);
        let counters = counters(shown.first_chunk().unwrap());
        let of = |name: &str| counters.iter().find(|(known, _)| *known == name).unwrap().1;
        assert_eq!((of("data_extents_scrubbed"), of("super_errors"), of("last_physical")), (5, 1, 9));
    }
}
