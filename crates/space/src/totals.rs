//! The sums of a volume's space, as statfs needs them.

use ubtrfs_format::items::BlockGroupFlags;

use crate::profiles::copies;
use crate::space::{Space, SpaceState};

/// Total and used space, for statfs and `info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceTotals {
    /// Bytes of all devices.
    pub device_bytes: u64,
    /// Device bytes that no chunk has.
    pub unallocated: u64,
    /// Bytes of data block groups.
    pub data_total: u64,
    /// Bytes of data block groups that can be allocated now.
    pub data_free: u64,
    /// Bytes of metadata block groups.
    pub metadata_total: u64,
    /// Bytes of metadata block groups that can be allocated now.
    pub metadata_free: u64,
    /// Copies that a data byte takes on devices.
    pub data_copies: u64,
    /// Copies that a metadata byte takes on devices.
    pub metadata_copies: u64,
    /// Device bytes of allocated and pinned space, all copies counted.
    pub used_on_devices: u64,
    /// Bytes that are reserved for writes but not allocated yet.
    pub data_reserved: u64,
    /// Device bytes of empty metadata chunks. They are removed, at the latest when data needs them.
    pub reclaimable: u64,
    /// Bytes that data can get: in its block groups, in new ones and in removed metadata chunks, as
    /// far as metadata has room for their items.
    pub data_available: u64,
    /// Bytes of metadata block groups that have to stay free for the kernel's driver.
    pub kernel_needs: u64,
    /// Whether data and metadata share block groups.
    pub mixed: bool,
}

impl Space {
    /// Returns the sums that statfs needs.
    pub fn totals(&self) -> SpaceTotals {
        self.lock().totals()
    }
}

impl SpaceState {
    fn totals(&self) -> SpaceTotals {
        let mut totals = SpaceTotals {
            device_bytes: self.devices.total_bytes(),
            unallocated: self.devices.unallocated(),
            data_copies: copies(self.profiles.data()),
            metadata_copies: copies(self.profiles.metadata()),
            data_reserved: self.reserved.data,
            reclaimable: self.reclaimable(),
            data_available: self.data_available(),
            kernel_needs: self.kernel_needs(),
            mixed: self.profiles.is_mixed(),
            ..SpaceTotals::default()
        };
        let data = self.groups.sums(BlockGroupFlags::DATA);
        let metadata = self
            .groups
            .sums_where(|flags| flags.contains(BlockGroupFlags::METADATA) && !flags.contains(BlockGroupFlags::DATA));
        (totals.data_total, totals.data_free) = (data.length, data.available);
        (totals.metadata_total, totals.metadata_free) = (metadata.length, metadata.available);
        totals.used_on_devices = self.groups.bytes_on_devices(|sums| sums.length - sums.unused, copies);
        totals
    }
}
