//! The map of chunks, which readers, writers and commits share.

use std::ops::{Deref, Range};

use ubtrfs_format::items::ChunkItem;
use ubtrfs_format::{DeviceId, Logical, Physical};
use ubtrfs_threads::Rank;

use crate::chunk_map::{ChunkMap, MappedRange, Row};
use crate::counted_lock::{CountedRwLock, LockCounters};
use crate::error::{Error, Result};

/// The chunks of a volume by logical address. All methods may be called by many threads at once.
#[derive(Debug)]
pub struct SharedChunkMap {
    map: CountedRwLock<ChunkMap>,
}

impl SharedChunkMap {
    pub(crate) fn new(map: ChunkMap) -> Self {
        Self { map: CountedRwLock::new(Rank::ChunkMap, map) }
    }

    /// Adds a chunk, so that its addresses can be written and read. `device_bytes` returns the size
    /// of a device of the volume.
    pub(crate) fn insert(
        &self,
        start: Logical,
        chunk: ChunkItem,
        sector_size: u32,
        device_bytes: impl Fn(DeviceId) -> Option<u64>,
    ) -> Result<()> {
        self.map.write().insert(start, chunk, sector_size, device_bytes)
    }

    /// Removes the chunk that starts at `start`. Fails with `Unmapped` if there is none.
    pub fn remove(&self, start: Logical) -> Result<()> {
        if self.map.write().remove(start) { Ok(()) } else { Err(Error::Unmapped { at: start, len: 0 }) }
    }

    /// Returns the chunk that starts at `start`.
    pub fn get(&self, start: Logical) -> Option<ChunkItem> {
        self.map.read().get(start).cloned()
    }

    /// Returns all chunks, by address.
    pub fn all(&self) -> Vec<(Logical, ChunkItem)> {
        self.map.read().iter().map(|(start, item)| (start, item.clone())).collect()
    }

    /// Returns the logical ranges of the chunk at `start` that must stay unused, since copies of
    /// the superblock overlap them. They are sorted and disjoint.
    pub fn superblock_ranges(&self, start: Logical) -> Vec<Range<Logical>> {
        let ranges = self.map.read().reserved(start);
        ranges.into_iter().map(|range| Logical(range.start)..Logical(range.end)).collect()
    }

    /// Returns how often the lock of the map was taken.
    pub fn lock_counters(&self) -> LockCounters {
        self.map.counters()
    }

    /// Returns where all copies of a range are, chunk by chunk.
    pub(crate) fn pieces(&self, at: Logical, len: u64) -> Result<Vec<MappedRange>> {
        self.map.read().pieces(at, len)
    }

    /// Returns the map, which does not change until the result is dropped.
    pub(crate) fn read(&self) -> impl Deref<Target = ChunkMap> {
        self.map.read()
    }

    /// Returns the row of stripes with parity that has this address.
    pub(crate) fn row(&self, at: Logical) -> Option<Row> {
        self.map.read().row(at)
    }

    /// Returns the logical address of a place on a device.
    pub(crate) fn logical_of(&self, devid: DeviceId, at: Physical) -> Option<Logical> {
        self.map.read().logical_of(devid, at)
    }

    /// Returns whether a chunk has a part of this range of a device.
    pub(crate) fn has_stripe_in(&self, devid: DeviceId, range: Range<u64>) -> bool {
        self.map.read().has_stripe_in(devid, range)
    }

    /// Returns whether a chunk has a stripe on a device.
    pub(crate) fn uses(&self, devid: DeviceId) -> bool {
        self.map.read().iter().any(|(_, chunk)| chunk.stripes.iter().any(|it| it.devid == devid))
    }

    /// Returns whether the devices that are not lost have the data of all chunks.
    pub(crate) fn survives(&self, lost: impl Fn(DeviceId) -> bool) -> bool {
        self.map.read().survives(lost)
    }
}
