//! Devices that the volume gets: the next commit has their items.

use ubtrfs_format::items::DevItem;

/// Devices that the last commit lacks.
#[derive(Default)]
pub(crate) struct NewDevices {
    /// Those that the next commit takes.
    coming: Vec<DevItem>,
    /// Those that the commit in progress has.
    taken: Vec<DevItem>,
}

impl NewDevices {
    /// The next commit has this one's item.
    pub(crate) fn add(&mut self, item: DevItem) {
        self.coming.push(item);
    }

    /// Whether the next commit has no item of a new device.
    pub(crate) fn is_empty(&self) -> bool {
        self.coming.is_empty()
    }

    /// The devices that are new by the commit in progress, which takes them.
    pub(crate) fn take(&mut self) -> Vec<DevItem> {
        self.taken = std::mem::take(&mut self.coming);
        self.taken.clone()
    }

    /// How many devices are new by the commit in progress, and their bytes.
    pub(crate) fn count(&mut self) -> (u64, u64) {
        let taken = std::mem::take(&mut self.taken);
        (taken.len() as u64, taken.iter().map(|item| item.total_bytes).sum())
    }
}
