//! Seeds of hashes.

/// Returns a number that the maker of an image can't foresee. Under the scheduler it is always the
/// same, since it determines which nodes share a lock, and a seed must make the same run each time.
#[cfg(not(feature = "shuttle"))]
pub fn hash_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u8)
}

/// Returns the fixed number for runs under the scheduler.
#[cfg(feature = "shuttle")]
pub fn hash_seed() -> u64 {
    0x9e37_79b9_7f4a_7c15
}
