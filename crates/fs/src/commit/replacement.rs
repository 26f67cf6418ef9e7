//! The `DEV_REPLACE` item of the device tree: how far the replacement of a device is.

use std::sync::Arc;

use ubtrfs_format::items::DevReplaceItem;
use ubtrfs_format::{DeviceId, Generation};
use ubtrfs_tree::{EditBatch, Snapshot};
use ubtrfs_volume::{Device, DeviceErrors};

use super::owner::Committer;
use super::replacement_item::Replacement;
use crate::error::{Errno, Result};

impl Committer {
    /// The replacement of a device that is in progress, or the last one.
    pub(crate) fn replacement(&self) -> DevReplaceItem {
        self.replacement.lock().item
    }

    /// Takes over what the device tree says when the volume is opened for writing, and goes on with
    /// what is in progress as far as the target is there.
    pub(crate) fn load_replacement(&self, device_tree: &Snapshot) -> Result<()> {
        let volume = &self.info.volume;
        let Some(bytes) = device_tree.get(&DevReplaceItem::KEY)? else { return Ok(()) };
        let mut item = DevReplaceItem::parse_prefix(&bytes)?;
        let saved = item;
        if item.is_in_progress() {
            if !volume.devices().iter().any(|device| device.devid == item.source) {
                // Older versions removed such devices. The kernel mounts no volume with that.
                tracing::warn!(device = item.source.0, "it was being replaced, and has been removed since");
                (item.state, item.time_stopped) = (DevReplaceItem::CANCELED, self.info.now().sec);
                *self.replacement.lock() = Replacement { item, saved, ..Replacement::default() };
                return Ok(());
            }
            let has_all = volume.resume_replacement(item.source, item.read_mode != 0)?;
            if has_all.is_none() {
                tracing::warn!(device = item.source.0, "it is being replaced, and the new device is not there");
                item.state = DevReplaceItem::SUSPENDED;
            }
            if has_all != Some(true) {
                // What it lacks, or will lack, is somewhere in what has been copied.
                item.cursor_left = 0;
            }
        }
        *self.replacement.lock() = Replacement { item, saved, ..Replacement::default() };
        Ok(())
    }

    /// Whether this device is being replaced, also if the new one is not there.
    pub(crate) fn is_being_replaced(&self, devid: DeviceId) -> bool {
        let item = self.replacement();
        item.is_in_progress() && item.source == devid
    }

    /// Begins to replace a device; this is durable when it returns. `EINPROGRESS` if one is being
    /// replaced already.
    pub(crate) fn begin_replacement(
        &self,
        source: DeviceId,
        target: Arc<dyn Device>,
        avoids_source: bool,
    ) -> Result<()> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        {
            let mut replacement = self.replacement.lock();
            if replacement.item.is_in_progress() {
                return Err(Errno::INPROGRESS.into());
            }
            self.info.volume.begin_replacement(source, target, avoids_source)?;
            replacement.item = DevReplaceItem {
                source,
                read_mode: u64::from(avoids_source),
                state: DevReplaceItem::STARTED,
                time_started: self.info.now().sec,
                ..DevReplaceItem::default()
            };
        }
        // All that the target did not get is in this commit.
        self.commit_anyway()
    }

    /// Changes what is known of a replacement that is in progress; whether it is.
    pub(crate) fn note_replacement(&self, change: impl FnOnce(&mut DevReplaceItem)) -> bool {
        let mut replacement = self.replacement.lock();
        let is_in_progress = replacement.item.is_in_progress();
        if is_in_progress {
            change(&mut replacement.item);
        }
        is_in_progress
    }

    /// Ends a replacement that is in progress, by a commit: it is finished or given up. Returns how
    /// it has ended. `ENOTCONN` if there is none.
    pub(crate) fn end_replacement(&self, state: u64) -> Result<u64> {
        let now = self.info.now().sec;
        let is_ended = self.note_replacement(|item| (item.state, item.time_stopped) = (state, now));
        if !is_ended {
            return Err(Errno::NOTCONN.into());
        }
        self.commit_anyway()?;
        Ok(self.replacement().state)
    }

    /// The edits that bring the item up to date, by the commit of this generation.
    pub(super) fn replacement_edits(&self, generation: Generation) -> EditBatch {
        let mut edits = EditBatch::new();
        let (now, mut replacement) = (self.info.now().sec, self.replacement.lock());
        let volume = &self.info.volume;
        let in_memory = volume.replacement();
        if matches!(in_memory, Some((_, false))) && replacement.item.state != DevReplaceItem::CANCELED {
            // By invariant 34: no later mount may believe the target.
            let item = &mut replacement.item;
            (item.state, item.time_stopped) = (DevReplaceItem::CANCELED, now);
            item.write_errors += 1;
        }
        if replacement.item == replacement.saved {
            return edits;
        }
        edits.put(DevReplaceItem::KEY, replacement.item.to_bytes());
        if replacement.item.state == DevReplaceItem::FINISHED && in_memory.is_some() {
            volume.finish_replacement(generation);
            replacement.opens_target = true;
            edits.put(DeviceErrors::key(replacement.item.source), DeviceErrors::default().to_bytes());
        }
        replacement.ends_target = replacement.item.state == DevReplaceItem::CANCELED;
        replacement.saved = replacement.item;
        edits
    }

    /// The commit is durable that has the item as it was.
    pub(super) fn replacement_published(&self) {
        let (saved, opens_target, ends_target) = {
            let mut replacement = self.replacement.lock();
            let opens_target = std::mem::take(&mut replacement.opens_target);
            (replacement.saved, opens_target, std::mem::take(&mut replacement.ends_target))
        };
        if ends_target {
            self.info.volume.end_replacement();
        }
        // Once only: later the device may be closed because it is to be removed.
        if opens_target {
            self.info.space.lock().devices_mut().open_again(saved.source);
        }
    }
}
