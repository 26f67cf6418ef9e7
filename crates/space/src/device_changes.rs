//! Devices that come, go and change their size: the next commit has them so.

use ubtrfs_format::DeviceId;
use ubtrfs_format::items::DevItem;

/// What a commit changes of the volume's devices.
#[derive(Clone, Debug, Default)]
pub struct DeviceChanges {
    /// Devices that the volume gets.
    pub added: Vec<DevItem>,
    /// Devices that it has no more.
    pub removed: Vec<DevItem>,
    /// Devices that get another size, and the bytes that they had and have.
    pub resized: Vec<(DeviceId, u64, u64)>,
}

impl DeviceChanges {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.resized.is_empty()
    }

    /// The number of devices of a volume that has had so many.
    pub fn number_after(&self, before: u64) -> u64 {
        (before + self.added.len() as u64).saturating_sub(self.removed.len() as u64)
    }

    /// The bytes of all devices of a volume that has had so many.
    pub fn bytes_after(&self, before: u64) -> u64 {
        let sum = |items: &[DevItem]| items.iter().fold(0_u64, |sum, item| sum.saturating_add(item.total_bytes));
        let more = self.resized.iter().fold(sum(&self.added), |sum, (_, _, now)| sum.saturating_add(*now));
        let less = self.resized.iter().fold(sum(&self.removed), |sum, (_, before, _)| sum.saturating_add(*before));
        before.saturating_add(more).saturating_sub(less)
    }
}
