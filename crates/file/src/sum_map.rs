//! Checksums of data by address, in memory.

use std::collections::BTreeMap;
use std::ops::Range;

use ubtrfs_format::Logical;

/// Checksums of sectors, in runs of adjacent ones that do not overlap.
#[derive(Clone, Debug)]
pub struct SumMap {
    sector: u64,
    sum_size: usize,
    runs: BTreeMap<u64, Vec<u8>>,
    /// Bytes of all checksums.
    sums: usize,
}

/// The memory of a run without its checksums, in bytes.
const RUN: usize = 64;

impl SumMap {
    /// An empty map, for checksums of `sum_size` bytes and sectors of `sector` bytes.
    pub fn new(sector: u32, sum_size: usize) -> Self {
        Self { sector: u64::from(sector.max(1)), sum_size, runs: BTreeMap::new(), sums: 0 }
    }

    /// Returns whether there are no checksums.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns how many bytes of memory it takes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.sums + self.runs.len() * RUN
    }

    fn insert(&mut self, start: u64, sums: Vec<u8>) {
        self.sums += sums.len();
        if let Some(old) = self.runs.insert(start, sums) {
            self.sums -= old.len();
        }
    }

    /// Returns the runs, by the address of their first sector.
    pub fn iter(&self) -> impl Iterator<Item = (Logical, &[u8])> {
        self.runs.iter().map(|(start, sums)| (Logical(*start), &sums[..]))
    }

    /// Returns how many bytes of data a run covers.
    fn covered(&self, sums: &[u8]) -> u64 {
        (sums.len() / self.sum_size) as u64 * self.sector
    }

    /// Returns the offset of the checksum of the sector at `address`, in a run that begins at
    /// `start`.
    fn position(&self, start: u64, address: u64) -> usize {
        ((address - start) / self.sector) as usize * self.sum_size
    }

    /// Replaces the checksums of the sectors from `start` on.
    pub fn put(&mut self, start: Logical, sums: &[u8]) {
        let (from, to) = (start.0, start.plus(self.covered(sums)).0);
        if sums.is_empty() {
            return;
        }
        self.take(start, to - from);
        self.insert(from, sums.to_vec());
    }

    /// Returns the checksums of `len` bytes of data from `at` on; those of neighbours are in one
    /// run.
    pub fn runs(&self, at: Logical, len: u64) -> Vec<(Logical, Vec<u8>)> {
        let (mut next, mut end_of_run) = (at, None);
        let mut runs: Vec<(Logical, Vec<u8>)> = Vec::new();
        for (len, sums) in self.pieces(at, len) {
            match (sums, runs.last_mut()) {
                (Some(sums), Some((_, run))) if end_of_run == Some(next) => run.extend_from_slice(sums),
                (Some(sums), _) => runs.push((next, sums.to_vec())),
                (None, _) => {}
            }
            next = next.plus(len);
            end_of_run = sums.and(Some(next));
        }
        runs
    }

    /// Removes the checksums of `len` bytes of data from `at` on, and returns them in runs.
    pub fn take(&mut self, at: Logical, len: u64) -> Vec<(Logical, Vec<u8>)> {
        let (from, to) = (at.0, at.plus(len).0);
        let mut taken = Vec::new();
        for start in self.touching(&(from..to)) {
            let Some(old) = self.runs.remove(&start) else { continue };
            self.sums -= old.len();
            let stop = start + self.covered(&old);
            let (first, last) = (start.max(from), stop.min(to));
            taken.push((Logical(first), old[self.position(start, first)..self.position(start, last)].to_vec()));
            if start < from {
                self.insert(start, old[..self.position(start, from)].to_vec());
            }
            if stop > to {
                self.insert(to, old[self.position(start, to)..].to_vec());
            }
        }
        taken
    }

    /// Returns the starts of the runs that overlap a range.
    fn touching(&self, range: &Range<u64>) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let before = self.runs.range(..range.start).next_back();
        let reaches = before.filter(|(at, sums)| **at + self.covered(sums) > range.start).map(|(at, _)| *at);
        reaches.into_iter().chain(self.runs.range(range.clone()).map(|(at, _)| *at)).collect()
    }

    /// Divides `len` bytes of data from `at` on into pieces: bytes of data, and their checksums if
    /// they are known.
    pub fn pieces(&self, at: Logical, len: u64) -> Vec<(u64, Option<&[u8]>)> {
        let (mut next, end) = (at.0, at.plus(len).0);
        let mut pieces = Vec::new();
        for start in self.touching(&(next..end)) {
            let Some(sums) = self.runs.get(&start) else { continue };
            let stop = (start + self.covered(sums)).min(end);
            if start > next {
                pieces.push((start - next, None));
                next = start;
            }
            pieces.push((stop - next, sums.get(self.position(start, next)..self.position(start, stop))));
            next = stop;
        }
        if next < end {
            pieces.push((end - next, None));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECTOR: u64 = 4096;

    #[test]
    fn no_range_has_no_pieces() {
        let mut map = SumMap::new(SECTOR as u32, 4);
        map.put(Logical(37 * SECTOR), &[0; 9 * 4]);
        assert!(map.pieces(Logical(38 * SECTOR), 0).is_empty());
    }

    proptest! {
        #[test]
        fn the_last_checksums_are_found(
            puts in prop::collection::vec((0..60_u64, 1..12_u64, any::<u8>()), 0..20),
            from in 0..60_u64,
            len in 0..20_u64,
            gone in 0..60_u64,
        ) {
            let mut map = SumMap::new(SECTOR as u32, 4);
            let mut model: BTreeMap<u64, [u8; 4]> = BTreeMap::new();
            for (start, len, fill) in puts {
                let sum = |sector: u64| [fill, sector as u8, 0, 1];
                let sums: Vec<u8> = (start..start + len).flat_map(sum).collect();
                map.put(Logical(start * SECTOR), &sums);
                model.extend((start..start + len).map(|sector| (sector, sum(sector))));
            }
            let taken = map.take(Logical(gone * SECTOR), 5 * SECTOR);
            let taken = taken.iter().flat_map(|(at, sums)| (at.0 / SECTOR..).zip(sums.chunks(4)));
            let wanted = (gone..gone + 5).filter_map(|sector| Some((sector, model.remove(&sector)?)));
            prop_assert!(taken.eq(wanted.collect::<Vec<_>>().iter().map(|(sector, sum)| (*sector, &sum[..]))));
            let mut sector = from;
            for (bytes, sums) in map.pieces(Logical(from * SECTOR), len * SECTOR) {
                let count = bytes / SECTOR;
                prop_assert!(count > 0);
                for at in 0..count {
                    let found = sums.map(|sums| &sums[at as usize * 4..][..4]);
                    prop_assert_eq!(found, model.get(&(sector + at)).map(|sum| &sum[..]));
                }
                sector += count;
            }
            prop_assert_eq!(sector, from + len);
            let sums: usize = map.iter().map(|(_, sums)| sums.len()).sum();
            prop_assert_eq!(map.bytes(), sums + map.iter().count() * RUN);
        }
    }
}
