//! The state of the replacement of a device, which is stored in the `DEV_REPLACE` item of the
//! device tree.
//!
//! All changes of the state are made here. The underlying volume has the new device while the
//! replacement is in progress, and writes to both devices; [`Replacer`](crate::Replacer) copies the
//! content of the old one; a commit writes the item, and the change of the volume that the state
//! requires happens with that commit or after it (invariant 34).

use std::sync::Arc;

use ubtrfs_format::items::DevReplaceItem;
use ubtrfs_format::{DeviceId, Generation};
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_tree::{EditBatch, Snapshot};
use ubtrfs_volume::{Device, DeviceErrors};

use crate::error::{Errno, Result};
use crate::fs_info::FsInfo;

/// The item for the next commit, and the item of the last commit.
#[derive(Default)]
struct State {
    item: DevReplaceItem,
    saved: DevReplaceItem,
    /// Whether chunks may be allocated on the new device once the commit in progress is durable.
    opens_target: bool,
    /// Whether the commit in progress abandons the target. A commit with an older item that says so
    /// does not: the present target belongs to another replacement.
    ends_target: bool,
}

/// The replacement of a device that is in progress, or the last one.
pub(crate) struct Replacement {
    info: Arc<FsInfo>,
    state: Mutex<State>,
}

impl Replacement {
    pub(crate) fn new(info: Arc<FsInfo>) -> Self {
        Self { info, state: Mutex::with_default(Rank::Replacement) }
    }

    /// Returns the state as the next commit writes it.
    pub(crate) fn item(&self) -> DevReplaceItem {
        self.state.lock().item
    }

    /// Loads the state from the device tree when the volume is opened for writing, and resumes a
    /// replacement in progress if the target is present.
    pub(crate) fn load(&self, device_tree: &Snapshot) -> Result<()> {
        let volume = &self.info.volume;
        let Some(bytes) = device_tree.get(&DevReplaceItem::KEY)? else { return Ok(()) };
        let mut item = DevReplaceItem::parse_prefix(&bytes)?;
        let saved = item;
        if item.is_in_progress() {
            if !volume.devices().items().iter().any(|device| device.devid == item.source) {
                // Older versions removed such devices. The kernel does not mount a volume with such
                // an item.
                tracing::warn!(device = item.source.0, "it was being replaced, and has been removed since");
                (item.state, item.time_stopped) = (DevReplaceItem::CANCELED, self.info.now().sec);
                *self.state.lock() = State { item, saved, ..State::default() };
                return Ok(());
            }
            let has_all = volume.replacement().resume(item.source, item.read_mode != 0)?;
            if has_all.is_none() {
                tracing::warn!(device = item.source.0, "it is being replaced, and the new device is not there");
                item.state = DevReplaceItem::SUSPENDED;
            }
            if has_all != Some(true) {
                // The data that the target lacks, or will lack, may be anywhere in the part that
                // has been copied.
                item.cursor_left = 0;
            }
        }
        *self.state.lock() = State { item, saved, ..State::default() };
        Ok(())
    }

    /// Whether this device is being replaced, even if the new one is missing.
    pub(crate) fn is_of(&self, devid: DeviceId) -> bool {
        let item = self.item();
        item.is_in_progress() && item.source == devid
    }

    /// Begins to replace a device. The next commit records it, and contains all that was not
    /// written to the new device before. `EINPROGRESS` if a device is being replaced already.
    pub(crate) fn begin(&self, source: DeviceId, target: Arc<dyn Device>, avoids_source: bool) -> Result<()> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let mut state = self.state.lock();
        if state.item.is_in_progress() {
            return Err(Errno::INPROGRESS.into());
        }
        self.info.volume.replacement().begin(source, target, avoids_source)?;
        state.item = DevReplaceItem {
            source,
            read_mode: u64::from(avoids_source),
            state: DevReplaceItem::STARTED,
            time_started: self.info.now().sec,
            ..DevReplaceItem::default()
        };
        Ok(())
    }

    /// Records that copying has begun.
    pub(crate) fn go_on(&self) {
        self.note(|item| item.state = DevReplaceItem::STARTED);
    }

    /// Suspends a replacement in progress, since the mount ends. Returns whether the next commit
    /// has to record this.
    pub(crate) fn suspend(&self) -> bool {
        self.info.volume.replacement().state().is_some() && self.note(|item| item.state = DevReplaceItem::SUSPENDED)
    }

    /// Records that the range from `start` to `end` of the old device, in bytes, is copied next,
    /// and that everything before it is copied.
    pub(crate) fn copies(&self, start: u64, end: u64) {
        self.note(|item| (item.cursor_left, item.cursor_right) = (start, end));
    }

    /// Adds sectors and tree blocks that could be read from no device.
    pub(crate) fn add_unreadable(&self, count: u64) {
        self.note(|item| item.unreadable += count);
    }

    /// Records that the range is copied.
    pub(crate) fn has_copied(&self) {
        self.note(|item| item.cursor_left = item.cursor_right);
    }

    /// Ends the replacement with the next commit: it is finished or cancelled. `ENOTCONN` if none
    /// is in progress.
    pub(crate) fn end(&self, how: u64) -> Result<()> {
        let now = self.info.now().sec;
        let is_ended = self.note(|item| (item.state, item.time_stopped) = (how, now));
        if is_ended { Ok(()) } else { Err(Errno::NOTCONN.into()) }
    }

    /// Changes the item of a replacement that is in progress. Returns whether there is one.
    fn note(&self, change: impl FnOnce(&mut DevReplaceItem)) -> bool {
        let mut state = self.state.lock();
        let is_in_progress = state.item.is_in_progress();
        if is_in_progress {
            change(&mut state.item);
        }
        is_in_progress
    }

    /// Returns the edits that update the item in the commit of this generation.
    pub(crate) fn edits(&self, generation: Generation) -> EditBatch {
        let mut edits = EditBatch::new();
        let (now, mut state) = (self.info.now().sec, self.state.lock());
        let volume = &self.info.volume;
        let in_memory = volume.replacement().state();
        if matches!(in_memory, Some((_, false))) && state.item.state != DevReplaceItem::CANCELED {
            // By invariant 34 no later mount may trust the target.
            let item = &mut state.item;
            (item.state, item.time_stopped) = (DevReplaceItem::CANCELED, now);
            item.write_errors += 1;
        }
        if state.item == state.saved {
            return edits;
        }
        edits.put(DevReplaceItem::KEY, state.item.to_bytes());
        if state.item.state == DevReplaceItem::FINISHED && in_memory.is_some() {
            volume.replacement().finish(generation);
            state.opens_target = true;
            edits.put(DeviceErrors::key(state.item.source), DeviceErrors::default().to_bytes());
        }
        state.ends_target = state.item.state == DevReplaceItem::CANCELED;
        state.saved = state.item;
        edits
    }

    /// Completes the change of state after the commit with the item is durable.
    pub(crate) fn published(&self) {
        let (saved, opens_target, ends_target) = {
            let mut state = self.state.lock();
            let opens_target = std::mem::take(&mut state.opens_target);
            (state.saved, opens_target, std::mem::take(&mut state.ends_target))
        };
        if ends_target {
            self.info.volume.replacement().end();
        }
        // This happens only once: later the device may be closed because it is to be removed.
        if opens_target {
            self.info.space.lock().devices_mut().open_again(saved.source);
        }
    }
}
