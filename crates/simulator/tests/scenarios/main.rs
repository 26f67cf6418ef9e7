//! What a user would lose in crashes and by devices that fail or lie, on devices of the simulator.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod chunks_come_and_go;
mod crashes_break_promises;
mod crashes_lose_committed_files;
mod data_written_over_data_is_lost;
mod devices_fail;
mod every_read_write_and_flush_fails;
mod files_that_share_extents;
mod fsyncs_beside_commits_that_fail;
mod items_outgrow_their_leaves;
mod kernel_mounts_crash_states;
mod kernel_mounts_full_volumes;
mod lies_are_noticed;
mod reserved_and_shared_extents_lose_data;
mod short_sequences;
mod small_histories;
mod volumes_fill_up;
mod what_fsync_promises;
