//! Seeds of hashes.

/// A number that nobody who makes an image can foresee. Under the scheduler it is always the same:
/// which nodes share a lock depends on it, and a seed must make the same run each time.
#[cfg(not(feature = "shuttle"))]
pub fn hash_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u8)
}

/// The same, under the scheduler.
#[cfg(feature = "shuttle")]
pub fn hash_seed() -> u64 {
    0x9e37_79b9_7f4a_7c15
}
