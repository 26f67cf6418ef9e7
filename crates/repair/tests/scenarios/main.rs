//! Scenarios of repairs, with the kernel and `btrfs check` as the other side.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod changed_items;
mod crashes;
mod destroyed_blocks;
mod harness;
mod lost_items;
