//! Devices that the volume gets: the next commit has their items.

use ubtrfs_format::items::DevItem;

use super::allocator::SpaceInner;

/// Devices that the last commit lacks.
#[derive(Default)]
pub(super) struct NewDevices {
    /// Those that the next commit takes.
    coming: Vec<DevItem>,
    /// Those that the commit in progress has.
    taken: Vec<DevItem>,
}

impl SpaceInner {
    /// Chunks may be made on this device, and the next commit has its item.
    pub(crate) fn add_device(&mut self, item: DevItem) {
        self.devices.add(item);
        self.new_devices.coming.push(item);
    }

    /// Whether the next commit has a device that is new.
    pub(crate) fn has_new_devices(&self) -> bool {
        !self.new_devices.coming.is_empty()
    }

    /// The devices that are new by the commit in progress, which takes them.
    pub(crate) fn take_new_devices(&mut self) -> Vec<DevItem> {
        self.new_devices.taken = std::mem::take(&mut self.new_devices.coming);
        self.new_devices.taken.clone()
    }

    /// How many devices are new by the commit in progress, and their bytes.
    pub(crate) fn count_new_devices(&mut self) -> (u64, u64) {
        let taken = std::mem::take(&mut self.new_devices.taken);
        (taken.len() as u64, taken.iter().map(|item| item.total_bytes).sum())
    }
}
