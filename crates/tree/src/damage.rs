//! Notes about what a reader of a damaged volume skips.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ubtrfs_threads::{Mutex, Rank};

/// Notes what could not be read and was skipped. A reader of a file or a directory compares the
/// [count](Self::count) before and after to find out whether a part of it is missing.
#[derive(Debug)]
pub struct Damage {
    count: AtomicU64,
    unverified: AtomicU64,
    sentences: Mutex<BTreeSet<String>>,
}

impl Default for Damage {
    fn default() -> Self {
        Self { count: AtomicU64::new(0), unverified: AtomicU64::new(0), sentences: Mutex::with_default(Rank::Damage) }
    }
}

impl Damage {
    /// How many different messages are kept.
    const KEPT: usize = 1000;

    /// Notes that a node was skipped. The same one may be noted repeatedly.
    pub fn note(&self, what: &dyn std::error::Error) {
        self.count.fetch_add(1, Relaxed);
        let sentence = ubtrfs_errors::sentence(what);
        let mut sentences = self.sentences.lock();
        if sentences.len() < Self::KEPT {
            sentences.insert(sentence);
        }
    }

    /// Returns how often something was skipped.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Notes that data was read whose checksum is lost.
    pub fn note_unverified(&self) {
        self.unverified.fetch_add(1, Relaxed);
    }

    /// Returns how often data was read whose checksum is lost.
    pub fn unverified(&self) -> u64 {
        self.unverified.load(Relaxed)
    }

    /// Returns messages about what was skipped, each once, at most a thousand.
    pub fn sentences(&self) -> Vec<String> {
        self.sentences.lock().iter().cloned().collect()
    }
}
