//! Whole programs and the kernel's btrfs on the same volumes, in turn and at the same time.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod an_export_has_one_writer;
mod back_and_forth;
mod balances_survive_kills;
mod device_images;
mod devices_are_added_and_replaced;
mod devices_are_found;
mod devices_are_removed_and_resized;
mod devices_change_beside_programs;
mod du_shows_what_files_share;
mod fixtures_through_the_mount;
mod halves_of_a_mirror;
mod harness_detects_faults;
mod harness_keeps_promises;
mod harness_runs_real_programs;
mod kernels_volume;
mod kills_keep_what_was_fsynced;
mod limits_are_the_kernels;
mod logs_keep_what_kernels_made;
mod mirrors_on_two_servers;
mod mirrors_take_turns;
mod named_devices_may_be_away;
mod nbd_servers;
mod network_volumes;
mod ordinary_users;
mod orphans_back_and_forth;
mod parity_replaces_devices;
mod real_programs;
mod same_calls_on_both;
mod scrub_mends_devices;
mod scrubs_and_checks_say_what_they_found;
mod servers_that_are_away;
mod several_devices;
mod snapshots_back_and_forth;
mod subvolume_rules;
mod volumes_made_from_seeds;
