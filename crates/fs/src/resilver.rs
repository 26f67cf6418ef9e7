//! Resilvers a lagging device if it is known which commit it has: compares only what was written
//! after that commit (invariant 34), and data without checksums, which may have been overwritten at
//! any time.
//!
//! Later tree blocks have later generations, and so have the leaves of the checksum tree that
//! contain the checksums of later data. Subtrees that are older are not read.

use std::ops::RangeInclusive;

use ubtrfs_file::{ChecksumTree, Checksums as _, DataError};
use ubtrfs_format::items::{CsumItem, ExtentFlags, ExtentItem};
use ubtrfs_format::{DeviceId, Generation, ItemType, Key, Logical, Resilvered, TreeId, objectid};
use ubtrfs_volume::{ParityScrub, ScrubScope, Scrubbed, Volume};

use crate::allocated::{AT_ONCE, MAX_BYTES};
use crate::committed::Committed;
use crate::error::Result;
use crate::scrub_progress::ScrubProgress;

/// The most items that a step reads, and the most extents that it compares (`EXTENTS`).
const ITEMS: usize = 8192;
const EXTENTS: usize = 256;
/// An address behind all others.
const ALL: Logical = Logical(u64::MAX);

/// What is compared; one phase follows the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Nodes,
    DataWithSums,
    DataWithoutSums,
}

/// The resilvering of a device.
pub(crate) struct Resilver {
    device: DeviceId,
    /// The commit that the device has.
    has: Generation,
    /// The addresses before which the device had all nodes, and all data with checksums, when this
    /// began.
    before: (Logical, Logical),
    phase: Phase,
    /// The key at which the phase continues.
    next: Key,
    pub(crate) progress: ScrubProgress,
}

/// A part of a step.
struct Step<'a> {
    volume: &'a Volume,
    committed: &'a Committed,
    items: usize,
    extents: usize,
    bytes: u64,
}

impl Resilver {
    /// Starts for a device that has everything of the commit `has`, and has been resilvered up to
    /// `before`.
    pub(crate) fn new(device: DeviceId, has: Generation, before: Option<Resilvered>) -> Self {
        let before = before.map_or((Logical(0), Logical(0)), |it| (it.nodes, it.data));
        Self {
            device,
            has,
            before,
            phase: Phase::Nodes,
            next: Key::new(before.0.0, ItemType(0), 0),
            progress: ScrubProgress::default(),
        }
    }

    /// Returns how far the device has been resilvered. `None` if something could not be rewritten,
    /// which may succeed another time.
    ///
    /// For data without checksums nothing tells whether it has been overwritten since, so all of it
    /// is compared again in the next mount.
    pub(crate) fn has_come_to(&self) -> Option<Resilvered> {
        let (nodes, data) = match self.phase {
            Phase::Nodes => (Logical(self.next.objectid), self.before.1),
            Phase::DataWithSums => (ALL, Logical(self.next.offset).max(self.before.1)),
            Phase::DataWithoutSums => (ALL, ALL),
        };
        let is_right = self.progress.uncorrectable() == 0;
        is_right.then_some(Resilvered { devid: self.device, has: self.has, nodes, data })
    }

