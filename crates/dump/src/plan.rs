//! What a dump is of: its superblock, devices and chunks, which must be known before anything is
//! restored.

use ubtrfs_format::items::{BlockGroupFlags, DevItem, sys_chunks};
use ubtrfs_format::{Logical, SUPERBLOCK_SIZE, Superblock};

use crate::chunks::{Chunks, Expected, Geometry};
use crate::cluster::{MAX_ITEM, Place, SUPERBLOCK_AT};
use crate::error::{Error, Result};
use crate::reader::{Reader, Source};
use crate::report::Problems;

/// The most items with system chunks that are noted: the chunk tree of any volume fits into far
/// fewer.
const MAX_SYSTEM_ITEMS: usize = 1 << 20;
/// How many items before an address may have it, since items may overlap in a damaged dump.
const MAX_LOOKED_AT: usize = 16;

/// What a dump is of.
pub struct RestorePlan {
    /// The superblock.
    pub superblock: Superblock,
    pub(crate) superblock_bytes: Vec<u8>,
    pub(crate) chunks: Chunks,
    /// What is damaged.
    pub problems: Problems,
}

impl RestorePlan {
    /// Reads a dump's superblock, and its chunk tree as far as it has that.
    pub fn read(source: &dyn Source) -> Result<Self> {
        let reader = Reader::new(source)?;
        let first = reader.cluster(0)?.ok_or(Error::NotDump)?;
        let place = first.places.first().ok_or(Error::NotDump)?;
        let superblock_bytes = reader.content(place)?;
        if place.logical.0 != SUPERBLOCK_AT.0 || superblock_bytes.len() != SUPERBLOCK_SIZE {
            return Err(Error::Cluster { cluster: 0, what: "no superblock as its first item" });
        }
        let superblock = Superblock::parse(&superblock_bytes, SUPERBLOCK_AT).map_err(Error::Superblock)?;
        // Chunks that can't be read are a problem, which is noted below.
        let system = sys_chunks(&superblock.sys_chunk_array).unwrap_or_default();
        let is_system = |place: &Place| {
            let (from, to) = (place.logical.0, place.logical.0.saturating_add(MAX_ITEM as u64));
            system.iter().any(|(key, chunk)| {
                chunk.flags.contains(BlockGroupFlags::SYSTEM)
                    && from < key.offset.saturating_add(chunk.length)
                    && to > key.offset
            })
        };
        let mut items = Vec::new();
        let mut at = 0;
        while let Some(cluster) = reader.cluster(at)? {
            let skip = usize::from(at == 0);
            items.extend(cluster.places.iter().skip(skip).filter(|place| is_system(place)));
            if items.len() > MAX_SYSTEM_ITEMS {
                return Err(Error::Cluster { cluster: at, what: "too many blocks of the chunk tree" });
            }
            at = cluster.next;
        }
        items.sort_by_key(|place: &Place| place.logical);
        let mut problems = Problems::default();
        let mut items = Items { reader: &reader, places: items, last: None };
        let geometry = Geometry::of(&superblock);
        let chunks = Chunks::read(&superblock, &mut problems, |_, expected| {
            let mut block = items.block(expected, geometry.node_size)?;
            geometry.mend_checksum(expected.at, &mut block);
            geometry.check(&block, expected).is_ok().then_some(block)
        });
        Ok(Self { superblock, superblock_bytes, chunks, problems })
    }

    /// Returns the devices of the volume, in the order of their numbers.
    pub fn devices(&self) -> Vec<DevItem> {
        self.chunks.devices.values().copied().collect()
    }
}

/// The items of a dump that may have blocks of the chunk tree.
struct Items<'a> {
    reader: &'a Reader<'a>,
    places: Vec<Place>,
    last: Option<(Place, Vec<u8>)>,
}

impl Items<'_> {
    fn block(&mut self, expected: &Expected, len: u32) -> Option<Vec<u8>> {
        let end = self.places.partition_point(|place| place.logical <= expected.at);
        (0..end).rev().take(MAX_LOOKED_AT).find_map(|index| self.part(index, expected.at, len as usize))
    }

    fn part(&mut self, index: usize, at: Logical, len: usize) -> Option<Vec<u8>> {
        let place = *self.places.get(index)?;
        if self.last.as_ref().is_none_or(|(last, _)| *last != place) {
            self.last = Some((place, self.reader.content(&place).ok()?));
        }
        let (_, content) = self.last.as_ref()?;
        let from = usize::try_from(at.0 - place.logical.0).ok()?;
        content.get(from..from.checked_add(len)?).map(<[u8]>::to_vec)
    }
}
