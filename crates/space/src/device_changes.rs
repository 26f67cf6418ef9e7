//! Devices that the next commit adds, removes or resizes.

use ubtrfs_format::DeviceId;
use ubtrfs_format::items::DevItem;

/// The changes that a commit makes to the volume's devices.
#[derive(Clone, Debug, Default)]
pub struct DeviceChanges {
    /// Devices that are added.
    pub added: Vec<DevItem>,
    /// Devices that are removed.
    pub removed: Vec<DevItem>,
    /// Devices that are resized, each with its old and its new size in bytes.
    pub resized: Vec<(DeviceId, u64, u64)>,
}

impl DeviceChanges {
    /// Returns whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.resized.is_empty()
    }

    /// Returns how many devices a volume has after the change, given the number before.
    pub fn number_after(&self, before: u64) -> u64 {
        (before + self.added.len() as u64).saturating_sub(self.removed.len() as u64)
    }

    /// Returns the bytes of all devices after the change, given those before.
    pub fn bytes_after(&self, before: u64) -> u64 {
        let sum = |items: &[DevItem]| items.iter().fold(0_u64, |sum, item| sum.saturating_add(item.total_bytes));
        let more = self.resized.iter().fold(sum(&self.added), |sum, (_, _, now)| sum.saturating_add(*now));
        let less = self.resized.iter().fold(sum(&self.removed), |sum, (_, before, _)| sum.saturating_add(*before));
        before.saturating_add(more).saturating_sub(less)
    }
}
