//! The data of all files that is in flight to the devices (invariant 26). It stays in memory until
//! a thread has waited for it: the next commit at the latest, or a writer if there is too much of
//! it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use ubtrfs_threads::{Mutex, Rank};

use crate::in_flight_bytes::{Counted, InFlightBytes};
use crate::inode::{Inode, InodeId, InodeState};

/// Data in flight to the devices.
pub(crate) struct InFlight {
    bytes: InFlightBytes,
    files: Mutex<Files>,
}

impl Default for InFlight {
    fn default() -> Self {
        Self { bytes: InFlightBytes::default(), files: Mutex::with_default(Rank::FilesInFlight) }
    }
}

/// The files with data in flight, those with the oldest data first.
#[derive(Default)]
struct Files {
    queue: VecDeque<Arc<Inode>>,
    queued: HashSet<InodeId>,
}

impl Files {
    fn push(&mut self, inode: &Arc<Inode>) {
        if self.queued.insert(inode.id) {
            self.queue.push_back(inode.clone());
        }
    }

    fn pop(&mut self) -> Option<Arc<Inode>> {
        let inode = self.queue.pop_front()?;
        self.queued.remove(&inode.id);
        Some(inode)
    }
}

impl InFlight {
    /// Returns the bytes of data that has been submitted and is still in memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Counts `bytes` bytes until the result is dropped.
    pub(crate) fn count(&self, bytes: u64) -> Counted {
        self.bytes.count(bytes)
    }

    /// Notes that a file, whose lock the caller holds, has data in flight if it has any.
    pub(crate) fn note(&self, inode: &Arc<Inode>, state: &InodeState) {
        if !state.ordered.is_empty() {
            self.files.lock().push(inode);
        }
    }

    /// Removes and returns the file with the oldest data in flight.
    pub(super) fn oldest(&self) -> Option<Arc<Inode>> {
        self.files.lock().pop()
    }

    /// Removes files whose data a commit has waited for.
    pub(crate) fn forget_ended(&self) {
        let files = std::mem::take(&mut *self.files.lock());
        for inode in files.queue {
            if inode.try_read().is_none_or(|state| !state.ordered.is_empty()) {
                self.files.lock().push(&inode);
            }
        }
    }
}
