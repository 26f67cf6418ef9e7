//! The range of a device that a volume takes, and that is locked for it.

use std::ops::Range;

/// The part of a device that a volume is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePart {
    /// The address at which it begins, in bytes.
    pub start: u64,
    /// Its size in bytes; `None` if it reaches to the end of the device.
    pub size: Option<u64>,
}

impl DevicePart {
    /// The whole device.
    pub const WHOLE: Self = Self { start: 0, size: None };

    /// Returns whether it is all of the device.
    pub fn is_whole(self) -> bool {
        self == Self::WHOLE
    }

    /// Returns its range in bytes, as if the device had no end.
    pub(crate) fn range(self) -> Range<u64> {
        self.start..self.size.map_or(u64::MAX, |size| self.start.saturating_add(size))
    }

    /// Returns whether the two parts have a byte in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (one, other) = (self.range(), other.range());
        one.start < other.end && other.start < one.end
    }
}
