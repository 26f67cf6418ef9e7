//! The state of an inode in memory: its attributes, the changes that are not committed yet, and
//! those that are being committed. At most one batch is frozen (invariant 6), and it stays until
//! the commit is durable.
//!
//! ```text
//!                    ┌───────────────── join ────────────────────┐
//!                    ▼                                           │
//! clean ── join ──▶ pending ── freeze_before ──▶ frozen ─────────┤
//!                                                  │             │
//!                                                  └── forget_frozen ──▶ committed
//!
//! data:  dirty ── write_back_pending or write_back_frozen ──▶ ordered ── wait_for ──▶ completed
//!                                                                                        │
//!                                                                         ordered.reap ──┘
//! ```
//!
//! While a batch is frozen, `join` begins another one above it. Data becomes ordered in the
//! transaction whose batch gets its location, and the commit of that transaction takes the proof
//! that it has completed (invariant 1, invariant 2).

use std::collections::BTreeSet;
use std::sync::Arc;

use ubtrfs_file::DirtyData;
use ubtrfs_format::items::{FileType, InodeFlags, InodeItem, Timespec};
use ubtrfs_format::{DirIndex, Generation, Logical};
use ubtrfs_volume::Published;

use super::{InodeBatch, LazyBox, Listings, Name, OrderedExtents, OrphanEdit};
use crate::error::Error;

