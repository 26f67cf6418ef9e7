//! `DEV_STATS` items: how often each device has failed. Key `(0 PERSISTENT_ITEM devid)` of the
//! device tree; five counters of eight bytes: writes, reads, flushes, corruption, generations.

use ubtrfs_format::{DeviceId, ItemType, Key, objectid};
use ubtrfs_tree::{EditBatch, Snapshot};
use ubtrfs_volume::{DeviceErrors, Volume};

use crate::error::Result;

/// Reads the items into the volume's counters.
pub(crate) fn load(volume: &Volume, device_tree: &Snapshot) -> Result<()> {
    for (devid, _) in volume.device_errors() {
        if let Some(errors) = stored(device_tree, devid)? {
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
        edits.put(key(devid), errors.counts.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<u8>>());
        volume.note_saved_device_errors(devid, errors)?;
    }
    Ok(edits)
}

fn key(devid: DeviceId) -> Key {
    Key::new(objectid::DEV_STATS, ItemType::PERSISTENT_ITEM, devid.0)
}

/// The counters that a device's item has; older kernels wrote fewer.
fn stored(device_tree: &Snapshot, devid: DeviceId) -> Result<Option<DeviceErrors>> {
    let Some(item) = device_tree.get(&key(devid))? else { return Ok(None) };
    let mut errors = DeviceErrors::default();
    for (count, bytes) in errors.counts.iter_mut().zip(item.chunks_exact(8)) {
        *count = bytes.try_into().map_or(0, u64::from_le_bytes);
    }
    Ok(Some(errors))
}
