//! Histories of the crash simulator in which the seed also interleaves the threads.

use std::sync::{Arc, Mutex, PoisonError};

use ubtrfs_simulator::overlap::{self, Sharing};
use ubtrfs_threads::scheduler::{SchedulePlan, Summary, run};

use crate::stage::done;

/// Lets two or three threads perform the operations of this seed, on files of their own or on
/// shared files, and examines what crashes may leave.
pub fn run_history(seed: u64) -> Result<Summary, String> {
    let sharing = if seed.is_multiple_of(3) { Sharing::Files } else { Sharing::Nothing };
    let failure = Arc::new(Mutex::new(String::new()));
    let seen = Arc::clone(&failure);
    let result = run(SchedulePlan::new(seed), move || {
        if let Err(failed) = overlap::run(seed, 2 + seed % 2, sharing, 16, 8) {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = failed.to_string();
            done::<(), _>(Err("not as promised"));
        }
    });
    let plan = SchedulePlan::new(seed);
    result.map_err(|what| format!("{plan:?}\n{what}\n{}", failure.lock().unwrap_or_else(PoisonError::into_inner)))
}
