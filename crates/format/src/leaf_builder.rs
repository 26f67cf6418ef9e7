//! Builders of tree blocks.

use std::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use crate::node::{ItemHeaderBytes, KeyPointerBytes};
use crate::{
    CHECKSUM_FIELD, ChecksumType, ChildPointer, Error, HEADER_SIZE, Header, ITEM_HEADER_SIZE, KEY_POINTER_SIZE, Key,
    Leaf, Result,
};

/// Fills a leaf with items in ascending order.
pub struct LeafBuilder<'a> {
    block: &'a mut [u8],
    count: usize,
    /// Where the data of the last item starts, from the end of the header.
    data_start: usize,
    last: Option<Key>,
}

impl<'a> LeafBuilder<'a> {
    /// Starts a leaf in `block`, whose length is the node size.
    pub fn new(block: &'a mut [u8]) -> Self {
        let data_start = block.len() - HEADER_SIZE;
        Self { block, count: 0, data_start, last: None }
    }

    /// Returns how many bytes are left for item headers and data.
    pub fn free(&self) -> usize {
        self.data_start - self.count * ITEM_HEADER_SIZE
    }

    /// Returns how many items it has so far.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether no item has been pushed.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an item. `Err(NoRoom)` leaves the leaf as it was.
    ///
    /// # Panics
    ///
    /// If its key is not above that of the last item.
    pub fn push(&mut self, key: Key, data: &[u8]) -> Result<()> {
        if self.free() < data.len() + ITEM_HEADER_SIZE {
            return Err(Error::NoRoom { size: data.len() });
        }
        assert!(self.last.is_none_or(|last| last < key), "an item at {key} would follow that at {:?}", self.last);
        self.data_start -= data.len();
        let start = HEADER_SIZE + self.data_start;
        self.block[start..start + data.len()].copy_from_slice(data);
        let header = ItemHeaderBytes {
            key: key.into(),
            offset: (self.data_start as u32).into(),
            size: (data.len() as u32).into(),
        };
        let at = HEADER_SIZE + self.count * ITEM_HEADER_SIZE;
        self.block[at..at + ITEM_HEADER_SIZE].copy_from_slice(header.as_bytes());
        self.count += 1;
        self.last = Some(key);
        Ok(())
    }

    /// Adds the items in `slots` of another leaf: their data as one piece, their headers all at
    /// once. `Err(NoRoom)` leaves the leaf as it was. Any other error spoils it; only a leaf that
    /// was never checked can cause one.
    ///
    /// # Panics
    ///
    /// If the first key is not above that of the last item.
    pub fn push_run(&mut self, leaf: &Leaf<'_>, slots: Range<usize>) -> Result<()> {
        let misplaced = Error::ItemPlacement { slot: slots.start };
        let Some((items, data)) = leaf.run(slots) else { return Err(misplaced) };
        let (Some(first), Some(last)) = (items.first(), items.last()) else { return Ok(()) };
        if self.free() < data.len() + size_of_val(items) {
            return Err(Error::NoRoom { size: data.len() });
        }
        let first_key = Key::from(first.key);
        assert!(
            self.last.is_none_or(|last| last < first_key),
            "an item at {first_key} would follow that at {:?}",
            self.last
        );
        let mut end = self.data_start;
        self.data_start -= data.len();
        let start = HEADER_SIZE + self.data_start;
        self.block[start..start + data.len()].copy_from_slice(data);
        let headers = &mut self.block[HEADER_SIZE + self.count * ITEM_HEADER_SIZE..];
        let Ok((headers, _)) = <[ItemHeaderBytes]>::mut_from_prefix_with_elems(headers, items.len()) else {
            return Err(misplaced);
        };
        for (new, old) in headers.iter_mut().zip(items) {
            // The data is one piece, but in an unchecked leaf the items' data may not be contiguous
            // in it.
            let Some(offset) = end.checked_sub(old.size.get() as usize) else { return Err(misplaced) };
            *new = ItemHeaderBytes { offset: (offset as u32).into(), ..*old };
            end = offset;
        }
        self.count += items.len();
        self.last = Some(last.key.into());
        if end == self.data_start { Ok(()) } else { Err(misplaced) }
    }

    /// Zeroes the gap and writes the header (its `nritems` and `level` are set here).
    /// [`seal`](Self::seal) sets the checksum afterwards.
    pub fn finish(self, header: Header) {
        let gap = HEADER_SIZE + self.count * ITEM_HEADER_SIZE..HEADER_SIZE + self.data_start;
        self.block[gap].fill(0);
        Header { nritems: self.count as u32, level: 0, ..header }.put(self.block);
    }

    /// Writes the checksum of a finished block of any level.
    pub fn seal(block: &mut [u8], checksum: ChecksumType) {
        let sum = checksum.compute(&block[CHECKSUM_FIELD..]);
        block[..CHECKSUM_FIELD].copy_from_slice(&sum.0);
    }
}

/// Fills an internal block with children in ascending order.
pub struct InternalBuilder<'a> {
    block: &'a mut [u8],
    count: usize,
}

impl<'a> InternalBuilder<'a> {
    /// Starts an internal block in `block`, whose length is the node size.
    pub fn new(block: &'a mut [u8]) -> Self {
        Self { block, count: 0 }
    }

    /// Returns how many children a block of this size holds.
    pub fn capacity(node_size: usize) -> usize {
        (node_size - HEADER_SIZE) / KEY_POINTER_SIZE
    }

    /// Adds a child. `Err(NoRoom)` leaves the block as it was.
    pub fn push(&mut self, child: ChildPointer) -> Result<()> {
        if self.count == Self::capacity(self.block.len()) {
            return Err(Error::NoRoom { size: KEY_POINTER_SIZE });
        }
        let pointer = KeyPointerBytes {
            key: child.key.into(),
            bytenr: child.bytenr.0.into(),
            generation: child.generation.0.into(),
        };
        let at = HEADER_SIZE + self.count * KEY_POINTER_SIZE;
        self.block[at..at + KEY_POINTER_SIZE].copy_from_slice(pointer.as_bytes());
        self.count += 1;
        Ok(())
    }

    /// Zeroes the rest and writes the header (its `nritems` is set here).
    pub fn finish(self, header: Header) {
        let end = HEADER_SIZE + self.count * KEY_POINTER_SIZE;
        self.block[end..].fill(0);
        Header { nritems: self.count as u32, ..header }.put(self.block);
    }
}
