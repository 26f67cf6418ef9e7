//! Devices opened, read and written, sound and damaged.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
mod fixtures;
mod mirrors;
mod opening;
mod parity;
mod partitions;
mod writing;
