//! Ordered extents: data in flight to the devices, as an inode refers to it.
//!
//! Files that share an extent also share it while it is in flight. So an inode's ordered extents
//! are a set with the logical address as the key, to which adding an extent again changes nothing;
//! otherwise each reflink within a file would double them. The set counts as memory of the inode's
//! transaction (invariant 26).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ubtrfs_file::change_memory::ORDERED;
use ubtrfs_format::Logical;
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_volume::{CompletedWrites, Data, SharedBuffer, Ticket};

use super::InodeId;
use crate::in_flight_bytes::Counted;

/// An extent in flight to the device. Reads take its data from here until the device has it.
pub(crate) struct OrderedExtent {
    /// The inode whose data it is.
    pub(crate) id: InodeId,
    /// The logical address that it is written to.
    pub(crate) start: Logical,
    /// The data, in order. Its parts are together as long as the extent.
    data: Vec<SharedBuffer>,
    /// Bytes of the data.
    len: u64,
    /// The I/O that writes it.
    pub(crate) ticket: SharedTicket,
    /// Counts its bytes among all bytes in flight.
    _counted: Counted,
}

/// The I/O of extents that are submitted together.
pub(crate) type SharedTicket = Arc<Mutex<DataWrites>>;

/// A ticket for data that is yet to be submitted.
pub(crate) fn new_ticket() -> SharedTicket {
    Arc::new(Mutex::with_default(Rank::DataWrites))
}

/// The progress of submitted data writes.
#[derive(Default)]
pub(crate) enum DataWrites {
    /// They are yet to be submitted. No other thread can see their extents.
    #[default]
    Gathered,
    /// No thread has waited for them.
    UnderWay(Ticket<Data>),
    /// A thread has waited for them. Later waiters get the proof of completion, too.
    Completed(CompletedWrites<Data>),
    /// A wait for them has failed, or they could not be submitted.
    Failed,
}

impl OrderedExtent {
    /// Creates the ordered extent of a file's data that goes to `start`, by the I/O of `ticket`.
    pub(crate) fn new(
        id: InodeId,
        start: Logical,
        data: Vec<SharedBuffer>,
        ticket: SharedTicket,
        counted: Counted,
    ) -> Self {
        let len = data.iter().map(|part| part.len() as u64).sum();
        Self { id, start, data, len, ticket, _counted: counted }
    }

