//! The tests of `mounted`, over rings.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

#[path = "../mounted/caching.rs"]
mod caching;
#[path = "../mounted/crowds.rs"]
mod crowds;
#[path = "../mounted/diff.rs"]
mod diff;
#[path = "../mounted/endings.rs"]
mod endings;
#[path = "../mounted/extents.rs"]
mod extents;
#[path = "../mounted/harness.rs"]
mod harness;
#[path = "../mounted/killed_servers.rs"]
mod killed_servers;
#[path = "../mounted/lifecycle.rs"]
mod lifecycle;
#[path = "../mounted/listings.rs"]
mod listings;
#[path = "../mounted/merge.rs"]
mod merge;
#[path = "../mounted/posix.rs"]
mod posix;
#[path = "../mounted/second_mounts.rs"]
mod second_mounts;
#[path = "../mounted/space.rs"]
mod space;
#[path = "../mounted/subvolumes.rs"]
mod subvolumes;
#[path = "../mounted/syncs.rs"]
mod syncs;
#[path = "../mounted/trouble.rs"]
mod trouble;
#[path = "../mounted/users_mount.rs"]
mod users_mount;
