//! The scope of a scrub, and its result.

use ubtrfs_format::DeviceId;

use crate::chunk_map::IoStripe;
use crate::error::Error;

/// The result of a scrub. All counts are of copies: a block that two devices have counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes that were read.
    pub bytes: u64,
    /// Reads that failed: tree blocks, and sectors of data.
    pub read_errors: u64,
    /// Tree blocks and sectors that were wrong.
    pub checksum_errors: u64,
    /// Copies that are right now, since the scrub or somebody else has rewritten them.
    pub corrected: u64,
    /// Copies that are wrong and stay so.
    pub uncorrectable: u64,
    /// Uncorrectable copies of blocks and sectors of which no device has a right copy.
    pub nowhere: u64,
}

impl Scrubbed {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            read_errors: self.read_errors + other.read_errors,
            checksum_errors: self.checksum_errors + other.checksum_errors,
            corrected: self.corrected + other.corrected,
            uncorrectable: self.uncorrectable + other.uncorrectable,
            nowhere: self.nowhere + other.nowhere,
        }
    }

    pub(crate) fn note(&mut self, error: &Error) {
        match error {
            Error::Read { .. } => self.read_errors += 1,
            _ => self.checksum_errors += 1,
        }
    }

    /// Counts `bad` copies, given the result of rewriting them.
    pub(crate) fn settle(&mut self, bad: u64, repaired: Repaired) {
        let left = match repaired {
            Repaired::Left(left) => bad.min(left as u64),
            Repaired::Nowhere | Repaired::Unknown => bad,
        };
        self.uncorrectable += left;
        self.corrected += bad - left;
        self.nowhere += if repaired == Repaired::Nowhere { left } else { 0 };
    }
}

/// The result of rewriting the wrong copies of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repaired {
    /// This many are still wrong.
    Left(usize),
    /// No device has a right one.
    Nowhere,
    /// They could not be compared.
    Unknown,
}

/// The scope of a scrub.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScrubScope {
    /// If given, only the copies on this device are scrubbed.
    pub device: Option<DeviceId>,
    /// Nothing is rewritten.
    pub read_only: bool,
}

impl ScrubScope {
    pub(crate) fn covers(&self, place: Option<IoStripe>) -> bool {
        self.device.is_none_or(|device| place.is_some_and(|place| place.devid == device))
    }
}
