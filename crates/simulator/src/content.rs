//! The content of a file of the model: pages that snapshots share in memory, and holes that take
//! none.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};

const PAGE: u64 = 4096;

/// The content of a file.
#[derive(Clone, Default)]
pub struct Content {
    size: u64,
    /// Pages, of which copies share those that are equal: a truncation in steps makes a copy for
    /// each step.
    pages: Arc<RedBlackTreeMapSync<u64, Arc<[u8]>>>,
    /// The bounds of writes, reservations and holes, and former ends, in whole pages.
    bounds: RedBlackTreeSetSync<u64>,
    nodatacow: bool,
}

impl PartialEq for Content {
    /// Returns whether both read the same: zeros are equal to holes.
    fn eq(&self, other: &Self) -> bool {
        let holds_all_of = |one: &Self, other: &Self| {
            other.pages.iter().all(|(number, page)| match one.pages.get(number) {
                Some(mine) => Arc::ptr_eq(mine, page) || mine == page,
                None => page.iter().all(|byte| *byte == 0),
            })
        };
        self.size == other.size
            && self.nodatacow == other.nodatacow
            && (Arc::ptr_eq(&self.pages, &other.pages) || (holds_all_of(self, other) && holds_all_of(other, self)))
    }
}

impl Eq for Content {}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes in {} pages", self.size, self.pages.size())
    }
}

impl Content {
    /// Returns whether writes overwrite data in place (`chattr +C`). Then a crash may leave one
    /// version of a page and another one of the next.
    pub fn is_nodatacow(&self) -> bool {
        self.nodatacow
    }

    /// Makes writes overwrite data in place from now on.
    pub fn set_nodatacow(&mut self) {
        self.nodatacow = true;
    }

