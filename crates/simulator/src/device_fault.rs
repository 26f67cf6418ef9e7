//! A fault of one of the devices of a volume that is opened after a crash.

use std::collections::BTreeSet;

use ubtrfs_errors::sentence;
use ubtrfs_format::items::BlockGroupFlags;
use ubtrfs_format::{DeviceId, Generation, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_volume::{ALIGNMENT, Device, DeviceWrite, Event, Fate, OverlayDevice, RecordingDevice, SharedBuffer};

use crate::mounting::{forks, open_volume};
use crate::{CrashPoint, Random};

/// A fault of a device, which is given by its index among those of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// The device is gone.
    Gone(usize),
    /// The device has its state after so many events of the timeline, and nothing later, as if its
    /// power had failed before that of the others. Its superblock is of an older commit than that
    /// of any other device, or of an older log of the same commit.
    Stale {
        /// The device.
        device: usize,
        /// The events that it has seen.
        event: usize,
    },
    /// Blocks that have another copy read as noise. Only checksums show it.
    Garbage {
        /// The device.
        device: usize,
        /// Determines the blocks and the noise.
        seed: u64,
    },
    /// Some writes were lost, though the device had reported them as durable. Reads return the old
    /// data, which was right once.
    Lost {
        /// The device.
        device: usize,
        /// Events before the crash.
        event: usize,
        /// Determines the lost writes.
        seed: u64,
    },
}

/// Attempts to find an older state of a device.
const TRIES: usize = 12;
/// The events that mostly belong to one commit and its logs.
const SOON: u64 = 300;
/// The maximum number of writes that a device loses.
const MAX_LOST: u64 = 12;

/// Returns the number that the volume has given the device at this index.
pub(crate) fn devid(place: usize) -> DeviceId {
    DeviceId(place as u64 + 1)
}

impl DeviceFault {
    /// Chooses a device that is gone or stale, among those that a crash left.
    pub fn lost(
        random: &mut Random,
        recording: &RecordingDevice,
        point: CrashPoint,
        crashed: &[OverlayDevice],
    ) -> Self {
        let device = random.below(crashed.len() as u64) as usize;
        if random.one_in(2) {
            return Self::Gone(device);
        }
        let others = crashed.iter().enumerate().filter(|(other, _)| *other != device);
        let oldest = others.filter_map(|(_, other)| moment(other)).min();
        for _ in 0..TRIES {
            let events = point.event as u64 + 1;
            let span = if random.one_in(2) { events } else { events.min(SOON) };
            let before = random.below(span);
            let event = (events - 1 - before) as usize;
            if moment(&at_event(recording, device, event)) < oldest {
                return Self::Stale { device, event };
            }
        }
        Self::Gone(device)
    }

    /// Chooses a device of which some blocks are noise. If some devices have an older log, nobody
    /// knows whether a block on them belongs to that log or to the newer one; then it is one of
    /// these devices.
    pub fn garbage(random: &mut Random, crashed: &[OverlayDevice]) -> Self {
        let moments: Vec<_> = crashed.iter().map(moment).collect();
        let newest = moments.iter().max().copied().flatten();
        let behind: Vec<usize> = (0..crashed.len()).filter(|device| moments[*device] < newest).collect();
        let all: Vec<usize> = (0..crashed.len()).collect();
        let has_log = newest.is_some_and(|(_, has_log, _)| has_log);
        let device = random.pick(if has_log && !behind.is_empty() { &behind } else { &all }).copied();
        Self::Garbage { device: device.unwrap_or_default(), seed: random.number() }
    }

    /// Chooses a device that has lost writes.
    pub fn lost_writes(random: &mut Random, point: CrashPoint, devices: usize) -> Self {
        Self::Lost { device: random.below(devices as u64) as usize, event: point.event, seed: random.number() }
    }

    /// Returns the device.
    pub fn device(self) -> usize {
        match self {
            Self::Gone(device)
            | Self::Stale { device, .. }
            | Self::Garbage { device, .. }
            | Self::Lost { device, .. } => device,
        }
    }

