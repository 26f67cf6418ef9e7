//! Crash points, and the states that a crash leaves.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use ubtrfs_format::SUPERBLOCK_COPIES;
use ubtrfs_volume::{Event, Fate, OpenWrite, OverlayDevice, RecordingDevice, random_fates};

use crate::Random;

/// Windows of up to this many open writes are tried in every combination.
const WINDOW: usize = 6;

/// The loss of writes that no barrier had made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fates {
    /// As [`random_fates`] of this seed decides.
    Random(u64),
    /// Each is whole or lost: bit by bit, the oldest first.
    Subset(u64),
}

/// A crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashPoint {
    /// Events of the device before it.
    pub event: usize,
    /// The choice of which open writes are lost.
    pub fates: Fates,
}

/// The writes that are open after so many events.
pub fn window_at(recording: &RecordingDevice, event: usize) -> Vec<OpenWrite> {
    let mut open = Vec::new();
    recording.crash_state(event, &mut |write| {
        open.push(*write);
        Fate::Lost
    });
    open
}

impl CrashPoint {
    /// What the crash leaves, and a number that distinguishes states between the same two barriers
    /// from each other.
    pub fn state(&self, recording: &RecordingDevice) -> (OverlayDevice, u64) {
        let mut hasher = DefaultHasher::new();
        let mut random = match self.fates {
            Fates::Random(seed) => Some(random_fates(seed)),
            Fates::Subset(_) => None,
        };
        let mut number = 0;
        let device = recording.crash_state(self.event, &mut |write| {
            let fate = match (&mut random, self.fates) {
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
        (device, hasher.finish())
    }
}

/// The states that crashes leave of one recording: first all around the superblocks, then random
/// ones. No two are equal.
pub struct Crashes<'a> {
    recording: &'a RecordingDevice,
    planned: Vec<CrashPoint>,
    random: Random,
    /// The events that are barriers: what is durable changes with them alone.
    barriers: Vec<usize>,
    seen: HashSet<(usize, u64)>,
    tries_left: usize,
}

impl<'a> Crashes<'a> {
    /// At most about `budget` states, half of them around the superblocks.
    pub fn new(recording: &'a RecordingDevice, seed: u64, budget: usize) -> Self {
        let mut random = Random::new(seed ^ 0xc4a5);
        let events = recording.events();
        let is_barrier = |event: &usize| matches!(events.get(*event), Some(Event::Flush));
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
        // A shuffle, so that a small budget takes from everywhere.
        for at in (1..planned.len()).rev() {
            planned.swap(at, random.below(at as u64 + 1) as usize);
        }
        planned.truncate(budget / 2);
        // What is durable at the end comes first.
        planned.extend([u64::MAX, 0].map(|bits| CrashPoint { event: recording.len(), fates: Fates::Subset(bits) }));
        Self { recording, planned, random, barriers, seen: HashSet::new(), tries_left: budget }
    }
}

/// From each superblock's write to the barrier behind it.
fn around_superblocks(events: &[Event]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, event) in events.iter().enumerate() {
        match event {
            Event::Write(write) if SUPERBLOCK_COPIES.contains(&write.at) => {
                if !inside {
                    found.push(number);
                }
                inside = true;
            }
            _ => {}
        }
        if inside {
            found.push(number + 1);
        }
        if matches!(event, Event::Flush) {
            inside = false;
        }
    }
    found
}

impl Iterator for Crashes<'_> {
    type Item = (CrashPoint, OverlayDevice);

    fn next(&mut self) -> Option<Self::Item> {
        while self.tries_left > 0 {
            self.tries_left -= 1;
            let point = self.planned.pop().unwrap_or_else(|| CrashPoint {
                event: self.random.below(self.recording.len() as u64 + 1) as usize,
                fates: Fates::Random(self.random.number()),
            });
            let (device, key) = point.state(self.recording);
            let barriers = self.barriers.partition_point(|barrier| *barrier < point.event);
            if self.seen.insert((barriers, key)) {
                return Some((point, device));
            }
        }
        None
    }
}
