//! The state of an inode in memory: its attributes, what is not committed yet, what is being
//! committed.

use std::sync::Arc;

use ubtrfs_format::items::{FileType, InodeFlags, InodeItem, Timespec};
use ubtrfs_format::{DirIndex, Generation, Logical};
use ubtrfs_volume::SharedBuffer;

use super::{InodeBatch, LazyBox, Listings, OrphanEdit};
use crate::file::dirty::DirtyData;
use crate::in_flight_bytes::Counted;

/// Data on its way to the device. Reads take it from here until the device has it.
pub(crate) struct OrderedExtent {
    /// Where it goes.
    pub(crate) start: Logical,
    /// The data, in order; together as long as the extent.
    pub(crate) data: Vec<SharedBuffer>,
    /// The I/O.
    pub(crate) ticket: SharedTicket,
    /// Its bytes, among all that are on their way.
    pub(crate) _counted: Counted,
}

/// The I/O of extents that were submitted together; `None` once somebody has waited for it.
pub(crate) type SharedTicket = Arc<parking_lot::Mutex<Option<ubtrfs_volume::Ticket>>>;

impl OrderedExtent {
    /// Bytes of the extent.
    pub(crate) fn len(&self) -> u64 {
        self.data.iter().map(|part| part.len() as u64).sum()
    }

    /// Copies `buf.len()` bytes from `offset` of the extent.
    pub(crate) fn copy(&self, mut offset: usize, buf: &mut [u8]) {
        let mut filled = 0;
        for part in &self.data {
            if offset >= part.len() {
                offset -= part.len();
                continue;
            }
            let count = (part.len() - offset).min(buf.len() - filled);
            buf[filled..filled + count].copy_from_slice(&part[offset..offset + count]);
            filled += count;
            offset = 0;
            if filled == buf.len() {
                return;
            }
        }
    }
}

/// What the commit in flight takes from an inode.
pub(crate) struct Frozen {
    pub(crate) item: InodeItem,
    pub(crate) batch: LazyBox<InodeBatch>,
    /// Data that the commit must write out.
    pub(crate) dirty: DirtyData,
    /// Data space reserved for it, in bytes.
    pub(crate) reserved: u64,
}

/// Whether data of a file with these inode flags carries checksums.
pub(crate) fn has_checksums(flags: u64) -> bool {
    flags & InodeFlags::NODATASUM == 0
}

/// The state of an inode.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each asked for by itself")]
pub(crate) struct InodeState {
    /// The attributes as programs see them.
    pub(crate) item: InodeItem,
    /// The committed trees hold items of the inode.
    pub(crate) committed: bool,
    /// Known to have no xattrs, committed or not.
    pub(crate) no_xattrs: bool,
    /// For directories: the number of the next entry, once known.
    pub(crate) next_index: Option<DirIndex>,
    /// Of a directory: its listings.
    pub(crate) listings: Listings,
    /// Of a directory: how many names came or went while it was in memory.
    pub(crate) name_changes: u64,
    /// Data that is only in memory.
    pub(crate) dirty: DirtyData,
    /// Data space reserved for `dirty`, in bytes.
    pub(crate) reserved: u64,
    /// What changed in the open transaction.
    pub(crate) pending: LazyBox<InodeBatch>,
    /// What changed in the transaction that is being committed.
    pub(crate) frozen: Option<Box<Frozen>>,
    /// Data on its way to the device.
    pub(crate) ordered: Vec<Arc<OrderedExtent>>,
    /// A write of data failed; the next fsync tells.
    pub(crate) write_error: bool,
    /// Nothing refers to the inode, nor ever will: it is being freed, all at once or in steps.
    pub(crate) dead: bool,
    /// Where the last extent of the file ended.
    pub(crate) allocation_hint: Logical,
}

impl InodeState {
    pub(crate) fn new(item: InodeItem, committed: bool, no_xattrs: bool, sector_size: u32) -> Self {
        Self {
            item,
            committed,
            no_xattrs,
            next_index: None,
            listings: Listings::default(),
            name_changes: 0,
            dirty: DirtyData::new(sector_size),
            reserved: 0,
            pending: LazyBox::default(),
            frozen: None,
            ordered: Vec::new(),
            write_error: false,
            dead: false,
            allocation_hint: Logical(0),
        }
    }

    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_mode(self.item.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Drops what lies beyond the end of a file that has joined the transaction, and its orphan
    /// item.
    pub(crate) fn drop_beyond_end(&mut self, sector_size: u32) {
        if self.file_type() == FileType::Regular {
            let end = self.item.size.next_multiple_of(u64::from(sector_size));
            self.pending.layout.truncate(end);
        }
        self.pending.orphan = OrphanEdit::Remove;
    }

    /// Whether a directory has no entry. Its size is the sum of its names, twice.
    pub(crate) fn is_empty_dir(&self) -> bool {
        self.item.size == 0
    }

    /// Whether data of the file carries checksums.
    pub(crate) fn has_checksums(&self) -> bool {
        has_checksums(self.item.flags)
    }

    /// Whether nothing of the inode would be lost if it left memory.
    pub(crate) fn is_clean(&self) -> bool {
        self.pending.is_clean() && self.frozen.is_none() && self.dirty.is_empty() && self.ordered.is_empty()
    }

    /// Whether neither the trees nor the commit in flight have the inode.
    pub(crate) fn is_new(&self) -> bool {
        !self.committed && self.frozen.is_none()
    }

    /// Settles with the transactions what the inode holds in memory.
    pub(super) fn settle_memory(&mut self) {
        if !self.pending.is_clean() {
            let (changes, dirty) = (self.pending.bytes(), self.dirty.bytes());
            self.pending.account.settle(changes, dirty);
        }
        if let Some(frozen) = &mut self.frozen {
            let (changes, dirty) = (frozen.batch.bytes(), frozen.dirty.bytes());
            frozen.batch.account.settle(changes, dirty);
        }
    }

    /// Freezes the pending batch if it belongs to a transaction before `generation`.
    pub(crate) fn freeze_before(&mut self, generation: Generation) {
        if self.pending.is_clean() || self.pending.generation >= generation {
            return;
        }
        assert!(self.frozen.is_none(), "a commit began before the one before it had ended");
        self.frozen = Some(Box::new(Frozen {
            item: self.item,
            batch: std::mem::take(&mut self.pending),
            dirty: self.dirty.take(),
            reserved: std::mem::take(&mut self.reserved),
        }));
    }

    /// Notes the time of a change of the attributes, in an inode that has joined the transaction.
    pub(crate) fn attributes_changed(&mut self, time: Timespec) {
        self.item.ctime = time;
        self.item.sequence = self.item.sequence.wrapping_add(1);
    }

    /// Notes the time of a change of the content, which changes the ctime, too.
    pub(crate) fn content_changed(&mut self, time: Timespec) {
        self.item.mtime = time;
        self.attributes_changed(time);
    }

    /// Forgets ordered extents whose data the device has.
    pub(crate) fn reap_ordered(&mut self) {
        self.ordered.retain(|extent| extent.ticket.lock().is_some());
    }
}

#[cfg(test)]
mod tests {
    use crate::inode::Inode;

    #[test]
    fn an_idle_inode_takes_little_memory() {
        assert!(size_of::<Inode>() <= 360, "{} bytes", size_of::<Inode>());
    }
}
