//! The map from logical addresses to places on devices, for every profile.

use std::collections::BTreeMap;
use std::ops::Range;

use ubtrfs_format::items::{BlockGroupFlags, ChunkItem, STRIPE_LEN, Stripe};
use ubtrfs_format::{DeviceId, Logical, Physical, SUPERBLOCK_COPIES};

use crate::error::{Error, Result};
use crate::parity::MAX_STRIPES;

/// All chunks of a volume, by their logical start.
#[derive(Clone, Debug, Default)]
pub struct ChunkMap {
    chunks: BTreeMap<u64, Chunk>,
}

#[derive(Clone, Debug)]
struct Chunk {
    item: ChunkItem,
    layout: Layout,
}

/// How a profile spreads a chunk over its stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Every stripe has all data.
    Copies,
    /// The data rotates over groups of `copies` stripes; the stripes of a group hold the same.
    Striped { copies: usize },
    /// In each row `parities` stripes hold parity and the others data. The roles rotate from row to
    /// row.
    Parity { parities: usize },
}

/// One position on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoStripe {
    /// The device.
    pub devid: DeviceId,
    /// The physical address on it.
    pub at: Physical,
}

/// A logical range that is contiguous on each device that holds a copy of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedRange {
    /// Bytes.
    pub len: u64,
    /// Where the copies are, at least one.
    pub copies: Vec<IoStripe>,
    /// Whether writing all copies is enough. With parity it is not: the range has one copy, which
    /// also follows from the other stripes of its row.
    pub writable: bool,
}

/// A stretch of a row of a chunk with parity: the same bytes of each stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The logical address where the row begins.
    pub start: Logical,
    /// How many stripes have data: the first ones. The others are P, then Q.
    pub data: usize,
    /// Where each stripe has its part of the stretch.
    pub stripes: Vec<IoStripe>,
    /// The index of the stripe that has the address that was looked up.
    pub wanted: usize,
}

impl Row {
    /// Returns how many stripes have parity.
    pub fn parities(&self) -> usize {
        self.stripes.len() - self.data
    }
}

impl Layout {
    fn of(item: &ChunkItem) -> std::result::Result<Self, &'static str> {
        let count = item.stripes.len();
        let fits =
            |holds: bool, layout: Self| if holds { Ok(layout) } else { Err("stripe count does not fit the profile") };
        match item.flags.profile() {
            BlockGroupFlags(0) => fits(count == 1, Self::Copies),
            BlockGroupFlags::DUP | BlockGroupFlags::RAID1 => fits(count == 2, Self::Copies),
            BlockGroupFlags::RAID1C3 => fits(count == 3, Self::Copies),
            BlockGroupFlags::RAID1C4 => fits(count == 4, Self::Copies),
            BlockGroupFlags::RAID0 => fits(count >= 1, Self::Striped { copies: 1 }),
            BlockGroupFlags::RAID10 => {
                fits(count >= 2 && count.is_multiple_of(2) && item.sub_stripes == 2, Self::Striped { copies: 2 })
            }
            BlockGroupFlags::RAID5 => fits((2..=MAX_STRIPES).contains(&count), Self::Parity { parities: 1 }),
            BlockGroupFlags::RAID6 => fits((3..=MAX_STRIPES).contains(&count), Self::Parity { parities: 2 }),
            _ => Err("unknown profile"),
        }
    }

    /// Returns how many stripes of a row hold different data.
    fn width(self, stripes: usize) -> u64 {
        let width = match self {
            Self::Copies => 1,
            Self::Striped { copies } => stripes / copies,
            Self::Parity { parities } => stripes - parities,
        };
        width.max(1) as u64
    }
}

impl Chunk {
    /// Returns how many bytes the chunk takes on each of its devices.
    fn extent_len(&self) -> u64 {
        match self.layout {
            Layout::Copies => self.item.length,
            layout => {
                let row = layout.width(self.item.stripes.len()) * STRIPE_LEN;
                self.item.length.div_ceil(row).saturating_mul(STRIPE_LEN)
            }
        }
    }

    /// Returns the piece at `offset` (below the chunk's length), at most `len` bytes long.
    fn locate(&self, offset: u64, len: u64) -> MappedRange {
        let stripes = &self.item.stripes;
        let place = |stripe: &Stripe, within: u64| IoStripe { devid: stripe.devid, at: stripe.offset.plus(within) };
        let len = len.min(self.item.length - offset);
        if self.layout == Layout::Copies {
            let copies = stripes.iter().map(|stripe| place(stripe, offset)).collect();
            return MappedRange { len, copies, writable: true };
        }
        let width = self.layout.width(stripes.len());
        let (number, within) = (offset / STRIPE_LEN, offset % STRIPE_LEN);
        let (row, column) = (number / width, (number % width) as usize);
        let on_device = row * STRIPE_LEN + within;
        let len = len.min(STRIPE_LEN - within);
        let holders = match self.layout {
            Layout::Striped { copies } => column * copies..(column + 1) * copies,
            Layout::Copies | Layout::Parity { .. } => {
                let turned = self.turned(column, row);
                turned..turned + 1
            }
        };
        let copies = stripes.get(holders).unwrap_or_default().iter().map(|stripe| place(stripe, on_device)).collect();
        MappedRange { len, copies, writable: !matches!(self.layout, Layout::Parity { .. }) }
    }

