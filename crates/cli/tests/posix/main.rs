//! POSIX, rule by rule: the same tables are run on a mount of ours and on one of the kernel's
//! btrfs, and each case must end alike, with the same error and the same traces in attributes and
//! times. So no expectation is invented here; where the two may differ, `exceptions` says which
//! cases and why.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod actors;
mod handles;
#[path = "../mounted/harness.rs"]
#[allow(dead_code, reason = "the other tests of mounts use more of it")]
mod harness;
mod hostile;
mod lists;
mod memory;
mod objects;
mod operations;
mod permissions;
mod privileges;
mod properties;
mod run;
mod scale;
mod tables;
mod times;
