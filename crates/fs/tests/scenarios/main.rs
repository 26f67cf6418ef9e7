//! What a user would lose if the engine broke its rules, on volumes in memory and in images.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod beside_a_commit;
mod committed_files_are_lost;
mod common;
mod damaged_volumes_lose_more_than_they_must;
mod failed_operations_cost_later_ones;
mod files_look_smaller_than_they_are;
mod fsync_costs_more_than_what_changed;
mod full_volumes_turn_read_only;
mod hostile_volumes_crash_or_hang;
mod logs_are_replayed_unlike_the_kernel;
mod logs_lose_what_was_fsynced;
mod modes_and_lists_part;
mod mounts_trust_what_is_not_durable;
mod moved_subvolumes_are_lost;
mod numbers_run_out;
mod operations_that_fail_change_nothing;
mod refused_attempts_change_what_follows;
mod statfs_promises_more_than_there_is;
mod threads_that_must_not_wait;
mod unlinked_files_hold_others_up;
mod volumes_fill_up_again_and_again;
mod volumes_made_elsewhere_are_damaged;