    /// Returns the devices with this fault.
    pub fn of(self, recording: &RecordingDevice, crashed: &[OverlayDevice]) -> Result<Vec<OverlayDevice>, String> {
        let mut devices: Vec<OverlayDevice> = crashed.iter().map(OverlayDevice::fork).collect();
        match self {
            Self::Gone(device) => drop(devices.remove(device)),
            Self::Stale { device, event } => devices[device] = at_event(recording, device, event),
            Self::Garbage { device, seed } => spoil(&devices, device, seed)?,
            Self::Lost { device, event, seed } => lose_writes(recording, &devices[device], (device, event), seed)?,
        }
        Ok(devices)
    }
}

/// Undoes some of the last writes to a device that the crash has left.
fn lose_writes(
    recording: &RecordingDevice,
    crashed: &OverlayDevice,
    (device, event): (usize, usize),
    seed: u64,
) -> Result<(), String> {
    let mut random = Random::new(seed);
    let events = recording.events();
    let soon = event.saturating_sub(SOON as usize)..event.min(events.len());
    let write = |at: usize| match &events[at] {
        (of, Event::Write(write)) if *of == device => Some((at, write.at, write.size())),
        _ => None,
    };
    let writes: Vec<(usize, Physical, usize)> = soon.filter_map(write).collect();
    for _ in 0..=random.below(MAX_LOST) {
        let Some((before, at, size)) = random.pick(&writes).copied() else { return Ok(()) };
        let mut bytes = vec![0; size];
        at_event(recording, device, before).read_at(at, &mut bytes).map_err(|error| sentence(&error))?;
        let written = crashed.submit(vec![DeviceWrite { at, data: SharedBuffer::from(bytes) }]).wait();
        written.map_err(|error| sentence(&error))?;
    }
    Ok(())
}

/// Returns what a device has after so many events, with all writes whole.
fn at_event(recording: &RecordingDevice, device: usize, event: usize) -> OverlayDevice {
    recording.crash_states(event, &mut |_| Fate::Whole).swap_remove(device)
}

/// Returns the point in time of a device's superblock.
fn moment(device: &OverlayDevice) -> Option<(Generation, bool, u32)> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).ok()?;
    Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).ok().map(|superblock| superblock.moment())
}

/// Overwrites blocks of a device with noise: blocks of chunks with other copies, and if both copies
/// are on one device only one of them.
fn spoil(devices: &[OverlayDevice], device: usize, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let volume = open_volume(forks(devices), true)?;
    let mut used = BTreeSet::new();
    for (_, chunk) in volume.chunk_map().all() {
        let raid = chunk.flags.raid().filter(|raid| raid.copies > 1);
        let Some(raid) = raid else { continue };
        let length = chunk.length / raid.data_stripes(chunk.stripes.len());
        let is_dup = chunk.flags.contains(BlockGroupFlags::DUP);
        let stripes = chunk.stripes.iter().take(if is_dup { 1 } else { usize::MAX });
        for stripe in stripes.filter(|stripe| stripe.devid == devid(device)) {
            used.extend(pages_in_use(&devices[device], stripe.offset.0, length));
        }
    }
    let used: Vec<u64> = used.into_iter().collect();
    let count = 1 + random.below(used.len() as u64);
    for _ in 0..count {
        let Some(at) = random.pick(&used) else { return Ok(()) };
        let data = SharedBuffer::from(Random::noise(seed ^ at, ALIGNMENT));
        let written = devices[device].submit(vec![DeviceWrite { at: Physical(*at), data }]).wait();
        written.map_err(|error| sentence(&error))?;
    }
    Ok(())
}

/// Returns the pages in a range of a device that have anything but zeros and superblocks.
fn pages_in_use(device: &OverlayDevice, start: u64, length: u64) -> Vec<u64> {
    let is_superblock = |at: u64| SUPERBLOCK_COPIES.iter().any(|copy| copy.0 == at);
    let mut page = [0; ALIGNMENT];
    let is_used = |at: &u64| {
        device.read_at(Physical(*at), &mut page).is_ok() && page.iter().any(|byte| *byte != 0) && !is_superblock(*at)
    };
    (start..start + length).step_by(ALIGNMENT).filter(is_used).collect()
}
