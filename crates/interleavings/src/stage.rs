//! What the threads of a run share: the mounted volume, its devices, and the files.

use std::sync::{Arc, Mutex, PoisonError};

use ubtrfs::{Errno, Error, Filesystem, InodeId};
use ubtrfs_threads::atomic::{AtomicBool, AtomicUsize, Ordering};
use ubtrfs_volume::{FaultyDevice, RecordingDevice};

use crate::files::File;

/// What the threads of a run share.
pub(crate) struct Stage {
    pub(crate) fs: Arc<Filesystem>,
    /// The first device, which records the timeline of all devices.
    pub(crate) recording: Arc<RecordingDevice>,
    /// All devices, also those that the volume does not have.
    pub(crate) devices: Vec<Arc<RecordingDevice>>,
    /// The directory of the writers' files.
    pub(crate) dir: InodeId,
    pub(crate) files: Vec<(InodeId, File)>,
    /// The device fails at some time.
    pub(crate) fails: bool,
    /// The volume is full at times.
    pub(crate) is_tight: bool,
    /// A device that fails at times, while each of the others has a copy of everything.
    pub(crate) glitching: Option<Arc<FaultyDevice>>,
    /// The mount may be read-only at times, until all threads have ended.
    pub(crate) is_remounted: AtomicBool,
    /// The number of writers, and of jobs that count as their work, that have not ended. Other jobs
    /// go on as long as there are any.
    pub(crate) working: AtomicUsize,
    /// What each thread did, for reports.
    pub(crate) notes: Notes,
}

/// The operations of a run, in their order.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    pub(crate) fn add(&self, note: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }

    /// Returns the last `count` notes.
    pub(crate) fn last(&self, count: usize) -> String {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes[notes.len().saturating_sub(count)..].join("\n  ")
    }
}

impl Stage {
    /// Returns the number of events of the device so far.
    pub(crate) fn events(&self) -> usize {
        self.recording.len()
    }

    /// Returns whether writers still work, so that jobs go on.
    pub(crate) fn goes_on(&self) -> bool {
        self.working.load(Ordering::Acquire) > 0
    }

    /// Returns the value of an operation that succeeded, and `None` if it failed for an allowed
    /// reason.
    ///
    /// # Panics
    ///
    /// If it failed for another reason.
    pub(crate) fn succeeds<T>(&self, what: &str, result: Result<T, Error>, allowed: &[Errno]) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let errno = error.errno();
        self.notes.add(format!("{what}: {errno:?}"));
        let has_reason = allowed.contains(&errno)
            || (self.fails && matches!(errno, Errno::IO | Errno::ROFS))
            || (self.is_tight && errno == Errno::NOSPC)
            || (errno == Errno::ROFS && self.is_remounted.load(Ordering::Acquire));
        let is_aborted = self.fs.abort_reason();
        assert!(has_reason, "{what} failed: {error:?} ({errno:?}); read-only: {is_aborted:?}");
        assert!(
            self.fails || is_aborted.is_none(),
            "{what} failed: {error:?}; read-only without a reason: {is_aborted:?}"
        );
        None
    }
}

/// Returns the value of a result that must not be an error.
pub(crate) fn done<T, E: std::fmt::Debug>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error:?}"),
    }
}
