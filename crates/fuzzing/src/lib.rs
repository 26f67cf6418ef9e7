//! The fuzz targets, as plain functions: `fuzz/` calls them with inputs that libFuzzer generates,
//! and `tests/replay.rs` with the corpora and mutations of them, on stable Rust.
//!
//! A target is a function from bytes to nothing that must not panic, hang or grow without bounds.
//! To add one: write it here, list it in [`TARGETS`], add `fuzz/fuzz_targets/NAME.rs`, its
//! `[[bin]]` in `fuzz/Cargo.toml` and `fuzz/corpus/NAME/`.

#![allow(clippy::missing_panics_doc, reason = "a panic is how a target reports what it found")]

mod dump;
mod import;
mod log_replay;
mod nbd;
mod node_and_items;
mod partitions;
mod superblock;
mod whole_image;

pub use dump::{dump, inputs as dump_inputs};
pub use import::{import, inputs as import_inputs};
pub use log_replay::{inputs as log_replay_inputs, log_replay, use_log};
pub use nbd::{inputs as nbd_inputs, nbd};
pub use node_and_items::node_and_items;
pub use partitions::partitions;
pub use superblock::superblock;
pub use whole_image::{Reached, inputs as whole_image_inputs, use_image, whole_image};

/// A target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its corpus.
    pub name: &'static str,
    /// The function that it calls with an input.
    pub run: fn(&[u8]),
    /// How many mutations of its corpus the tests try, which takes some seconds.
    pub mutations: usize,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "superblock", run: superblock, mutations: 5000 },
    Target { name: "node_and_items", run: node_and_items, mutations: 5000 },
    Target { name: "partitions", run: partitions, mutations: 5000 },
    Target { name: "nbd", run: nbd, mutations: 20_000 },
    Target { name: "whole_image", run: whole_image, mutations: 600 },
    Target { name: "log_replay", run: log_replay, mutations: 600 },
    Target { name: "import", run: import, mutations: 300 },
    Target { name: "dump", run: dump, mutations: 600 },
];
