//! Tests the crate with the kernel: a filesystem in memory is mounted and used. `mounted_ring` does
//! the same over rings.

#![allow(missing_docs, clippy::unwrap_used, clippy::wildcard_imports)]

mod facts;
mod files;
mod harness;
mod listings;
mod memfs;
mod mounting;
mod syncs;
mod trial;
