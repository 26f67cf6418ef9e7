//! Opening, reading and writing of sound and damaged devices.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
mod fixtures;
mod mirrors;
mod opening;
mod parity;
mod partitions;
mod writing;
