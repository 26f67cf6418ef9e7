//! Which addresses were visited, a bit for each sector.

use std::collections::HashMap;

/// Words of a page.
const WORDS: usize = 512;

/// A set of sectors of the address space. It takes 4 KiB for each 32,768 sectors that hold
/// anything: 32 MiB for each TiB of metadata.
pub(crate) struct Seen {
    sector: u64,
    pages: HashMap<u64, Box<[u64; WORDS]>>,
}

impl Seen {
    /// Returns an empty set of sectors of this many bytes.
    pub(crate) fn new(sector: u32) -> Self {
        Self { sector: u64::from(sector.max(1)), pages: HashMap::new() }
    }

    /// Adds the sector at an address, and returns whether it was new.
    pub(crate) fn insert(&mut self, at: u64) -> bool {
        let number = at / self.sector;
        let (page, bit) = (number / (64 * WORDS as u64), (number % (64 * WORDS as u64)) as usize);
        let word = &mut self.pages.entry(page).or_insert_with(|| Box::new([0; WORDS]))[bit / 64];
        let is_new = *word >> (bit % 64) & 1 == 0;
        *word |= 1 << (bit % 64);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::Seen;

    #[test]
    fn a_sector_is_new_once() {
        let mut seen = Seen::new(4096);
        for at in [0, 4096, 1 << 40, (1 << 40) + 4096, u64::MAX] {
            assert!(seen.insert(at), "{at}");
            assert!(!seen.insert(at), "{at}");
        }
        assert!(!seen.insert(4097));
    }
}
