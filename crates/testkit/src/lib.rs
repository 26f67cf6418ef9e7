//! The test kit of ubtrfs: everything that tests need around the product, and nothing of the
//! product.
//!
//! * [`fixture`]: volumes that a kernel made, with manifests of what a reader must see.
//! * [`subject`]: something that mounts an image, the kernel's btrfs or `ubtrfs mount`.
//! * [`mod@walk`] and [`diff`](mod@diff): a path-by-path description of a directory tree, and the
//!   difference between two.
//! * [`workload`]: seeded random operations with a [`model`] of what must be there afterwards;
//!   [`chaos`]: several threads on the same names.
//! * [`differential`]: the same system calls on both, and where their answers differ.
//! * [`programs`]: real programs that work in a mounted directory; [`load`]: programs that work
//!   until their file system dies.
//! * [`promises`]: what must be there after a crash.
//! * [`kernel`], [`kmsg`], [`progs`]: loop devices and kernel mounts, the kernel's log,
//!   btrfs-progs.
//! * [`nbd_server`], [`lossy_server`]: servers of exports, and one that loses what was not flushed.
//! * [`json_schema`]: whether JSON has the form that a schema describes.
//! * [`seeds`]: which seeds a test runs.
//! * [`ordinary_user`]: actions of a user who is not root.
//! * [`mod@threads_of`]: what the threads of a process wait for.
//! * [`need`]: what this machine offers, and how a test says that it cannot run.
//!
//! A helper that cannot do its work panics, which fails the test; a helper whose failure a test
//! needs to see returns it. Mounts and attached devices are removed when their guards are dropped,
//! also on a panic; the next test removes what a killed test left behind ([`scratch`]).

#![allow(clippy::missing_panics_doc, reason = "helpers panic by design: that fails the test")]

pub mod chaos;
pub mod content;
pub mod diff;
pub mod differential;
pub mod dumps;
pub mod fixture;
pub mod json_schema;
pub mod kernel;
pub mod kmsg;
pub mod load;
pub mod lossy_server;
pub mod mapped;
pub mod model;
pub mod names;
pub mod nbd_server;
pub mod need;
pub mod ordinary_user;
pub mod partitions;
pub mod programs;
pub mod progs;
pub mod promises;
pub mod run;
pub mod scratch;
pub mod seeds;
pub mod slow_link;
pub mod subject;
pub mod threads_of;
pub mod walk;
pub mod workload;
