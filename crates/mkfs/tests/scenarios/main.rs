//! Volumes that we make, compared with those of mkfs.btrfs.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod against_btrfs;
mod options;
