//! `DEV_STATS` items of the device tree: how often each device has failed.

use ubtrfs_tree::{EditBatch, Snapshot};
use ubtrfs_volume::{DeviceErrors, Volume};

use crate::error::Result;

/// Reads the items into the volume's counters.
pub(crate) fn load(volume: &Volume, device_tree: &Snapshot) -> Result<()> {
    for (devid, _) in volume.device_errors() {
        if let Some(item) = device_tree.get(&DeviceErrors::key(devid))? {
            let errors = DeviceErrors::parse(&item);
            volume.set_device_errors(devid, errors)?;
            volume.note_saved_device_errors(devid, errors)?;
        }
    }
    Ok(())
}

/// The edits that bring the items to the volume's counters. A device that never failed has none.
pub(crate) fn edits(volume: &Volume) -> Result<EditBatch> {
    let mut edits = EditBatch::new();
    for (devid, errors) in volume.unsaved_device_errors() {
        edits.put(DeviceErrors::key(devid), errors.to_bytes());
        volume.note_saved_device_errors(devid, errors)?;
    }
    Ok(edits)
}
