//! The device or image file on which a new volume is made.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use ubtrfs_format::Physical;
use ubtrfs_image::Selection;
use ubtrfs_volume::{Device, DevicePart, OpenMode, is_remote};

use super::input::Input;
use super::populate::Population;
use crate::args::Mkfs;
use crate::device::{open_exclusively, part_of, within};
use crate::failure::{Failure, Result};
use crate::other_contents::overwritten;

/// A device or image file, which exists.
#[derive(Debug)]
pub struct Target<'a> {
    path: &'a Path,
    /// The bytes of the volume on it, if they were requested.
    size: Option<u64>,
    part: DevicePart,
    was_made: bool,
    /// An image file that is larger than the volume keeps its size.
    keeps_size: bool,
    /// The previous state of an image file that existed, if its size has changed.
    before: Cell<Option<Before>>,
}

/// The previous state of an image file.
#[derive(Clone, Copy, Debug)]
struct Before {
    bytes: u64,
    /// Its content was discarded.
    is_emptied: bool,
}

/// A target that is opened exclusively.
pub struct OpenTarget<'a> {
    target: &'a Target<'a>,
    device: Arc<dyn Device>,
    total_bytes: u64,
    /// Its size can't be changed.
    is_fixed: bool,
}

impl<'a> Target<'a> {
    /// Makes the image file if it does not exist. `least` is the smallest size of a volume in
    /// bytes.
    pub fn prepare(path: &'a Path, arguments: &Mkfs, input: Option<(&Input, &Selection)>, least: u64) -> Result<Self> {
        let is_missing = !is_remote(path) && !path.exists();
        let size = match (arguments.asked_size(), input) {
            (None, Some((input, selection))) if is_missing || has_no_size(path, arguments, least) => {
                Population::default_size(input, selection, arguments)?
            }
            (size, _) => size,
        };
        if is_missing {
            let Some(size) = size else {
                return Err(Failure::new(format!("{} does not exist; --size SIZE makes it", path.display())));
            };
            if let Ok(missing) = std::fs::read_link(path) {
                let (path, missing) = (path.display(), missing.display());
                return Err(Failure::new(format!("{path} is a link to {missing}, which does not exist: name that")));
            }
            make_file(path, arguments.window.offset.saturating_add(size))?;
        }
        let keeps_size = arguments.byte_count.is_some() && !arguments.populate.shrink;
        let part = DevicePart { start: 0, size: None };
        let before = Cell::default();
        let mut target = Self { path, size, part, was_made: is_missing, keeps_size, before };
        match part_of(path, arguments.window) {
            Ok(part) => target.part = part,
            Err(error) => {
                target.undo();
                return Err(error);
            }
        }
        Ok(target)
    }

    /// Returns its path or URI.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// Removes an image file that was made here. One that existed gets its old size back; if it was
    /// to be filled, it is a single hole.
    pub fn undo(&self) {
        if self.was_made {
            let _ = std::fs::remove_file(self.path);
        } else if let Some(Before { bytes, is_emptied }) = self.before.get()
            && let Ok(file) = OpenOptions::new().write(true).open(self.path)
        {
            let emptied = if is_emptied { file.set_len(0) } else { Ok(()) };
            let _ = emptied.and_then(|()| file.set_len(bytes));
        }
    }

    /// Notes that the target holds a volume now: an image file of which the volume takes a part
    /// keeps its new size.
    pub fn publish(&self) {
        self.before.set(self.before.get().filter(|before| before.is_emptied));
    }

    fn failed(&self, error: &io::Error) -> Failure {
        Failure::about(self.path.display(), error)
    }

    fn open_device(&self) -> Result<Arc<dyn Device>> {
        open_exclusively(self.path, OpenMode::ReadWrite, self.part)
    }