    /// Compares a little more of the content of `committed`, which meanwhile holds back what later
    /// commits free. Returns whether there may be more.
    pub(crate) fn step(&mut self, volume: &Volume, committed: &Committed) -> Result<bool> {
        let mut step = Step { volume, committed, items: 0, extents: 0, bytes: 0 };
        let next = match self.phase {
            Phase::Nodes => self.nodes(&mut step)?,
            Phase::DataWithSums => self.data_with_sums(&mut step)?,
            Phase::DataWithoutSums => self.data_without_sums(&mut step)?,
        };
        let phase = match (next, self.phase) {
            (Some(_), phase) => phase,
            (None, Phase::Nodes) => Phase::DataWithSums,
            (None, Phase::DataWithSums) => Phase::DataWithoutSums,
            (None, Phase::DataWithoutSums) => return Ok(false),
        };
        let first = match phase {
            Phase::DataWithSums => Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, self.before.1.0),
            Phase::Nodes | Phase::DataWithoutSums => Key::MIN,
        };
        (self.phase, self.next) = (phase, next.unwrap_or(first));
        Ok(true)
    }

    /// Returns the scope that compares and rewrites this device.
    fn scope(&self) -> ScrubScope {
        ScrubScope { device: Some(self.device), read_only: false }
    }

    fn rest(&self) -> RangeInclusive<Key> {
        self.next..=Key::MAX
    }

    fn nodes(&mut self, step: &mut Step<'_>) -> Result<Option<Key>> {
        for item in step.committed.tree(TreeId::EXTENT)?.written_since(self.has.next(), &self.rest()) {
            let item = item?;
            let key = item.key;
            if !matches!(key.item_type, ItemType::METADATA_ITEM | ItemType::EXTENT_ITEM) {
                continue;
            }
            if step.takes_no_more() {
                return Ok(Some(key));
            }
            let extent = ExtentItem::parse(&key, &item)?;
            if extent.generation <= self.has || extent.flags & ExtentFlags::TREE_BLOCK == 0 {
                continue;
            }
            let level = extent.level(&key);
            let mut parity = ParityScrub::default();
            let at = Logical(key.objectid);
            let found = step.volume.scrub().node(at, Some(level), extent.generation, self.scope(), &mut parity)?;
            step.took(found);
            self.progress.trees = self.progress.trees.plus(found);
            self.progress.tree_extents += 1;
        }
        Ok(None)
    }

    fn data_with_sums(&mut self, step: &mut Step<'_>) -> Result<Option<Key>> {
        let superblock = &step.committed.superblock;
        for item in step.committed.tree(TreeId::CSUM)?.written_since(self.has.next(), &self.rest()) {
            let item = item?;
            if item.key.objectid != objectid::EXTENT_CSUM || item.key.item_type != ItemType::EXTENT_CSUM {
                continue;
            }
            if step.takes_no_more() {
                return Ok(Some(item.key));
            }
            let start = Logical(item.key.offset);
            let run = CsumItem::parse(start, &item, superblock.checksum, superblock.sector_size)?;
            self.compare(step, start, run.end().0.saturating_sub(start.0), Some(&item))?;
            self.progress.data_extents += 1;
        }
        Ok(None)
    }

    fn data_without_sums(&mut self, step: &mut Step<'_>) -> Result<Option<Key>> {
        let superblock = &step.committed.superblock;
        let sector = u64::from(superblock.sector_size);
        let sums = ChecksumTree::new(step.committed.tree(TreeId::CSUM)?, superblock.checksum, superblock.sector_size);
        for item in step.committed.tree(TreeId::EXTENT)?.range(self.rest()) {
            let item = item?;
            let key = item.key;
            if key.item_type != ItemType::EXTENT_ITEM {
                continue;
            }
            if step.takes_no_more() {
                return Ok(Some(key));
            }
            if ExtentItem::parse(&key, &item)?.flags & ExtentFlags::DATA == 0 {
                continue;
            }
            // All data of one extent has checksums, or none has, except for preallocated parts,
            // which have no content.
            let at = Logical(key.objectid);
            match sums.lookup(at, sector) {
                Ok(_) => continue,
                Err(DataError::MissingChecksum(_)) => {}
                Err(error) => return Err(error.into()),
            }
            for (at, len, sums) in sums.runs(at, key.offset)? {
                if sums.is_none() {
                    self.compare(step, at, len, None)?;
                    self.progress.no_checksum += len / sector;
                }
            }
            self.progress.data_extents += 1;
        }
        Ok(None)
    }

    fn compare(&mut self, step: &mut Step<'_>, at: Logical, len: u64, sums: Option<&[u8]>) -> Result<()> {
        let superblock = &step.committed.superblock;
        let of_bytes = |bytes: u64| (bytes / u64::from(superblock.sector_size)) as usize * superblock.checksum.size();
        let mut done = 0;
        while done < len {
            let piece = AT_ONCE.min(len - done);
            let sums = sums.and_then(|sums| sums.get(of_bytes(done)..of_bytes(done + piece)));
            let mut parity = ParityScrub::default();
            let found = step.volume.scrub().data(at.plus(done), piece, sums, self.scope(), &mut parity)?;
            step.took(found);
            self.progress.data = self.progress.data.plus(found);
            done += piece;
        }
        Ok(())
    }
}

impl Step<'_> {
    /// Whether the step ends before another item; otherwise counts that item.
    fn takes_no_more(&mut self) -> bool {
        self.items += 1;
        self.items > ITEMS || self.extents >= EXTENTS || self.bytes >= MAX_BYTES
    }

    fn took(&mut self, found: Scrubbed) {
        self.extents += 1;
        self.bytes += found.bytes;
    }
}
