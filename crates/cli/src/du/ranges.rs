//! A set of addresses.

/// Ranges of bytes, which may overlap.
pub struct Ranges {
    all: Vec<(u64, u64)>,
    /// The number of ranges at which overlapping ones are merged.
    most: usize,
}

impl Ranges {
    const FEW: usize = 1 << 16;

    /// Returns an empty set.
    pub fn new() -> Self {
        Self { all: Vec::new(), most: Self::FEW }
    }

    /// Adds a range of `len` bytes.
    pub fn add(&mut self, start: u64, len: u64) {
        if self.all.len() >= self.most {
            self.join();
            self.most = Self::FEW.max(2 * self.all.len());
        }
        self.all.push((start, start.saturating_add(len)));
    }

    /// Returns how many bytes are in at least one of the ranges.
    pub fn bytes(&mut self) -> u64 {
        self.join();
        self.all.iter().map(|(start, end)| end - start).sum()
    }

    fn join(&mut self) {
        self.all.sort_unstable();
        self.all.dedup_by(|next, kept| {
            let joins = next.0 <= kept.1;
            if joins {
                kept.1 = kept.1.max(next.1);
            }
            joins
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_several_ranges_count_once() {
        let mut ranges = Ranges::new();
        for (start, len) in [(100, 50), (0, 10), (120, 10), (140, 20), (10, 5), (500, 1)] {
            ranges.add(start, len);
        }
        assert_eq!(ranges.bytes(), 15 + 60 + 1);
    }

    #[test]
    fn many_ranges_are_joined_meanwhile() {
        let mut ranges = Ranges::new();
        ranges.most = 3;
        (0..100).rev().for_each(|index| ranges.add(index * 10, 15));
        assert_eq!(ranges.bytes(), 99 * 10 + 15);
        let mut ranges = Ranges::new();
        (0..200_000).for_each(|index| ranges.add(index % 7 * 10, 5));
        assert!(ranges.all.len() <= Ranges::FEW + 1);
        assert_eq!(ranges.bytes(), 35);
    }
}
