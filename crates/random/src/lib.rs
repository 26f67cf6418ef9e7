//! Random numbers whose whole state is one `u64`, so that one seed determines a whole test.
//!
//! All of the project uses this generator: tests, simulations, the scheduler of threads and the
//! bench. Values that nobody may guess come from the kernel instead.

/// A stream of random numbers, by the algorithm `SplitMix64`. It is fast and good enough for tests,
/// but not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns the stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, or 0 where the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns an index into something of `len` items.
    ///
    /// # Panics
    /// When `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        assert!(len > 0, "an index into nothing");
        self.below(len as u64) as usize
    }

    /// Returns true once in `times` on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one of `items`.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Returns `len` bytes of a kind that matters to a file system: noise, one repeated byte, text
    /// that compresses, or zeros.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        match self.below(8) {
            0 => vec![0; len],
            1 => vec![self.next_u64() as u8; len],
            2 | 3 => {
                let salt = self.next_u64();
                let line = format!("line of text {salt:x} that repeats\n");
                line.bytes().cycle().take(len).collect()
            }
            _ => self.noise(len),
        }
    }

    /// Returns `len` bytes that do not compress.
    pub fn noise(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_and_limits() {
        assert_eq!(Rng::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
        let mut random = Rng::new(1);
        let mut seen = [false; 5];
        (0..1000).for_each(|_| seen[random.below(5) as usize] = true);
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn one_seed_is_one_stream() {
        let take = |seed| {
            let mut random = Rng::new(seed);
            (0..50).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
        assert_eq!(Rng::new(1).noise(13).len(), 13);
    }
}
