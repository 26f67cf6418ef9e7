//! Tests of `ubtrfs mount` and the commands on mounts, with the running kernel. `mounted_ring` runs
//! the same tests over rings.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod answers_as_the_kernels;
mod as_people_mount;
mod block_devices;
mod caching;
mod compression;
mod converted;
mod counts_of_devices;
mod crowds;
mod defragmentation;
mod deleted_subvolumes;
mod diff;
mod documents;
mod endings;
mod extents;
mod find_new;
mod first_hour;
mod fs_verity;
mod harness;
mod held_directories;
mod hostile_servers;
mod ioctls_through_mounts;
mod json_outputs;
mod killed_servers;
mod lifecycle;
mod listings;
mod logs;
mod merge;
mod mount_options;
mod partitions;
mod posix;
mod programs_for_snapshots;
mod programs_of_32_bits;
mod read_only_subvolumes;
mod remounts;
mod resets;
mod resource_limits;
mod second_mounts;
mod shell;
mod snapshots_keep_pages;
mod space;
mod subvolume_parity;
mod subvolumes;
mod syncs;
mod trouble;
mod users_mount;
