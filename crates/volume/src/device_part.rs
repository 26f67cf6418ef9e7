//! A range of a device: what a volume takes of it, and what is locked for that.

use std::ops::Range;

/// The part of a device that a volume is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePart {
    /// Where it begins, in bytes.
    pub start: u64,
    /// Its bytes; without them it reaches to the end of the device.
    pub size: Option<u64>,
}

impl DevicePart {
    /// All of a device.
    pub const WHOLE: Self = Self { start: 0, size: None };

    /// Whether it is all of the device.
    pub fn is_whole(self) -> bool {
        self == Self::WHOLE
    }

    /// Its bytes on a device that never ends.
    pub(crate) fn range(self) -> Range<u64> {
        self.start..self.size.map_or(u64::MAX, |size| self.start.saturating_add(size))
    }

    /// Whether the two have a byte in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (one, other) = (self.range(), other.range());
        one.start < other.end && other.start < one.end
    }
}