    /// Bytes of the extent.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the logical address at which it ends.
    fn end(&self) -> Logical {
        self.start.plus(self.len)
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

    /// Whether the device may not have the data yet.
    fn is_under_way(&self) -> bool {
        matches!(*self.ticket.lock(), DataWrites::UnderWay(_))
    }

    /// Whether no thread has to wait for it any more.
    fn has_ended(&self) -> bool {
        matches!(*self.ticket.lock(), DataWrites::Completed(_) | DataWrites::Failed)
    }
}

/// The ordered extents that an inode refers to: its own, and those that it shares.
#[derive(Default)]
pub(crate) struct OrderedExtents(Option<Box<Set>>);

/// The ordered extents do not overlap, except for those that newer data replaces.
#[derive(Default)]
struct Set {
    by_start: BTreeMap<Logical, Arc<OrderedExtent>>,
    /// Extents that newer data overwrites. Usually there are none, since a write in place waits for
    /// earlier writes to the same place, and completed extents are not kept.
    replaced: Vec<Arc<OrderedExtent>>,
}

impl OrderedExtents {
    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Memory that the set takes, in bytes, without the data, which is counted once for all inodes.
    pub(super) fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |set| set.by_start.len() * ORDERED)
    }

    /// Returns all of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<OrderedExtent>> {
        self.0.iter().flat_map(|set| set.replaced.iter().chain(set.by_start.values()))
    }

    /// Returns the newest extents that overlap a range of logical addresses, in the order of their
    /// addresses.
    pub(crate) fn in_range(&self, range: Range<Logical>) -> impl Iterator<Item = &Arc<OrderedExtent>> {
        self.0.iter().flat_map(move |set| {
            let before = set.by_start.range(..range.start).next_back().filter(|(_, extent)| extent.end() > range.start);
            before.into_iter().chain(set.by_start.range(range.clone())).map(|(_, extent)| extent)
        })
    }

    /// Adds an extent, which is newer than the extents that it overlaps.
    pub(crate) fn insert(&mut self, extent: Arc<OrderedExtent>) {
        let range = extent.start..extent.end();
        let covered: Vec<_> = self.in_range(range).cloned().collect();
        let set = self.0.get_or_insert_default();
        for old in covered {
            if Arc::ptr_eq(&old, &extent) {
                continue;
            }
            set.by_start.remove(&old.start);
            if !old.has_ended() {
                set.replaced.push(old);
            }
        }
        set.by_start.insert(extent.start, extent);
    }

    /// Adds extents that are in the set already once more, to inject a fault.
    pub(crate) fn repeat(&mut self, extents: impl IntoIterator<Item = Arc<OrderedExtent>>) {
        self.0.get_or_insert_default().replaced.extend(extents);
    }

    /// Forgets the extents whose data the device has.
    pub(crate) fn reap(&mut self) {
        let Some(set) = &mut self.0 else { return };
        set.by_start.retain(|_, extent| extent.is_under_way());
        set.replaced.retain(|extent| extent.is_under_way());
        self.0.take_if(|set| set.by_start.is_empty() && set.replaced.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::{Ino, TreeId};
    use ubtrfs_volume::Buffer;

    use super::*;
    use crate::in_flight_bytes::InFlightBytes;

    fn ordered(start: u64, sectors: usize, fill: u8) -> Arc<OrderedExtent> {
        let mut data = Buffer::for_reading(sectors * 4096);
        data.fill(fill);
        let id = InodeId::new(TreeId::FS, Ino(257));
        let counted = InFlightBytes::default().count(data.len() as u64);
        Arc::new(OrderedExtent::new(id, Logical(start), vec![data.share()], new_ticket(), counted))
    }

    fn in_range(set: &OrderedExtents, range: Range<u64>) -> Vec<u64> {
        set.in_range(Logical(range.start)..Logical(range.end)).map(|extent| extent.start.0).collect()
    }

    #[test]
    fn what_is_added_again_is_there_once() {
        let mut set = OrderedExtents::default();
        let (one, other) = (ordered(1 << 20, 4, 1), ordered(2 << 20, 1, 2));
        for _ in 0..100 {
            set.insert(one.clone());
            set.insert(other.clone());
        }
        assert_eq!((set.iter().count(), set.bytes()), (2, 2 * ORDERED), "invariant 26: it counts once, too");
    }

    #[test]
    fn a_range_shows_what_reaches_into_it() {
        let mut set = OrderedExtents::default();
        set.insert(ordered(0x10000, 4, 1));
        set.insert(ordered(0x14000, 2, 2));
        set.insert(ordered(0x20000, 1, 3));
        assert_eq!(in_range(&set, 0x13000..0x14000), [0x10000]);
        assert_eq!(in_range(&set, 0x13000..0x14001), [0x10000, 0x14000]);
        assert!(in_range(&set, 0x16000..0x20000).is_empty());
        assert_eq!(in_range(&set, 0..u64::MAX), [0x10000, 0x14000, 0x20000]);
    }

    /// Reads see the newest data of a place. A wait for all data waits for the older data, too.
    #[test]
    fn newer_data_hides_the_older_and_both_are_waited_for() {
        let mut set = OrderedExtents::default();
        let (old, new) = (ordered(0x10000, 4, 1), ordered(0x11000, 1, 2));
        set.insert(old.clone());
        set.insert(new.clone());
        assert_eq!(in_range(&set, 0x10000..0x14000), [0x11000]);
        assert!(set.iter().any(|extent| Arc::ptr_eq(extent, &old)) && set.iter().count() == 2);
        set.reap();
        assert!(set.is_empty(), "none is under way");
    }
}
