//! Limits of the memory that the changes and the names of one inode may take. Only hostile volumes
//! come near them.

use ubtrfs_fs::{Errno, Result};

use crate::file::{ChangedContent, ChangedSubvolume, ChangedXattr, FileChange, FileName};

/// The most bytes of memory of one inode's change. A range of content takes 24, so a file may have
/// some ten million of them.
pub(crate) const MAX_CHANGE: u64 = 256 << 20;
/// The most bytes of memory of one inode's names on one side, with their paths.
pub(crate) const MAX_NAMES: u64 = 64 << 20;
/// Roughly the bytes of memory that a string takes besides its own.
const STRING: usize = 40;

/// The number of bytes that may still be taken.
pub(crate) struct Budget(u64);

impl Budget {
    pub(crate) fn new(most: u64) -> Self {
        Self(most)
    }

    /// Takes bytes from the budget. `E2BIG` if they exceed it.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<()> {
        self.0 = self.0.checked_sub(bytes as u64).ok_or(Errno::TOOBIG)?;
        Ok(())
    }
}

/// The bytes that an xattr with this name and value takes.
pub(crate) fn xattr(name: &[u8], value: &[u8]) -> usize {
    name.len() + value.len() + STRING * 3
}

/// The bytes that an entry of a subvolume takes.
pub(crate) fn subvolume(name: &[u8]) -> usize {
    name.len() + STRING * 2
}

/// The bytes that a name takes.
pub(crate) fn name(FileName { name, path, .. }: &FileName) -> usize {
    name.len() + path.len() + STRING * 2
}

/// The bytes of memory that a change takes besides its attributes.
pub fn memory(change: &FileChange) -> usize {
    let FileChange { old_names, new_names, names_removed, names_added, .. } = change;
    let names: usize = [old_names, new_names, names_removed, names_added].into_iter().flatten().map(name).sum();
    let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
    let of_xattr = |changed: &ChangedXattr| xattr(&changed.name, &[]) + value(&changed.old) + value(&changed.new);
    let xattrs: usize = change.xattrs.iter().map(of_xattr).sum();
    let subvolumes: usize = change.subvolumes.iter().map(|entry: &ChangedSubvolume| subvolume(&entry.name)).sum();
    names + xattrs + subvolumes + change.content.len() * size_of::<ChangedContent>()
}
