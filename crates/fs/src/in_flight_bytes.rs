//! The count of bytes of data in flight to the devices (invariant 26).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bytes of data that has been submitted and is still in memory.
#[derive(Default)]
pub(crate) struct InFlightBytes(Arc<AtomicU64>);

impl InFlightBytes {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `bytes` bytes until the result is dropped.
    pub(crate) fn count(&self, bytes: u64) -> Counted {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Counted { total: self.0.clone(), bytes }
    }
}

/// Bytes that are counted as long as this is held.
pub(crate) struct Counted {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
