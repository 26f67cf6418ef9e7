//! Tests of POSIX, rule by rule: the same tables are run on a mount of ubtrfs and on one of the
//! kernel's btrfs, and each case must have the same result, which is the same error and the same
//! effect on attributes and times. So the tests contain no expectations of their own. `exceptions`
//! lists the cases in which the two may differ, with the reasons.

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
