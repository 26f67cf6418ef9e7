//! A small random number generator whose whole state is one `u64`, so that one seed names one test
//! run.

/// A deterministic stream of numbers (the splitmix64 sequence).
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The stream that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// An index into something of `len` items; `len` must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        assert!(len > 0, "an index into nothing");
        self.below(len as u64) as usize
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// `len` bytes of a kind that matters to a file system: noise, one repeated byte, text that
    /// compresses, or zeros.
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

    /// `len` bytes that do not compress.
    pub fn noise(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next_u64().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_is_one_stream() {
        let take = |seed| {
            let mut rng = Rng::new(seed);
            (0..50).map(|_| rng.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
        assert_eq!(Rng::new(1).noise(13).len(), 13);
    }
}
