//! A fast hash of numbers from an image, with a random seed, so that nobody can make an image whose
//! numbers collide.

use std::hash::{BuildHasher, Hasher};

use ubtrfs_threads::hash_seed;

/// The hash of one table.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeededHash(u64);

impl SeededHash {
    /// A hash with a new seed.
    pub fn new() -> Self {
        Self(hash_seed())
    }
}

impl BuildHasher for SeededHash {
    type Hasher = FoldedMultiply;

    fn build_hasher(&self) -> FoldedMultiply {
        FoldedMultiply(self.0)
    }
}

/// The state of the hash of one value.
#[derive(Debug)]
pub struct FoldedMultiply(u64);

impl Hasher for FoldedMultiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (product as u64) ^ ((product >> 64) as u64).rotate_left(32);
    }
}
