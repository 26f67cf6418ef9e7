//! Crash points, and the states that a crash leaves.

use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use ubtrfs_format::SUPERBLOCK_COPIES;
use ubtrfs_volume::{Event, Fate, OpenWrite, OverlayDevice, RecordingDevice, random_fates};

use crate::Random;

/// Windows of up to this many open writes are tried in every combination.
const WINDOW: usize = 6;

/// Which of the writes that no barrier had made durable are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fates {
    /// [`random_fates`] of this seed decides, separately for each device.
    Random(u64),
    /// Each write is whole or lost: bit by bit, the oldest first.
    Subset(u64),
}

/// A crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// Events of the device before it.
    pub event: usize,
    /// The choice of the open writes that are lost.
    pub fates: Fates,
}

/// Returns the writes that are open after so many events.
pub fn window_at(recording: &RecordingDevice, event: usize) -> Vec<OpenWrite> {
    let mut open = Vec::new();
    recording.crash_states(event, &mut |write| {
        open.push(*write);
        Fate::Lost
    });
    open
}

impl CrashPoint {
    /// Returns what the crash leaves on all devices, and a number that distinguishes this state
    /// from others between the same two barriers.
    pub fn state(&self, recording: &RecordingDevice) -> (Vec<OverlayDevice>, u64) {
        let mut hasher = DefaultHasher::new();
        // Each device loses its writes independently of the others.
        let mut random: Vec<_> = match self.fates {
            Fates::Random(seed) => (0..recording.devices() as u64).map(|device| random_fates(seed ^ device)).collect(),
            Fates::Subset(_) => Vec::new(),
        };
        let mut number = 0;
        let devices = recording.crash_states(self.event, &mut |write| {
            let fate = match (random.get_mut(write.device), self.fates) {
                (Some(random), _) => random(write),
                (None, Fates::Subset(bits)) if bits.checked_shr(number).is_some_and(|rest| rest & 1 == 1) => {
                    Fate::Whole
                }
                _ => Fate::Lost,
            };
            number += 1;
            let kept: Vec<bool> = match &fate {
                Fate::Lost => Vec::new(),
                Fate::Whole => vec![true; write.sectors],
                Fate::Torn(kept) => {
                    let last = kept.iter().rposition(|kept| *kept).map_or(0, |at| at + 1);
                    kept[..last].to_vec()
                }
            };
            if !kept.is_empty() {
                (write.event, kept).hash(&mut hasher);
            }
            fate
        });
        (devices, hasher.finish())
    }
}

/// The states that crashes of one recording leave: first those around the superblocks, then random
/// ones. No two are equal.
pub struct Crashes<'a> {
    recording: &'a RecordingDevice,
    planned: Vec<CrashPoint>,
    random: Random,
    /// The events that are barriers: only they change what is durable.
    barriers: Vec<usize>,
    seen: HashSet<(usize, u64)>,
    tries_left: usize,
}

impl<'a> Crashes<'a> {
    /// Returns about `budget` states at most, half of them around the superblocks.
    pub fn new(recording: &'a RecordingDevice, seed: u64, budget: usize) -> Self {
        let mut random = Random::new(seed ^ 0xc4a5);
        let events = recording.events();
        let is_barrier = |event: &usize| matches!(events.get(*event), Some((_, Event::Flush)));
        let barriers = (0..events.len()).filter(is_barrier).collect();
        let mut planned = Vec::new();
        for event in around_superblocks(&events) {
            let open = window_at(recording, event).len();
            if open <= WINDOW {
                planned.extend((0..1 << open).map(|bits| CrashPoint { event, fates: Fates::Subset(bits) }));
            } else {
                let fates = Fates::Random(random.number());
                planned.push(CrashPoint { event, fates });
            }
        }
        // Shuffles them, so that a small budget takes states from everywhere.
        for at in (1..planned.len()).rev() {
            planned.swap(at, random.below(at as u64 + 1) as usize);
        }
        planned.truncate(budget / 2);
        // The states at the end come first, with all of the open writes and with none.
        planned.extend([u64::MAX, 0].map(|bits| CrashPoint { event: recording.len(), fates: Fates::Subset(bits) }));
        Self { recording, planned, random, barriers, seen: HashSet::new(), tries_left: budget }
    }
}

/// Returns the events from each superblock's write to the next barrier of the same device.
fn around_superblocks(events: &[(usize, Event)]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut open = BTreeSet::new();
    for (number, (device, event)) in events.iter().enumerate() {
        match event {
            Event::Write(write) if SUPERBLOCK_COPIES.contains(&write.at) => {
                if open.is_empty() {
                    found.push(number);
                }
                open.insert(device);
            }
            _ => {}
        }
        if !open.is_empty() {
            found.push(number + 1);
        }
        if matches!(event, Event::Flush) {
            open.remove(device);
        }
    }
    found
}

impl Crashes<'_> {
    /// Returns the states of all devices.
    pub fn of_all(mut self) -> impl Iterator<Item = (CrashPoint, Vec<OverlayDevice>)> {
        std::iter::from_fn(move || self.advance())
    }

    fn advance(&mut self) -> Option<(CrashPoint, Vec<OverlayDevice>)> {
        while self.tries_left > 0 {
            self.tries_left -= 1;
            let point = self.planned.pop().unwrap_or_else(|| CrashPoint {
                event: self.random.below(self.recording.len() as u64 + 1) as usize,
                fates: Fates::Random(self.random.number()),
            });
            let (devices, key) = point.state(self.recording);
            let barriers = self.barriers.partition_point(|barrier| *barrier < point.event);
            if self.seen.insert((barriers, key)) {
                return Some((point, devices));
            }
        }
        None
    }
}

impl Iterator for Crashes<'_> {
    type Item = (CrashPoint, OverlayDevice);

    /// Returns the next state of the first device, for volumes on one device.
    fn next(&mut self) -> Option<Self::Item> {
        self.advance().map(|(point, mut devices)| (point, devices.swap_remove(0)))
    }
}
