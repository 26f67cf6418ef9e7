//! The last errors of a mount, for its administrator.

use std::collections::VecDeque;
use std::time::SystemTime;

use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_volume::{DeviceFault, FaultRecord};

use crate::error::{Error, Step};

/// Number of different errors that are remembered.
const MAX: usize = 8;

/// An error that a mount had.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorRecord {
    /// When it occurred last.
    pub time: SystemTime,
    /// How often it occurred while it was remembered.
    pub count: u64,
    /// The steps in which it occurred, from the operation to its part.
    pub steps: Vec<Step>,
    /// What happened, with all its causes.
    pub cause: String,
    /// Where a device failed, if one did.
    pub device: Option<DeviceFault>,
}

/// The last errors of a mount.
#[derive(Debug)]
pub(crate) struct LastErrors {
    state: Mutex<State>,
}

impl Default for LastErrors {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::LastErrors) }
    }
}

#[derive(Debug, Default)]
struct State {
    total: u64,
    last: VecDeque<ErrorRecord>,
}

impl LastErrors {
    /// Records an error. If the same error is remembered, its count increases, and it becomes the
    /// newest.
    pub(crate) fn note(&self, error: &Error) {
        let (steps, cause) = error.steps();
        let record = ErrorRecord {
            time: ubtrfs_threads::time::wall_clock(),
            count: 1,
            steps,
            cause: cause.chain(),
            device: error.device_fault(),
        };
        let mut state = self.state.lock();
        state.total += 1;
        let is_same =
            |old: &ErrorRecord| (&old.steps, &old.cause, old.device) == (&record.steps, &record.cause, record.device);
        let before = state.last.iter().position(is_same).and_then(|index| state.last.remove(index));
        if before.is_none() && state.last.len() == MAX {
            state.last.pop_front();
        }
        let count = before.map_or(1, |before| before.count + 1);
        state.last.push_back(ErrorRecord { count, ..record });
    }

    /// Returns the number of errors, and the last of them, the newest at the end.
    pub(crate) fn get(&self) -> (u64, Vec<ErrorRecord>) {
        let state = self.state.lock();
        (state.total, state.last.iter().cloned().collect())
    }
}

/// Merges the errors of operations with the faults of devices. An operation gets no error for some
/// faults, and for others it gets the error of a tree block that can't be read.
pub(crate) fn with_faults(
    (mut total, mut last): (u64, Vec<ErrorRecord>),
    (faults, records): (u64, Vec<FaultRecord>),
) -> (u64, Vec<ErrorRecord>) {
    total += faults;
    for FaultRecord { time, count, cause, device } in records {
        if let Some(known) = last.iter_mut().find(|known| known.cause == cause) {
            // It is the same event, and the operation that met it tells more.
            known.device = known.device.or(Some(device));
            total -= count;
        } else {
            last.push(ErrorRecord { time, count, steps: Vec::new(), cause, device: Some(device) });
        }
    }
    last.sort_by_key(|record| record.time);
    (total, last.split_off(last.len().saturating_sub(MAX)))
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::{DeviceId, Generation, Logical, Physical};

    use super::*;

    fn failed_write(at: u64) -> Error {
        let error = ubtrfs_volume::Error::Write {
            devid: DeviceId(3),
            at: Physical(at),
            logical: Some(Logical(at + 7)),
            len: 4096,
            source: std::io::Error::from_raw_os_error(5),
        };
        Error::from(error).at(Step::WriteTreeBlocks).at(Step::Commit(Generation(9)))
    }

    #[test]
    fn the_last_errors_are_kept_and_the_same_ones_are_counted() {
        let errors = LastErrors::default();
        for at in [1, 2, 1] {
            errors.note(&failed_write(at));
        }
        let (total, last) = errors.get();
        assert_eq!((total, last.iter().map(|error| error.count).collect::<Vec<_>>()), (3, vec![1, 2]));
        let newest = last.last().unwrap();
        assert_eq!(newest.steps, [Step::Commit(Generation(9)), Step::WriteTreeBlocks]);
        assert_eq!(newest.cause, "device 3: writing 4096 bytes at 1 (logical 8): Input/output error");
        let (physical, logical) = (Some(Physical(1)), Some(Logical(8)));
        assert_eq!(newest.device, Some(DeviceFault { devid: DeviceId(3), physical, logical, len: 4096 }));
        for at in 10..30 {
            errors.note(&failed_write(at));
        }
        let (total, last) = errors.get();
        assert_eq!((total, last.len()), (23, MAX));
        assert_eq!(last.last().and_then(|error| error.device?.physical), Some(Physical(29)));
    }
}
