//! What a user would lose if the engine broke its rules, on volumes in memory and in images.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod balances_convert_and_go_on;
mod block_groups_are_emptied;
mod changes_are_exact;
mod changes_of_hostile_volumes_are_bounded;
mod committed_files_are_kept;
mod common;
mod compressed_files_are_read_by_the_kernel;
mod concurrent_commits_keep_promises;
mod damaged_volumes_read_as_far_as_they_can;
mod deferred_reads_show_what_is_there;
mod devices_are_replaced;
mod devices_that_fail_leave_subvolumes_whole;
mod devices_that_others_replace_may_fail;
mod errors_keep_their_causes;
mod examples_do_what_they_say;
mod exhausted_numbers_are_reported;
mod failed_operations_cost_later_ones_nothing;
mod files_show_the_space_they_take;
mod fsync_costs_what_changed;
mod fsyncs_are_led_by_two_threads;
mod full_volumes_stay_writable;
mod hostile_volumes_neither_crash_nor_hang;
mod logs_are_replayed_as_by_the_kernel;
mod logs_keep_what_was_fsynced;
mod merges_are_reported_and_can_be_stopped;
mod merges_take_what_one_side_changed;
mod modes_and_acls_change_together;
mod mounts_build_on_durable_state_only;
mod moved_subvolumes_are_kept;
mod nonblocking_calls_do_not_block;
mod operations_that_fail_change_nothing;
mod paths_work_as_on_the_host;
mod reads_are_recorded;
mod refused_attempts_change_nothing_that_follows;
mod requests_share_few_locks;
mod resets_put_a_snapshot_in_place;
mod snapshots_hold_what_was_there;
mod statfs_promises_what_can_be_written;
mod subvolumes_change_beside_everything_else;
mod subvolumes_pass_between_us_and_the_kernel;
mod unlinked_files_delay_no_other_operation;
mod volumes_can_be_filled_again_and_again;
mod volumes_get_more_devices;
mod volumes_made_elsewhere_stay_intact;
