//! The replacement of a device: its state, which the `DEV_REPLACE` item of the device tree has.
//!
//! All changes of the state are here. The volume below has the new device while the replacement is
//! in progress, and writes to both; [`Replacer`](crate::Replacer) copies what the old one has; a
//! commit writes the item, and what the state asks of the volume becomes so with that commit or
//! after it (invariant 34).

use std::sync::Arc;

use ubtrfs_format::items::DevReplaceItem;
use ubtrfs_format::{DeviceId, Generation};
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_tree::{EditBatch, Snapshot};
use ubtrfs_volume::{Device, DeviceErrors};

use crate::error::{Errno, Result};
use crate::fs_info::FsInfo;

/// The item as it is to be, and as the last commit has it.
#[derive(Default)]
struct State {
    item: DevReplaceItem,
    saved: DevReplaceItem,
    /// The new device gets chunks once the commit in progress is durable.
    opens_target: bool,
    /// The commit that is under way gives the target up. A commit that has an older item which says
    /// so does not: the target of now is another one's.
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

    /// How far it is, as the next commit writes it.
    pub(crate) fn item(&self) -> DevReplaceItem {
        self.state.lock().item
    }

    /// Takes over what the device tree says when the volume is opened for writing, and goes on with
    /// what is in progress as far as the target is there.
    pub(crate) fn load(&self, device_tree: &Snapshot) -> Result<()> {
        let volume = &self.info.volume;
        let Some(bytes) = device_tree.get(&DevReplaceItem::KEY)? else { return Ok(()) };
        let mut item = DevReplaceItem::parse_prefix(&bytes)?;
        let saved = item;
        if item.is_in_progress() {
            if !volume.devices().iter().any(|device| device.devid == item.source) {
                // Older versions removed such devices. The kernel mounts no volume with that.
                tracing::warn!(device = item.source.0, "it was being replaced, and has been removed since");
                (item.state, item.time_stopped) = (DevReplaceItem::CANCELED, self.info.now().sec);
                *self.state.lock() = State { item, saved, ..State::default() };
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
        *self.state.lock() = State { item, saved, ..State::default() };
        Ok(())
    }

    /// Whether this device is being replaced, also if the new one is not there.
    pub(crate) fn is_of(&self, devid: DeviceId) -> bool {
        let item = self.item();
        item.is_in_progress() && item.source == devid
    }

    /// Begins to replace a device; the next commit has that, and all that the new one did not get
    /// before. `EINPROGRESS` if one is being replaced already.
    pub(crate) fn begin(&self, source: DeviceId, target: Arc<dyn Device>, avoids_source: bool) -> Result<()> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let mut state = self.state.lock();
        if state.item.is_in_progress() {
            return Err(Errno::INPROGRESS.into());
        }
        self.info.volume.begin_replacement(source, target, avoids_source)?;
        state.item = DevReplaceItem {
            source,
            read_mode: u64::from(avoids_source),
            state: DevReplaceItem::STARTED,
            time_started: self.info.now().sec,
            ..DevReplaceItem::default()
        };
        Ok(())
    }

    /// Copying has begun.
    pub(crate) fn go_on(&self) {
        self.note(|item| item.state = DevReplaceItem::STARTED);
    }

    /// The mount ends before it is done. Returns whether the next commit has to say so.
    pub(crate) fn suspend(&self) -> bool {
        self.info.volume.replacement().is_some() && self.note(|item| item.state = DevReplaceItem::SUSPENDED)
    }

    /// What lies from `start` to `end` on the old device, in bytes, is copied next; all before is.
    pub(crate) fn copies(&self, start: u64, end: u64) {
        self.note(|item| (item.cursor_left, item.cursor_right) = (start, end));
    }

    /// So many sectors and blocks of that could be read of no device.
    pub(crate) fn add_unreadable(&self, count: u64) {
        self.note(|item| item.unreadable += count);
    }

    /// That is copied.
    pub(crate) fn has_copied(&self) {
        self.note(|item| item.cursor_left = item.cursor_right);
    }

    /// Ends it: it is finished or given up, with the next commit. `ENOTCONN` if none is in
    /// progress.
    pub(crate) fn end(&self, how: u64) -> Result<()> {
        let now = self.info.now().sec;
        let is_ended = self.note(|item| (item.state, item.time_stopped) = (how, now));
        if is_ended { Ok(()) } else { Err(Errno::NOTCONN.into()) }
    }

    /// Changes what is known of one that is in progress; whether it is.
    fn note(&self, change: impl FnOnce(&mut DevReplaceItem)) -> bool {
        let mut state = self.state.lock();
        let is_in_progress = state.item.is_in_progress();
        if is_in_progress {
            change(&mut state.item);
        }
        is_in_progress
    }

    /// The edits that bring the item up to date, by the commit of this generation.
    pub(crate) fn edits(&self, generation: Generation) -> EditBatch {
        let mut edits = EditBatch::new();
        let (now, mut state) = (self.info.now().sec, self.state.lock());
        let volume = &self.info.volume;
        let in_memory = volume.replacement();
        if matches!(in_memory, Some((_, false))) && state.item.state != DevReplaceItem::CANCELED {
            // By invariant 34: no later mount may believe the target.
            let item = &mut state.item;
            (item.state, item.time_stopped) = (DevReplaceItem::CANCELED, now);
            item.write_errors += 1;
        }
        if state.item == state.saved {
            return edits;
        }
        edits.put(DevReplaceItem::KEY, state.item.to_bytes());
        if state.item.state == DevReplaceItem::FINISHED && in_memory.is_some() {
            volume.finish_replacement(generation);
            state.opens_target = true;
            edits.put(DeviceErrors::key(state.item.source), DeviceErrors::default().to_bytes());
        }
        state.ends_target = state.item.state == DevReplaceItem::CANCELED;
        state.saved = state.item;
        edits
    }

    /// The commit is durable that has the item as it was.
    pub(crate) fn published(&self) {
        let (saved, opens_target, ends_target) = {
            let mut state = self.state.lock();
            let opens_target = std::mem::take(&mut state.opens_target);
            (state.saved, opens_target, std::mem::take(&mut state.ends_target))
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
