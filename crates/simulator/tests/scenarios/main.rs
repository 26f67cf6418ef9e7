//! Promises to users about crashes, and about devices that fail or lie, on simulated devices.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod allocated_and_freed_chunks_keep_data;
mod any_failed_read_write_or_flush_is_reported;
mod crashes_keep_committed_files;
mod crashes_keep_promises;
mod data_written_over_data_is_kept;
mod devices_are_lost_by_crashes;
mod failing_devices_leave_the_last_commit;
mod faults_of_commits_and_devices_are_detected;
mod files_that_share_extents;
mod fsyncs_fail_with_the_commit_they_joined;
mod full_volumes_fail_with_enospc;
mod items_fit_their_leaves;
mod kernel_mounts_crash_states;
mod kernel_mounts_full_volumes;
mod kernel_mounts_several_devices;
mod reserved_and_shared_extents_keep_data;
mod short_sequences;
mod small_histories;
mod snapshots_are_whole_or_absent;
mod what_fsync_promises;
mod writers_that_are_taken_over_write_nothing_more;
