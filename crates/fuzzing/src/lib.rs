//! What the fuzz targets do, as plain functions: `fuzz/` calls them with inputs that libFuzzer makes up, and
//! `tests/replay.rs` with the corpora and mutations of them, on stable Rust.
//!
//! A target is a function from bytes to nothing that must not panic, hang or grow without bounds. To add one: write it
//! here, list it in [`TARGETS`], add `fuzz/fuzz_targets/NAME.rs`, its `[[bin]]` in `fuzz/Cargo.toml` and
//! `fuzz/corpus/NAME/`.

#![allow(clippy::missing_panics_doc, reason = "a panic is how a target tells what it found")]

mod node_and_items;
mod superblock;

pub use node_and_items::node_and_items;
pub use superblock::superblock;

/// A target's function.
pub type Target = fn(&[u8]);

/// All targets, by the name of their corpus.
pub const TARGETS: &[(&str, Target)] = &[("superblock", superblock), ("node_and_items", node_and_items)];
