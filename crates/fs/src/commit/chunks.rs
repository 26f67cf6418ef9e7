//! Chunks that a commit adds to the volume, and chunks that it removes (invariant 18).

use ubtrfs_errors::sentence;
use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, DevExtent, DevItem};
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId, objectid};
use ubtrfs_tree::EditBatch;
use ubtrfs_volume::DeviceErrors;

use super::owner::Committer;
use crate::error::Result;
use ubtrfs_space::{DeviceChanges, GroupEdits, NewChunk};

/// Ensures that there is space for the nodes that a commit may write, if need be in a new chunk.
pub(super) fn ensure_metadata(committer: &Committer) -> Result<()> {
    let mut space = committer.info.space.lock();
    if space.is_metadata_short() {
        space.add_chunk(BlockGroupFlags::METADATA, &committer.info.volume)?;
    }
    Ok(())
}

/// The changes of chunks in one commit.
pub(super) struct ChunkChanges {
    /// Chunks that were allocated since the last commit.
    pub(super) new: Vec<NewChunk>,
    /// Empty chunks that are removed.
    removed: Vec<(Logical, ChunkItem)>,
    /// Devices that are added, removed or resized.
    pub(super) devices_changed: DeviceChanges,
    /// Whether devices have become smaller.
    are_devices_cut: bool,
    /// The device items with these changes and no later ones.
    devices: Vec<DevItem>,
}

impl ChunkChanges {
    /// Takes the new chunks and the chunks that can be removed, and returns also the edits that
    /// delete the block groups of the latter.
    pub(super) fn take(
        committer: &Committer,
        generation: Generation,
        free_space_tree: bool,
    ) -> Result<(Self, GroupEdits)> {
        let mut space = committer.info.space.lock();
        let mut edits = GroupEdits::default();
        let removed =
            if free_space_tree { space.take_empty_groups(&committer.info.volume, &mut edits) } else { Vec::new() };
        let new = space.take_new_chunks();
        let devices_changed = space.devices_mut().take_changes();
        let are_devices_cut = space.devices_mut().cut();
        let devices = space.devices().items();
        drop(space);
        for device in &devices_changed.added {
            committer.info.volume.membership().announce(device.devid, generation)?;
        }
        for device in &devices_changed.removed {
            committer.info.volume.membership().remove(device.devid, generation)?;
        }
        Ok((Self { new, removed, devices_changed, are_devices_cut, devices }, edits))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.new.is_empty() && self.removed.is_empty() && self.devices_changed.is_empty() && !self.are_devices_cut
    }

    /// Returns the edits of the chunk tree and of the device tree.
    pub(super) fn edits(&self, committer: &Committer) -> (EditBatch, EditBatch) {
        let (mut chunk_edits, mut device_edits) = (EditBatch::new(), EditBatch::new());
        let chunk_tree_uuid = committer.info.space.lock().chunk_tree_uuid();
        let chunk_key = |start: Logical| Key::new(objectid::FIRST_CHUNK_TREE, ItemType::CHUNK_ITEM, start.0);
        for (start, chunk) in &self.removed {
            tracing::debug!("chunk {start}: {} bytes are freed", chunk.length);
            chunk_edits.delete(chunk_key(*start));
            for stripe in &chunk.stripes {
                device_edits.delete(Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0));
            }
        }
        for NewChunk { start, chunk } in &self.new {
            chunk_edits.put(chunk_key(*start), chunk.to_bytes());
            for stripe in &chunk.stripes {
                let extent = DevExtent {
                    chunk_tree: TreeId::CHUNK.0,
                    chunk_objectid: objectid::FIRST_CHUNK_TREE,
                    chunk_offset: *start,
                    length: ubtrfs_space::stripe_length(chunk),
                    chunk_tree_uuid,
                };
                let key = Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0);
                device_edits.put(key, extent.to_bytes());
            }
        }
        for device in &self.devices_changed.added {
            // Another device may have had the same id.
            device_edits.put(DeviceErrors::key(device.devid), DeviceErrors::default().to_bytes());
        }
        for device in &self.devices_changed.removed {
            chunk_edits.delete(Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, device.devid.0));
            device_edits.delete(DeviceErrors::key(device.devid));
        }
        for device in &self.devices {
            let key = Key::new(objectid::DEV_ITEMS, ItemType::DEV_ITEM, device.devid.0);
            chunk_edits.put(key, device.to_bytes());
            if let Err(error) = committer.info.volume.devices().set_item(*device) {
                tracing::warn!("device {}: {}", device.devid, sentence(&error));
            }
        }
        if !self.devices_changed.resized.is_empty() {
            let mut space = committer.info.space.lock();
            for (devid, before, after) in &self.devices_changed.resized {
                if before < after {
                    space.devices_mut().lift_limit(*devid);
                }
            }
        }
        (chunk_edits, device_edits)
    }
}
