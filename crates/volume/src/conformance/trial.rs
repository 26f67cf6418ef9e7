//! A run of the suite: the device, and what it should hold.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_errors::sentence;
use ubtrfs_format::Physical;
use ubtrfs_random::Rng;

use super::promise::Promise;
use super::subject::Subject;
use crate::buffer::Buffer;
use crate::{ALIGNMENT, Device, DeviceTicket, DeviceWrite};

/// How many sectors the area has that is written to.
const AREA_SECTORS: u64 = 256;
pub(super) const SECTOR: u64 = ALIGNMENT as u64;

/// `Ok` if a promise was kept, else how it was broken.
pub(super) type Verdict = Result<(), String>;

/// A run of the suite.
pub(super) struct Trial {
    pub(super) subject: Subject,
    pub(super) random: Rng,
    /// The bytes of the device that are written to.
    pub(super) area: Range<u64>,
}

impl Trial {
    pub(super) fn new(subject: Subject) -> Self {
        let size = subject.device.size();
        let area = subject.start..subject.start + AREA_SECTORS * SECTOR;
        assert!(area.end <= size, "a device of {size} bytes is too small for the suite");
        Self { random: Rng::new(subject.seed), area, subject }
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.subject.device
    }

    /// Returns whether this device can show that it keeps the promise.
    pub(super) fn can_show(&self, promise: Promise) -> bool {
        let subject = &self.subject;
        match promise {
            Promise::Size => true,
            Promise::Failures => subject.is_away || subject.fail.is_some(),
            _ if subject.is_away => false,
            Promise::ReadOnly => subject.device.is_read_only(),
            Promise::ReadBounds | Promise::DataRanges | Promise::FileToRead | Promise::Release => true,
            _ if subject.device.is_read_only() => false,
            Promise::Flush => subject.after_crash.is_some(),
            Promise::Fua => subject.device.has_fua(),
            Promise::Resizes => subject.set_size.is_some(),
            _ => true,
        }
    }

    /// Returns a random range of the area, of at least one and at most `most` whole sectors.
    pub(super) fn sectors(&mut self, most: u64) -> Range<u64> {
        let all = (self.area.end - self.area.start) / SECTOR;
        let count = 1 + self.random.below(most.min(all));
        let start = self.area.start + self.random.below(all - count + 1) * SECTOR;
        start..start + count * SECTOR
    }

    /// Returns random bytes, which are found nowhere else.
    pub(super) fn noise(&mut self, len: u64) -> Vec<u8> {
        self.random.noise(len as usize)
    }

    pub(super) fn read(&self, range: &Range<u64>) -> Result<Vec<u8>, String> {
        read(self.device(), range)
    }

    /// Writes new content to a range, waits for it, and returns the content.
    pub(super) fn fill(&mut self, range: &Range<u64>) -> Result<Vec<u8>, String> {
        let content = self.noise(range.end - range.start);
        self.write(range.start, &content)?;
        Ok(content)
    }

    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Verdict {
        wait(self.device().submit(vec![write_of(at, bytes)]))
    }

    /// Checks that the range reads as these bytes.
    pub(super) fn expect(&self, range: &Range<u64>, bytes: &[u8]) -> Verdict {
        same(range, &self.read(range)?, bytes)
    }

    pub(super) fn behind(&self) -> Option<Arc<dyn Device>> {
        self.subject.behind.clone()
    }
}

pub(super) fn write_of(at: u64, bytes: &[u8]) -> DeviceWrite {
    DeviceWrite { at: Physical(at), data: Buffer::from(bytes).share() }
}

pub(super) fn wait(ticket: DeviceTicket) -> Verdict {
    ticket.wait().map_err(|error| format!("a write of {} bytes at {}: {}", error.len, error.at, error.source))
}

pub(super) fn read(device: &dyn Device, range: &Range<u64>) -> Result<Vec<u8>, String> {
    // The buffer begins with bytes that are neither on the device nor what a hole reads as.
    let mut bytes = vec![0x5a; (range.end - range.start) as usize];
    let done = device.read_at(Physical(range.start), &mut bytes);
    done.map(|()| bytes).map_err(|error| format!("a read of {range:?}: {}", sentence(&error)))
}

/// Checks that the bytes found in a range are the expected ones.
pub(super) fn same(range: &Range<u64>, found: &[u8], expected: &[u8]) -> Verdict {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => Err(format!("{range:?} differs from what it should be, at {}", range.start + at as u64)),
    }
}

/// Checks that a request failed with an error of one of these kinds.
pub(super) fn fails<T>(what: &str, kinds: &[io::ErrorKind], result: io::Result<T>) -> Verdict {
    match result {
        Err(error) if kinds.contains(&error.kind()) => Ok(()),
        Err(error) => Err(format!("{what} fails with {:?} ({}) instead of {kinds:?}", error.kind(), sentence(&error))),
        Ok(_) => Err(format!("{what} succeeds")),
    }
}
