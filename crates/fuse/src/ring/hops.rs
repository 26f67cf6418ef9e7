//! Counts how often requests went from one thread to another, which costs a wakeup or a wait each
//! time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How the requests of a mount's rings were served since the mount began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hops {
    /// Requests that the ring's thread served at once. (Another thread answers a few of them:
    /// fsyncs that wait for a write of the log.)
    pub at_once: u64,
    /// Requests for whose answers the ring's thread read files.
    pub reading: u64,
    /// Requests that the ring's thread tried, and passed to a thread that may block.
    pub postponed: u64,
    /// Requests that the ring's thread passed on without trying.
    pub not_tried: u64,
    /// Answers that another thread gave while the ring's thread was awake.
    pub answered_elsewhere: u64,
    /// Answers that another thread gave and for which it woke the ring's thread.
    pub woken: u64,
}

/// The counters of one ring.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub at_once: AtomicU64,
    pub reading: AtomicU64,
    pub postponed: AtomicU64,
    pub not_tried: AtomicU64,
    pub answered_elsewhere: AtomicU64,
    pub woken: AtomicU64,
}

/// Adds one to a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// A handle to the counters of all rings of a mount.
#[derive(Clone, Default)]
pub struct HopCounters {
    of_rings: Vec<Arc<Counts>>,
}

impl HopCounters {
    pub(super) fn new(of_rings: Vec<Arc<Counts>>) -> Self {
        Self { of_rings }
    }

    /// The sums over all rings; zero if there are none.
    pub fn read(&self) -> Hops {
        self.of_rings.iter().fold(Hops::default(), |sum, of| Hops {
            at_once: sum.at_once + of.at_once.load(Relaxed),
            reading: sum.reading + of.reading.load(Relaxed),
            postponed: sum.postponed + of.postponed.load(Relaxed),
            not_tried: sum.not_tried + of.not_tried.load(Relaxed),
            answered_elsewhere: sum.answered_elsewhere + of.answered_elsewhere.load(Relaxed),
            woken: sum.woken + of.woken.load(Relaxed),
        })
    }
}

impl std::fmt::Debug for HopCounters {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.read().fmt(formatter)
    }
}
