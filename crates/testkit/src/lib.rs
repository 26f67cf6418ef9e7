//! The test house of ubtrfs: everything a test needs around the product, and nothing of the
//! product.
//!
//! * [`fixture`]: volumes that a kernel made, with manifests of what a reader must see.
//! * [`subject`]: something that mounts an image, the kernel's btrfs or `ubtrfs mount`.
//! * [`mod@walk`] and [`diff`](mod@diff): a path-by-path picture of a directory tree, and the
//!   difference between two.
//! * [`workload`]: seeded random operations with a [`model`] of what must be there afterwards;
//!   [`chaos`]: several threads on the same names.
//! * [`programs`]: real programs at work in a mounted directory; [`load`]: some that work until it
//!   dies.
//! * [`promises`]: what must be there after a crash.
//! * [`kernel`], [`kmsg`], [`progs`]: loop devices and kernel mounts, the kernel's log,
//!   btrfs-progs.
//! * [`seeds`]: which seeds a test runs.
//! * [`ordinary_user`]: what a user does who is not root.
//! * [`need`]: what this machine offers, and how a test says that it cannot run.
//!
//! A helper that cannot do its work panics, since that is how a test fails; where a test wants to
//! see a failure, the helper returns it. Whatever is mounted or attached goes away when its guard
//! is dropped, on a panic too; what a killed test left behind is swept by the next one
//! ([`scratch`]).

#![allow(clippy::missing_panics_doc, reason = "helpers panic by design: that fails the test")]

pub mod chaos;
pub mod content;
pub mod diff;
pub mod fixture;
pub mod kernel;
pub mod kmsg;
pub mod load;
pub mod mapped;
pub mod model;
pub mod names;
pub mod need;
pub mod ordinary_user;
pub mod programs;
pub mod progs;
pub mod promises;
pub mod rng;
pub mod run;
pub mod scratch;
pub mod seeds;
pub mod subject;
pub mod walk;
pub mod workload;