    /// Opens the target, unless it holds something that somebody might miss, and decides how many
    /// bytes are used.
    pub fn open(&self, arguments: &Mkfs) -> Result<OpenTarget<'_>> {
        let (shown, part) = (self.path.display(), self.part);
        let device = self.open_device()?;
        let rest = device.size().saturating_sub(part.start);
        let room = part.size.map_or(rest, |limit| limit.min(rest));
        let is_block = || std::fs::metadata(self.path).map(|found| found.file_type().is_block_device());
        let is_fixed = is_remote(self.path) || is_block().map_err(|error| self.failed(&error))?;
        let total_bytes = self.size.unwrap_or(room);
        // What follows a part of an image stays, whereas a whole image ends with its volume.
        let part = if part.is_whole() { part } else { DevicePart { size: Some(total_bytes.min(room)), ..part } };
        if !arguments.force
            && let Some(found) = overwritten(self.path, &*device, part).map_err(|error| self.failed(&error))?
        {
            return Err(Failure::new(format!("{shown} holds {found}: -f overwrites it")));
        }
        // With -b an image file only grows if the volume is filled.
        let is_limit = is_fixed || self.keeps_size && arguments.populate.rootdir.is_none();
        if is_limit && part.start.saturating_add(total_bytes) > device.size() {
            return Err(Failure::new(format!("{shown} has only {} bytes", device.size())));
        }
        if self.part.size.is_some_and(|limit| limit < total_bytes) {
            let limit = if arguments.window.partition.is_some() { "the partition has" } else { "--sizelimit allows" };
            return Err(Failure::new(format!("--size asks for more than {limit}")));
        }
        Ok(OpenTarget { target: self, device, total_bytes, is_fixed })
    }

    /// Discards, as far as possible, the part of a block device that the volume takes. The rest
    /// stays.
    pub fn discard(&self, device: &dyn Device, bytes: u64) {
        let is_block = std::fs::metadata(self.path).is_ok_and(|found| found.file_type().is_block_device());
        if is_block && let Err(error) = device.discard(Physical(0), bytes.min(device.size())) {
            tracing::info!(%error, device = %self.path.display(), "cannot be discarded");
        }
    }

    /// Truncates an image file to the end of its volume, if it ended where the volume ended
    /// `before`; otherwise something else follows the volume.
    pub fn cut(&self, before: u64, bytes: u64) -> Result<()> {
        if is_remote(self.path) {
            return Ok(());
        }
        let cut = || {
            let file = OpenOptions::new().write(true).open(self.path)?;
            let found = file.metadata()?;
            if found.is_file() && found.len() == self.part.start.saturating_add(before) {
                file.set_len(self.part.start.saturating_add(bytes))?;
                file.sync_all()?;
            }
            Ok(())
        };
        cut().map_err(|error| self.failed(&error))
    }
}

impl OpenTarget<'_> {
    /// Returns the bytes of the volume on it.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Resizes the target to its volume, and returns it as a device. With `is_filled` the old
    /// content is discarded, since it would remain where the volume writes nothing.
    pub fn resized(self, is_filled: bool) -> Result<Arc<dyn Device>> {
        let Self { target, mut device, total_bytes, is_fixed } = self;
        let part = target.part;
        let mut end = part.start.saturating_add(total_bytes);
        if target.keeps_size {
            end = end.max(device.size());
        }
        let is_emptied = is_filled && part.is_whole();
        // Something else may follow the volume if that is in a part of the image.
        if !is_fixed && (is_emptied || end > device.size() || part.is_whole() && end < device.size()) {
            let file = OpenOptions::new().write(true).open(target.path);
            let file: File = file.map_err(|error| target.failed(&error))?;
            let bytes = file.metadata().map_err(|error| target.failed(&error))?.len();
            target.before.set(Some(Before { bytes, is_emptied: false }));
            let set_len = |bytes| file.set_len(bytes).map_err(|error| target.failed(&error));
            // If no file can have this size there, that fails while the file still has its content.
            set_len(end)?;
            if is_emptied {
                target.before.set(Some(Before { bytes, is_emptied }));
                set_len(0)?;
                set_len(end)?;
            }
            drop(device);
            device = target.open_device()?;
        }
        within(target.path, device, part)
    }
}

/// Whether the size of an image file does not determine that of the volume: it is too small for any
/// volume, or it is made again and shrunk to its volume.
fn has_no_size(path: &Path, arguments: &Mkfs, least: u64) -> bool {
    let is_shrunk_again = arguments.populate.shrink && arguments.force;
    let says_nothing = |found: std::fs::Metadata| found.is_file() && (is_shrunk_again || found.len() < least);
    arguments.window.is_whole() && std::fs::metadata(path).is_ok_and(says_nothing)
}

fn make_file(path: &Path, bytes: u64) -> Result<()> {
    let failed = |error: io::Error| Failure::about(path.display(), &error);
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    file.set_len(bytes).map_err(|error| {
        let _ = std::fs::remove_file(path);
        failed(error)
    })
}