/// What the commit in flight takes from an inode.
pub(crate) struct Frozen {
    pub(crate) item: InodeItem,
    pub(crate) batch: LazyBox<InodeBatch>,
    /// Data that the commit must write back.
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
    /// Whether the committed trees contain items of the inode.
    pub(crate) committed: bool,
    /// Whether the inode is known to have no xattrs, committed or not.
    pub(crate) no_xattrs: bool,
    /// For directories: the index of the next entry, once known.
    pub(crate) next_index: Option<DirIndex>,
    /// For directories: the listings.
    pub(crate) listings: Listings,
    /// For directories: how many names were added or removed while the inode was in memory.
    pub(crate) name_changes: u64,
    /// Data that is only in memory.
    pub(crate) dirty: DirtyData,
    /// Data space reserved for `dirty`, in bytes.
    pub(crate) reserved: u64,
    /// Changes of the open transaction.
    pub(crate) pending: LazyBox<InodeBatch>,
    /// Changes of the transaction that is being committed.
    pub(crate) frozen: Option<Box<Frozen>>,
    /// Ordered extents: data in flight to the device.
    pub(crate) ordered: OrderedExtents,
    /// The error of a failed write of data. The next fsync reports it.
    pub(crate) write_error: Option<Arc<Error>>,
    /// Whether nothing refers to the inode, nor ever will: it is being freed, at once or in steps.
    pub(crate) dead: bool,
    /// For directories: names of subvolumes that a commit is about to create here.
    #[allow(clippy::box_collection, reason = "nearly no inode has any: it takes a word")]
    pub(crate) new_subvolumes: Option<Box<BTreeSet<Name>>>,
    /// The logical address at which the last extent of the file ended.
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
            ordered: OrderedExtents::default(),
            write_error: None,
            dead: false,
            new_subvolumes: None,
            allocation_hint: Logical(0),
        }
    }

    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_mode(self.item.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Drops extents beyond the end of a file that has joined the transaction, and its orphan item.
    pub(crate) fn drop_beyond_end(&mut self, sector_size: u32) {
        if self.file_type() == FileType::Regular {
            let end = self.item.size.next_multiple_of(u64::from(sector_size));
            self.pending.layout.truncate(end);
        }
        self.pending.orphan = OrphanEdit::Remove;
    }

    /// Whether a directory has no entry. Its size is twice the sum of the lengths of its names.
    pub(crate) fn is_empty_dir(&self) -> bool {
        self.item.size == 0 && self.new_subvolumes.is_none()
    }

    /// Whether a commit is about to make a subvolume of this name in the directory.
    pub(crate) fn is_reserved_name(&self, name: &[u8]) -> bool {
        self.new_subvolumes.as_ref().is_some_and(|names| names.contains(name))
    }

    /// Keeps a name free for a subvolume that the next commit makes.
    pub(crate) fn reserve_name(&mut self, name: Name) {
        self.new_subvolumes.get_or_insert_default().insert(name);
    }

    /// Frees a name once the commit has created the subvolume, or failed.
    pub(crate) fn unreserve_name(&mut self, name: &[u8]) {
        if let Some(names) = &mut self.new_subvolumes {
            names.remove(name);
            self.new_subvolumes.take_if(|names| names.is_empty());
        }
    }

    /// Whether data of the file carries checksums.
    pub(crate) fn has_checksums(&self) -> bool {
        has_checksums(self.item.flags)
    }

    /// Whether the inode can be evicted without a loss.
    pub(crate) fn is_clean(&self) -> bool {
        self.pending.is_clean() && self.frozen.is_none() && self.dirty.is_empty() && self.ordered.is_empty()
    }

    /// Changes that no durable commit contains, newest first: the batch of the open transaction,
    /// and that of the commit in flight.
    pub(crate) fn batches(&self) -> impl DoubleEndedIterator<Item = &InodeBatch> {
        let frozen = self.frozen.iter().map(|frozen| &*frozen.batch);
        std::iter::once(&*self.pending).chain(frozen)
    }

    /// Dirty data of the open transaction and of the commit in flight, newest first.
    pub(crate) fn dirty_layers(&self) -> impl Iterator<Item = &DirtyData> {
        std::iter::once(&self.dirty).chain(self.frozen.iter().map(|frozen| &frozen.dirty))
    }

    /// Bytes of data space reserved for all its dirty data.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved + self.frozen.as_ref().map_or(0, |frozen| frozen.reserved)
    }

    /// Reduces the reserved space to what the remaining dirty data takes, and returns the bytes
    /// that are no longer needed.
    pub(crate) fn unreserve_clean(&mut self) -> u64 {
        let dirty = self.dirty.ranges().map(|(_, len)| len).sum();
        std::mem::replace(&mut self.reserved, dirty) - dirty
    }

    /// Whether neither the trees nor the commit in flight have the inode.
    pub(crate) fn is_new(&self) -> bool {
        !self.committed && self.frozen.is_none()
    }

    /// Updates the transactions' counts of the memory that the inode takes.
    pub(super) fn settle_memory(&mut self) {
        if !self.pending.is_clean() {
            let (changes, dirty) = (self.pending.bytes() + self.ordered.bytes(), self.dirty.bytes());
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
        assert!(self.frozen.is_none(), "invariant 6: a commit began before the one before it had ended");
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

    /// Whether a writer of the log will find the changes of names that are in the log.
    pub(super) fn is_listed_if_renamed(&self) -> bool {
        self.pending.logged.as_ref().is_none_or(|logged| logged.listed || !logged.names_changed)
    }

    /// Drops the frozen batch, which is durable in the trees now. Returns whether the inode is
    /// gone.
    pub(crate) fn forget_frozen(&mut self, published: &Published) -> bool {
        let gone = self.frozen.take().is_some_and(|frozen| {
            assert_eq!(frozen.batch.generation, published.generation(), "invariant 6: a commit drops its own batch");
            frozen.batch.gone
        });
        self.ordered.reap();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Inode;

    /// Without invariant 6, the content of the first batch would be lost, which is not committed
    /// yet.
    #[test]
    #[should_panic(expected = "invariant 6")]
    fn a_second_batch_is_not_frozen_before_the_first_is_committed() {
        let mut state = InodeState::new(InodeItem::default(), false, true, 4096);
        for generation in [7, 8] {
            state.pending.generation = Generation(generation);
            state.freeze_before(Generation(generation + 1));
        }
    }

    #[test]
    fn an_idle_inode_takes_little_memory() {
        // Where the order of locks is checked, each lock stores its place in it.
        let place = if cfg!(debug_assertions) { 24 } else { 0 };
        assert!(size_of::<Inode>() <= 360 + place, "{} bytes", size_of::<Inode>());
    }
}