    /// Returns the index of the stripe of the chunk that has this role in a row. The roles with
    /// data come first, then P, then Q.
    fn turned(&self, role: usize, row: u64) -> usize {
        let stripes = self.item.stripes.len();
        (role + (row % stripes as u64) as usize) % stripes
    }

    /// Returns the row at `offset` (below the chunk's length), from there on, or `None` if the
    /// chunk has no parity.
    fn row(&self, offset: u64) -> Option<Row> {
        let Layout::Parity { parities } = self.layout else { return None };
        let stripes = &self.item.stripes;
        let width = self.layout.width(stripes.len());
        let (number, within) = (offset / STRIPE_LEN, offset % STRIPE_LEN);
        let row = number / width;
        let place = |role: usize| {
            let stripe = stripes.get(self.turned(role, row))?;
            Some(IoStripe { devid: stripe.devid, at: stripe.offset.plus(row * STRIPE_LEN + within) })
        };
        Some(Row {
            start: Logical(row * width * STRIPE_LEN),
            data: stripes.len() - parities,
            stripes: (0..stripes.len()).filter_map(place).collect(),
            wanted: (number % width) as usize,
        })
    }

    /// Returns the offset within the chunk of the data at this place on a device, or `None` if the
    /// place belongs to another chunk or holds parity.
    fn offset_of(&self, devid: DeviceId, at: Physical) -> Option<u64> {
        let within = |stripe: &Stripe| at.0.checked_sub(stripe.offset.0).filter(|offset| *offset < self.extent_len());
        let holds = |(index, stripe): (usize, &Stripe)| {
            within(stripe).filter(|_| stripe.devid == devid).map(|offset| (index, offset))
        };
        let (index, on_device) = self.item.stripes.iter().enumerate().find_map(holds)?;
        let (row, within) = (on_device / STRIPE_LEN, on_device % STRIPE_LEN);
        let stripes = self.item.stripes.len();
        let width = self.layout.width(stripes);
        let column = match self.layout {
            Layout::Copies => return Some(on_device),
            Layout::Striped { copies } => index / copies,
            Layout::Parity { .. } => (index + stripes - (row % stripes as u64) as usize) % stripes,
        };
        let offset = (row * width + column as u64) * STRIPE_LEN + within;
        ((column as u64) < width && offset < self.item.length).then_some(offset)
    }

    /// Returns the logical offsets within the chunk whose row or copy overlaps a superblock.
    fn reserved(&self) -> Vec<Range<u64>> {
        let extent = self.extent_len();
        let width = self.layout.width(self.item.stripes.len());
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (index, stripe) in self.item.stripes.iter().enumerate() {
            for copy in SUPERBLOCK_COPIES {
                // The format keeps a whole stripe's length free at each copy.
                let (from, to) = (copy.0, copy.0 + STRIPE_LEN);
                let start = from.saturating_sub(stripe.offset.0);
                let end = to.saturating_sub(stripe.offset.0).min(extent);
                if start >= end {
                    continue;
                }
                let range = match self.layout {
                    Layout::Copies => start..end,
                    Layout::Striped { copies } => {
                        let column = (index / copies) as u64;
                        let (first, last) = (start / STRIPE_LEN, (end - 1) / STRIPE_LEN);
                        (first * width + column) * STRIPE_LEN..(last * width + column + 1) * STRIPE_LEN
                    }
                    Layout::Parity { .. } => {
                        let (first, last) = (start / STRIPE_LEN, (end - 1) / STRIPE_LEN);
                        first * width * STRIPE_LEN..(last + 1) * width * STRIPE_LEN
                    }
                };
                let range = range.start..range.end.min(self.item.length);
                if !range.is_empty() {
                    ranges.push(range);
                }
            }
        }
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
        ranges
    }
}

