//! Checksums of data, from the checksum tree.

use ubtrfs_format::items::CsumItem;
use ubtrfs_format::{ChecksumType, ItemType, Key, Logical, objectid};
use ubtrfs_tree::{Reader, Tree};

use crate::error::{DataError, Result};

/// Lookup of checksums of data.
pub trait Checksums {
    /// Returns the checksums of the sectors from `at` on for `len` bytes (both aligned to sectors),
    /// in order. Fails if one is missing.
    fn lookup(&self, at: Logical, len: u64) -> Result<Vec<u8>>;
}

/// The lookup in a volume that has lost its checksum tree.
#[derive(Clone, Copy, Debug)]
pub struct NoChecksums;

impl Checksums for NoChecksums {
    fn lookup(&self, at: Logical, _len: u64) -> Result<Vec<u8>> {
        Err(DataError::MissingChecksum(at))
    }
}

/// The checksums in a checksum tree.
#[derive(Clone, Debug)]
pub struct ChecksumTree<R> {
    tree: Tree<R>,
    checksum: ChecksumType,
    sector_size: u32,
}

impl<R: Reader + Clone> ChecksumTree<R> {
    /// The checksums in `tree`, of a volume with this algorithm and sector size.
    pub fn new(tree: Tree<R>, checksum: ChecksumType, sector_size: u32) -> Self {
        Self { tree, checksum, sector_size }
    }
}

/// A run of sectors that all have checksums, or all have none: address, bytes, checksums.
pub(crate) type SumRun = (Logical, u64, Option<Vec<u8>>);

impl<R: Reader + Clone> ChecksumTree<R> {
    /// Divides the sectors from `at` on for `len` bytes into runs with and without checksums.
    pub fn runs(&self, at: Logical, len: u64) -> Result<Vec<SumRun>> {
        let mut runs: Vec<SumRun> = Vec::new();
        let (mut next, end) = (at, at.plus(len));
        while next < end {
            match self.lookup(next, end.0 - next.0) {
                Ok(sums) => {
                    runs.push((next, end.0 - next.0, Some(sums)));
                    next = end;
                }
                Err(DataError::MissingChecksum(missing)) => {
                    if next < missing {
                        runs.push((next, missing.0 - next.0, Some(self.lookup(next, missing.0 - next.0)?)));
                    }
                    let items = self.tree.range(csum_key(missing)..=csum_key(Logical(end.0 - 1)));
                    let after = items.take(1).try_fold(end, |_, item| item.map(|item| Logical(item.key.offset)))?;
                    runs.push((missing, after.0 - missing.0, None));
                    next = after;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(runs)
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
        let mut next = at;
        for item in self.tree.range_with_previous(csum_key(at)..=csum_key(Logical(end.0 - 1))) {
            let item = item?;
            if item.key < csum_key(Logical(0)) {
                continue;
            }
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

fn csum_key(at: Logical) -> Key {
    Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at.0)
}

/// Returns, in runs, the checksums that a checksum tree has for the sectors of `len` bytes from
/// `at` on.
pub fn sum_runs<R: Reader + Clone>(
    tree: &Tree<R>,
    at: Logical,
    len: u64,
    checksum: ChecksumType,
    sector_size: u32,
) -> Result<Vec<(Logical, Vec<u8>)>> {
    let (sector, size, end) = (u64::from(sector_size), checksum.size(), at.plus(len));
    let key = |at: Logical| Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, at.0);
    let mut runs = Vec::new();
    for item in tree.range_with_previous(key(at)..=key(Logical(end.0.saturating_sub(1)))) {
        let item = item?;
        if item.key < key(Logical(0)) {
            continue;
        }
        let start = Logical(item.key.offset);
        let run = CsumItem::parse(start, &item, checksum, sector_size).map_err(|source| DataError::Item {
            what: "checksum item",
            offset: start.0,
            source,
        })?;
        let (from, to) = (start.max(at), run.end().min(end));
        if from < to {
            let position = |address: Logical| ((address.0 - start.0) / sector) as usize * size;
            let part = item.get(position(from)..position(to)).ok_or(DataError::MissingChecksum(from))?;
            runs.push((from, part.to_vec()));
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use ubtrfs_tree::testing::tree_of;

    use super::*;

    const SECTOR: u64 = 4096;

    /// Sectors `first..end` with a checksum of the sector's number, in one item.
    fn item(first: u64, end: u64) -> (Key, Vec<u8>) {
        let sums = (first..end).flat_map(|sector| (sector as u32).to_le_bytes()).collect();
        (Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, first * SECTOR), sums)
    }

    #[test]
    fn ranges_are_split_into_runs_with_and_without_sums() {
        let tree = ChecksumTree::new(tree_of(&[item(2, 4), item(4, 5), item(8, 20)]), ChecksumType::Crc32c, 4096);
        let runs = |first: u64, end: u64| -> Vec<(u64, u64, Option<usize>)> {
            let runs = tree.runs(Logical(first * SECTOR), (end - first) * SECTOR).unwrap();
            runs.into_iter()
                .map(|(at, len, sums)| (at.0 / SECTOR, len / SECTOR, sums.map(|sums| sums.len() / 4)))
                .collect()
        };
        assert_eq!(runs(0, 10), [(0, 2, None), (2, 3, Some(3)), (5, 3, None), (8, 2, Some(2))]);
        assert_eq!(runs(3, 5), [(3, 2, Some(2))]);
        assert_eq!(runs(5, 7), [(5, 2, None)]);
        assert_eq!(runs(19, 30), [(19, 1, Some(1)), (20, 10, None)]);
        assert_eq!(runs(7, 7), []);
    }

    fn lookup(items: &[(Key, Vec<u8>)], first: u64, end: u64) -> std::result::Result<Vec<u32>, String> {
        let tree = ChecksumTree::new(tree_of(items), ChecksumType::Crc32c, 4096);
        match tree.lookup(Logical(first * SECTOR), (end - first) * SECTOR) {
            Ok(sums) => Ok(sums.chunks(4).map(|sum| u32::from_le_bytes(sum.try_into().unwrap())).collect()),
            Err(DataError::MissingChecksum(at)) => Err(format!("missing {}", at.0 / SECTOR)),
            Err(other) => Err(other.to_string()),
        }
    }

    #[test]
    fn sums_are_gathered_across_items() {
        let items = [item(10, 20), item(20, 21), item(21, 40)];
        for (first, end) in [(10, 40), (12, 13), (19, 22), (39, 40), (20, 21), (15, 15)] {
            assert_eq!(lookup(&items, first, end), Ok((first as u32..end as u32).collect()), "{first}..{end}");
        }
    }

    #[test]
    fn the_first_missing_sector_is_named() {
        let items = [item(10, 20), item(22, 30)];
        assert_eq!(lookup(&items, 5, 12), Err("missing 5".to_owned()));
        assert_eq!(lookup(&items, 15, 25), Err("missing 20".to_owned()));
        assert_eq!(lookup(&items, 21, 22), Err("missing 21".to_owned()));
        assert_eq!(lookup(&items, 29, 31), Err("missing 30".to_owned()));
        assert_eq!(lookup(&[item(10, 11)], 40, 41), Err("missing 40".to_owned()));
    }

    #[test]
    fn malformed_items_are_errors() {
        let broken = (Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, 10 * SECTOR), vec![0; 7]);
        assert!(lookup(&[broken], 10, 11).unwrap_err().starts_with("checksum item"));
    }
}
