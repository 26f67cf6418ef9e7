//! `DEV_STATS` items of the device tree, which count the errors of each device.

use ubtrfs_tree::{EditBatch, Snapshot};
use ubtrfs_volume::{DeviceErrors, Volume};

use crate::error::Result;

/// Adds the items to the counters that the volume has kept since it was opened.
pub(crate) fn load(volume: &Volume, device_tree: &Snapshot) -> Result<()> {
    for (devid, _) in volume.devices().errors() {
        if let Some(item) = device_tree.get(&DeviceErrors::key(devid))? {
            let saved = DeviceErrors::parse(&item);
            volume.devices().add_errors(devid, saved)?;
            volume.devices().note_saved_errors(devid, saved)?;
        }
    }
    Ok(())
}

/// Returns the edits that set the items to the volume's counters. A device that never failed has no
/// item.
pub(crate) fn edits(volume: &Volume) -> Result<EditBatch> {
    let mut edits = EditBatch::new();
    for (devid, errors) in volume.devices().unsaved_errors() {
        edits.put(DeviceErrors::key(devid), errors.to_bytes());
        volume.devices().note_saved_errors(devid, errors)?;
    }
    Ok(edits)
}