impl ChunkMap {
    /// Adds a chunk. `device_bytes` returns how many bytes a device has, or `None` for a device
    /// that is missing.
    ///
    /// # Panics
    ///
    /// Never: a chunk that begins where another one does overlaps it, which is an error.
    pub fn insert(
        &mut self,
        start: Logical,
        item: ChunkItem,
        sector_size: u32,
        device_bytes: impl Fn(DeviceId) -> Option<u64>,
    ) -> Result<()> {
        let bad = |what| Error::BadChunk { chunk: start, what };
        let layout = Layout::of(&item).map_err(bad)?;
        let sector = u64::from(sector_size.max(1));
        if !start.0.is_multiple_of(sector) || !item.length.is_multiple_of(sector) {
            return Err(bad("not aligned to sectors"));
        }
        let end = start.0.checked_add(item.length).ok_or_else(|| bad("reaches beyond the address space"))?;
        if let Some((first, chunk)) = self.chunks.range(..end).next_back()
            && first + chunk.item.length > start.0
        {
            let (one, other) = (Logical(*first), start);
            return Err(Error::OverlappingChunks { first: one.min(other), second: one.max(other) });
        }
        let chunk = Chunk { item, layout };
        let extent = chunk.extent_len();
        for stripe in &chunk.item.stripes {
            if !stripe.offset.0.is_multiple_of(sector) {
                return Err(bad("a stripe is not aligned to sectors"));
            }
            let size = device_bytes(stripe.devid).ok_or(Error::MissingDevice(stripe.devid))?;
            if stripe.offset.0.checked_add(extent).is_none_or(|end| end > size) {
                return Err(bad("a stripe reaches beyond its device"));
            }
        }
        let before = self.chunks.insert(start.0, chunk);
        assert!(before.is_none(), "invariant 18: two chunks begin at {start}");
        Ok(())
    }

    /// Returns whether the devices that are not lost have all data of all chunks.
    pub(crate) fn survives(&self, lost: impl Fn(DeviceId) -> bool) -> bool {
        self.chunks.values().all(|chunk| {
            let is_lost = |stripe: &&Stripe| lost(stripe.devid);
            let stripes = &chunk.item.stripes;
            match chunk.layout {
                Layout::Copies => !stripes.iter().all(|stripe| is_lost(&stripe)),
                Layout::Striped { copies } => {
                    stripes.chunks(copies).all(|mirrors| !mirrors.iter().all(|stripe| is_lost(&stripe)))
                }
                Layout::Parity { parities } => stripes.iter().filter(is_lost).count() <= parities,
            }
        })
    }

    /// Removes the chunk that starts here, and returns whether there was one.
    pub(crate) fn remove(&mut self, start: Logical) -> bool {
        self.chunks.remove(&start.0).is_some()
    }

    /// Returns the chunk that starts here.
    pub fn get(&self, start: Logical) -> Option<&ChunkItem> {
        self.chunks.get(&start.0).map(|chunk| &chunk.item)
    }

    /// Returns all chunks in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = (Logical, &ChunkItem)> {
        self.chunks.iter().map(|(start, chunk)| (Logical(*start), &chunk.item))
    }

    /// Returns whether a stripe of a chunk overlaps this range of a device.
    pub(crate) fn has_stripe_in(&self, devid: DeviceId, range: Range<u64>) -> bool {
        self.chunks.values().any(|chunk| {
            let overlaps = |start: u64| start < range.end && start + chunk.extent_len() > range.start;
            chunk.item.stripes.iter().any(|stripe| stripe.devid == devid && overlaps(stripe.offset.0))
        })
    }

    /// Returns the logical address of the data at this place on a device.
    pub(crate) fn logical_of(&self, devid: DeviceId, at: Physical) -> Option<Logical> {
        self.chunks.iter().find_map(|(start, chunk)| chunk.offset_of(devid, at).map(|offset| Logical(start + offset)))
    }

    /// Returns the piece that starts at `at`, at most `len` bytes long.
    pub fn locate(&self, at: Logical, len: u64) -> Result<MappedRange> {
        let unmapped = Error::Unmapped { at, len };
        let Some((start, chunk)) = self.chunks.range(..=at.0).next_back() else { return Err(unmapped) };
        let offset = at.0 - start;
        if offset >= chunk.item.length { Err(unmapped) } else { Ok(chunk.locate(offset, len)) }
    }

    /// Returns the part, from this address on, of the row that has it, or `None` in a chunk without
    /// parity.
    pub fn row(&self, at: Logical) -> Option<Row> {
        let (start, chunk) = self.chunks.range(..=at.0).next_back()?;
        let offset = at.0 - start;
        let row = if offset < chunk.item.length { chunk.row(offset)? } else { return None };
        Some(Row { start: row.start.plus(*start), ..row })
    }

    /// Returns all pieces of a range, in order, or an error if a part of it is in no chunk.
    pub fn pieces(&self, at: Logical, len: u64) -> Result<Vec<MappedRange>> {
        let mut pieces = Vec::with_capacity(1);
        let mut done = 0;
        while done < len {
            let next = at.0.checked_add(done).ok_or(Error::Unmapped { at, len })?;
            let piece = self.locate(Logical(next), len - done)?;
            done += piece.len;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Returns the logical ranges of the chunk at `start` that overlap copies of the superblock.
    /// They must not be allocated.
    pub(crate) fn reserved(&self, start: Logical) -> Vec<Range<u64>> {
        let Some(chunk) = self.chunks.get(&start.0) else { return Vec::new() };
        chunk.reserved().into_iter().map(|range| start.0 + range.start..start.0 + range.end).collect()
    }
}

#[cfg(test)]
#[path = "chunk_map_tests.rs"]
mod tests;
