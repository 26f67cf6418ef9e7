//! Random choices, all from one seed.

use ubtrfs_random::Rng;

/// Random choices.
#[derive(Clone, Debug)]
pub struct Random(Rng);

impl Random {
    /// Makes the choices of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `limit`, or 0 if that is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// Returns true once in `times` on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one of some items; `None` if there is none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len() as u64) as usize)
    }

    /// Returns one of some items, of which there is at least one.
    pub fn one_of<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[self.below(N as u64) as usize]
    }

    /// Returns data for a file, determined by one number: noise, or data that compresses, though no
    /// two sectors of it are the same.
    pub fn data(seed: u64, len: usize) -> Vec<u8> {
        /// Bytes of noise, and of repetitions of the last one.
        const NOISE: usize = 40;
        const PLAIN: usize = 984;
        let mut data = Self::noise(seed, len);
        if !seed.is_multiple_of(3) {
            data.chunks_mut(NOISE + PLAIN).for_each(|part| {
                let (noise, plain) = part.split_at_mut(part.len().min(NOISE));
                plain.fill(noise.last().copied().unwrap_or_default());
            });
        }
        data
    }

    /// Returns bytes of noise, determined by one number, that do not repeat.
    pub fn noise(seed: u64, len: usize) -> Vec<u8> {
        let mut numbers = Rng::new(seed);
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&numbers.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}
