//! The volume as a whole.

use std::sync::Arc;

use ubtrfs_format::{DeviceId, Generation, Ino, Key, Logical, TreeId};
use ubtrfs_volume::Volume;

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::inode::InodeId;
use crate::ops::{FilesystemStats, FoundInode, FoundItem, FoundSubvolume};
use crate::scrub::ScrubOptions;
use crate::scrub_progress::ScrubProgress;

impl Filesystem {
    /// The volume below.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.info.volume
    }

    /// The last commit's number.
    pub fn generation(&self) -> Generation {
        self.info.generation()
    }

    /// Why the file system turned read-only, if it did.
    pub fn abort_reason(&self) -> Option<String> {
        self.info.writability.abort_reason()
    }

    /// [`Error::Aborted`] if the file system turned read-only after an error: what was changed and
    /// not made durable before may be lost.
    pub fn check_aborted(&self) -> Result<()> {
        self.info.aborted().map_or(Ok(()), |error| Err(Error::Aborted(error)))
    }

    /// Sets what is done, once, when the file system turns read-only after an error; at once if it
    /// has. The action must neither wait nor use the file system: it is called where the error came
    /// up. Only the first action that is set counts.
    pub fn on_abort(&self, action: impl Fn() + Send + Sync + 'static) {
        self.info.writability.on_abort(Box::new(action));
    }

    /// Whether the volume has a subvolume that is read-only.
    pub fn has_read_only_subvolumes(&self) -> bool {
        self.info.has_read_only_subvolumes()
    }

    /// Whether the inode is in a subvolume that is read-only.
    pub fn is_in_read_only_subvolume(&self, id: InodeId) -> bool {
        self.info.is_in_read_only_subvolume(id)
    }

    /// Compares all copies of all that is allocated with what they should be, and rewrites those
    /// that are wrong. `goes_on` is asked again and again with what was done so far; when it says
    /// no, or the mount ends, the scrub ends with `ECANCELED`. Devices that lack something have all
    /// of it after a scrub that could rewrite all that was wrong on them.
    pub fn scrub(
        &self,
        options: ScrubOptions,
        goes_on: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<ScrubProgress> {
        self.scrubber.run(options, goes_on)
    }

    /// About how many bytes a scrub reads, from an address on: of all copies, or of those on one
    /// device. Parity is not counted.
    pub fn bytes_to_scrub(&self, device: Option<DeviceId>, from: Logical) -> u64 {
        self.scrubber.bytes_to_read(device, from)
    }

    /// Brings devices that lack something up to the others. Returns those that have all of it now.
    /// Mounts do that by themselves, in the background.
    pub fn catch_up(&self, goes_on: &mut dyn FnMut(&ScrubProgress) -> bool) -> Result<Vec<DeviceId>> {
        self.scrubber.catch_up(goes_on)
    }

    /// The volume's label as of the last commit.
    pub fn label(&self) -> Vec<u8> {
        self.info.committed().superblock.label_bytes().to_vec()
    }

    /// Gives the volume a label, and commits. `EINVAL` for one that is too long, or that could not
    /// be shown in a line.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.committer.set_label(label)
    }

    /// Commits, gives all empty chunks back and ends the devices where their last chunks end:
    /// [`Self::device_bytes`] says where, and what is behind it is of no use to the volume.
    pub fn shrink_devices(&self) -> Result<()> {
        self.committer.shrink_devices()
    }

    /// Bytes of all devices that the volume uses.
    pub fn device_bytes(&self) -> u64 {
        self.info.space.lock().devices().total_bytes()
    }

    /// Discards free space: of block groups in the range of addresses `start..start + len` (`len`
    /// may be `u64::MAX`: all that follows), in pieces of at least `least` bytes; and, whatever the
    /// range, unallocated space of the devices. Returns the number of the devices' bytes. `EINVAL`
    /// for a range that is invalid or less than a sector, `EOPNOTSUPP` if the device can't.
    pub fn trim(&self, start: u64, len: u64, least: u64) -> Result<u64> {
        self.discards.trim(start, len, least)
    }

    /// Sets the counters of a device's failures to zero; the next commit that changes something
    /// makes that durable.
    pub fn reset_device_errors(&self, devid: DeviceId) -> Result<()> {
        if self.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        self.info.volume.reset_device_errors(devid).map_err(Into::into)
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.info.is_read_only()
    }

    /// Inodes of a subvolume numbered from `from` on, at most `limit` of them, as the last commit
    /// has them; items that can't be understood are left out.
    pub fn find_inodes(&self, subvolume: TreeId, from: Ino, limit: usize) -> Result<Vec<FoundInode>> {
        self.ops.find_inodes(subvolume, from, limit)
    }

    /// All subvolumes that were not deleted, by number.
    pub fn find_subvolumes(&self) -> Vec<FoundSubvolume> {
        self.ops.find_subvolumes()
    }

    /// Calls `visit` with the items of a tree from `first` to `last`, until it returns false.
    /// Changes since the last commit are not visible. `ENOENT` if there is no such tree.
    pub fn search_tree(
        &self,
        tree: TreeId,
        first: Key,
        last: Key,
        visit: &mut dyn FnMut(FoundItem) -> bool,
    ) -> Result<()> {
        self.ops.search_tree(tree, first, last, visit)
    }

    /// The same of items in leaves that the commit `oldest` or a later one wrote: others are not
    /// read, so this costs what was written since.
    pub fn search_tree_since(
        &self,
        tree: TreeId,
        oldest: Generation,
        range: (Key, Key),
        visit: &mut dyn FnMut(FoundItem) -> bool,
    ) -> Result<()> {
        self.ops.search_tree_since(tree, oldest, range, visit)
    }

    /// How full the volume is, in units of data (one with two copies counts half of its devices).
    /// Free space includes free metadata; available space is what data can get, and zero once no
    /// file can be made or grow for lack of metadata. Inodes are not counted, since the format has
    /// no limit.
    pub fn statfs(&self) -> FilesystemStats {
        self.ops.statfs()
    }
}
