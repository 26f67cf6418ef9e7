//! Helpers that several scenarios share.

pub mod failing;
pub mod files;
pub mod filling;
pub mod fsyncs;
pub mod gated;
pub mod image;
pub mod lowmem;
pub mod memory;
pub mod power;
pub mod script;
pub mod tree;
pub mod volumes;

/// Returns bytes that depend on their offset and on the seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(131).wrapping_add(seed * 977) >> 5) as u8).collect()
}