    /// Returns whether each page, and the size, is that of one of these versions. A page may also
    /// be that of one of `pages_of`, whose sizes no crash can leave.
    pub fn is_mixed_of(&self, versions: &[&Self], pages_of: &[&Self]) -> bool {
        let page_of = |content: &Self, start: u64| {
            let mut bytes = content.read(start, PAGE.min(self.size - start) as usize);
            bytes.resize(PAGE.min(self.size - start) as usize, 0);
            bytes
        };
        let numbers: BTreeSet<u64> =
            versions.iter().copied().chain([self]).flat_map(|content| content.pages.keys().copied()).collect();
        let mut starts = numbers.into_iter().map(|number| number * PAGE).filter(|start| *start < self.size);
        let is_of_one = |start| {
            let mine = page_of(self, start);
            versions.iter().chain(pages_of).any(|version| page_of(version, start) == mine)
        };
        versions.iter().any(|version| version.size == self.size) && starts.all(is_of_one)
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the sizes that the file may have while it is truncated to `size` extent by extent:
    /// the offsets at which an extent or a hole may begin.
    pub fn ends_beyond(&self, size: u64) -> BTreeSet<u64> {
        /// For a file that was found, not made, it isn't known where holes begin. Near the end, any
        /// page counts.
        const NEAR: u64 = 256;
        let near = (size / PAGE..self.size / PAGE).take(NEAR as usize).map(|number| (number + 1) * PAGE);
        let pages = self.pages.keys().flat_map(|number| [number * PAGE, (number + 1) * PAGE]);
        let ends = near.chain(pages).chain(self.bounds.iter().copied());
        ends.filter(|end| (size + 1..self.size).contains(end)).collect()
    }

    fn note_bounds(&mut self, bounds: [u64; 2]) {
        let bounds = bounds.map(|at| [at - at % PAGE, at.next_multiple_of(PAGE)]);
        for bound in bounds.into_iter().flatten() {
            self.bounds.insert_mut(bound);
        }
    }

    /// Writes, and extends the file if necessary.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.note_bounds([offset, self.size]);
        let pages = Arc::make_mut(&mut self.pages);
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let within = (at % PAGE) as usize;
            let len = (PAGE as usize - within).min(rest.len());
            let mut bytes = match pages.get(&(at / PAGE)) {
                Some(page) if len < PAGE as usize => page.to_vec(),
                _ => vec![0; PAGE as usize],
            };
            bytes[within..within + len].copy_from_slice(&rest[..len]);
            pages.insert_mut(at / PAGE, bytes.into());
            at += len as u64;
            rest = &rest[len..];
        }
        self.size = self.size.max(at);
    }

    /// Truncates or extends the file.
    pub fn resize(&mut self, size: u64) {
        self.note_bounds([size, self.size]);
        if size < self.size {
            self.remove_pages(size.div_ceil(PAGE)..u64::MAX);
            if let Some(page) = self.pages.get(&(size / PAGE)) {
                let mut bytes = page.to_vec();
                bytes[(size % PAGE) as usize..].fill(0);
                Arc::make_mut(&mut self.pages).insert_mut(size / PAGE, bytes.into());
            }
        }
        self.size = size;
    }

    /// Preallocates space for a range: its content stays, but an extent begins and ends there.
    pub fn reserve(&mut self, offset: u64, len: u64) {
        self.note_bounds([offset, offset.saturating_add(len)]);
    }

    /// Makes a range read as zeros; the size stays.
    pub fn punch(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size);
        self.note_bounds([offset.min(end), end]);
        self.remove_pages(offset.div_ceil(PAGE)..end / PAGE);
        let touched = offset / PAGE..end.div_ceil(PAGE).max(offset / PAGE);
        let left: Vec<_> = self.pages.range(touched).map(|(number, page)| (*number, page.clone())).collect();
        for (number, page) in left {
            let start = number * PAGE;
            let mut bytes = page.to_vec();
            let (from, to) = (offset.max(start) - start, end.clamp(start, start + PAGE) - start);
            bytes[from as usize..to.max(from) as usize].fill(0);
            Arc::make_mut(&mut self.pages).insert_mut(number, bytes.into());
        }
    }

    fn remove_pages(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let numbers: Vec<u64> = self.pages.range(range).map(|(number, _)| *number).collect();
        let pages = Arc::make_mut(&mut self.pages);
        for number in numbers {
            pages.remove_mut(&number);
        }
    }

    /// Returns the bytes from `offset` on, up to the end of the file.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let len = (len as u64).min(self.size.saturating_sub(offset)) as usize;
        let mut bytes = vec![0; len];
        let range = offset / PAGE..(offset + len as u64).div_ceil(PAGE);
        for (number, page) in self.pages.range(range) {
            let start = number * PAGE;
            let from = offset.max(start);
            let to = (offset + len as u64).min(start + PAGE);
            bytes[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&page[(from - start) as usize..(to - start) as usize]);
        }
        bytes
    }

    /// Returns the first offset at which two contents of one size differ.
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        let numbers = self.pages.keys().chain(other.pages.keys());
        let differs = |number: &&u64| {
            let (start, len) = (**number * PAGE, PAGE as usize);
            self.read(start, len) != other.read(start, len)
        };
        let start = numbers.filter(differs).min()? * PAGE;
        let (mine, theirs) = (self.read(start, PAGE as usize), other.read(start, PAGE as usize));
        mine.iter().zip(&theirs).position(|(a, b)| a != b).map(|at| start + at as u64)
    }

    /// Returns the ranges within the file that may have something other than zeros.
    pub fn data_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for number in self.pages.keys() {
            let (start, end) = (number * PAGE, ((number + 1) * PAGE).min(self.size));
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn content_does_what_a_plain_vector_does() {
        let mut random = Random::new(1);
        let (mut content, mut plain) = (Content::default(), Vec::new());
        for step in 0..500 {
            if random.one_in(5) {
                let (at, len) = (random.below(30_000), random.below(9000) + 1);
                content.punch(at, len);
                let end = plain.len();
                plain[(at as usize).min(end)..((at + len) as usize).min(end)].fill(0);
            } else if random.one_in(4) {
                let size = random.below(30_000);
                content.resize(size);
                plain.resize(size as usize, 0);
            } else {
                let (at, data) = (random.below(20_000) as usize, Random::noise(step, random.below(9000) as usize));
                content.write(at as u64, &data);
                if !data.is_empty() {
                    plain.resize(plain.len().max(at + data.len()), 0);
                    plain[at..at + data.len()].copy_from_slice(&data);
                }
            }
            assert_eq!(content.size(), plain.len() as u64);
            assert!(content.read(0, usize::MAX) == plain, "step {step}");
            let from = random.below(20_000) as usize;
            assert!(
                content.read(from as u64, 5000)
                    == plain[from.min(plain.len())..(from + 5000).min(plain.len()).max(from.min(plain.len()))]
            );
            let mut covered = vec![false; plain.len()];
            content
                .data_ranges()
                .into_iter()
                .for_each(|range| covered[range.start as usize..range.end as usize].fill(true));
            assert!(plain.iter().zip(covered).all(|(byte, covered)| covered || *byte == 0));
        }
    }
}
