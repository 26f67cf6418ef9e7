//! Checksums of data, from the checksum tree.

use ubtrfs_format::items::CsumItem;
use ubtrfs_format::{ChecksumType, ItemType, Key, Logical, objectid};
use ubtrfs_tree::{Reader, Tree};

use super::error::{DataError, Result};

/// Where checksums of data come from.
pub(crate) trait Checksums {
    /// The checksums of the sectors from `at` on for `len` bytes (both aligned to sectors), one after the other.
    /// An error if one is missing.
    fn lookup(&self, at: Logical, len: u64) -> Result<Vec<u8>>;
}

/// The checksums in a checksum tree.
#[derive(Clone, Debug)]
pub(crate) struct ChecksumTree<R> {
    tree: Tree<R>,
    checksum: ChecksumType,
    sector_size: u32,
}

impl<R: Reader + Clone> ChecksumTree<R> {
    /// Those in `tree`, of a volume with this algorithm and sector size.
    pub(crate) fn new(tree: Tree<R>, checksum: ChecksumType, sector_size: u32) -> Self {
        Self { tree, checksum, sector_size }
    }
}

impl<R: Reader + Clone> Checksums for ChecksumTree<R> {
    fn lookup(&self, at: Logical, len: u64) -> Result<Vec<u8>> {
        let sector = u64::from(self.sector_size);
        let size = self.checksum.size();
        let end = at.plus(len);
        let mut sums = Vec::with_capacity(((end.0 - at.0) / sector) as usize * size);
        if end == at {
            return Ok(sums);
        }
        let key = |at: Logical| Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at.0);
        let covering = self.tree.last_at_or_before(&key(at))?;
        let first = match covering.map(|item| item.key) {
            Some(found) if found >= key(Logical(0)) => found,
            _ => key(at),
        };
        let mut next = at;
        for item in self.tree.range(first..=key(Logical(end.0 - 1))) {
            let item = item?;
            let start = Logical(item.key.offset);
            let run = CsumItem::parse(start, &item, self.checksum, self.sector_size)
                .map_err(|source| DataError::Item { what: "checksum item", offset: start.0, source })?;
            if start > next {
                break;
            }
            let stop = run.end().min(end);
            if stop <= next {
                continue;
            }
            let sectors = |until: Logical| ((until.0 - start.0) / sector) as usize * size;
            let part = item.get(sectors(next)..sectors(stop)).ok_or(DataError::MissingChecksum(next))?;
            sums.extend_from_slice(part);
            next = stop;
            if next >= end {
                return Ok(sums);
            }
        }
        Err(DataError::MissingChecksum(next))
    }
}
