//! POSIX, rule by rule: the same tables are run on a mount of ours and on one of the kernel's
//! btrfs, and each case must have the same result: the same error and the same effect on attributes
//! and times. So no expectation is invented here; where the two may differ, `exceptions` lists the
//! cases and the reasons.

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
