//! Tests of dumps: of volumes of the kernel, beside btrfs-image, of damaged volumes, and of hostile
//! dumps.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod btrfs_image;
mod common;
mod damaged;
mod hostile;
mod round_trips;
mod sanitised;
