//! Whether a mount may be changed. It may not if it began read-only, was remounted read-only, or
//! had an error after which nothing more is written.
//!
//! For invariant 13, [`Writability::abort`] turns the file system read-only for good.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_threads::atomic::AtomicBool;
use ubtrfs_threads::{Mutex, OnceLock, Rank};

use crate::error::{Errno, Error, Result};
use crate::last_errors::LastErrors;

/// The action when the file system turns read-only after an error.
pub(crate) type OnAbort = Box<dyn Fn() + Send + Sync>;

/// Whether a mount may be changed, and if not, why.
pub(crate) struct Writability {
    /// Whether changes are refused: from the beginning, after an error, or after a remount to
    /// read-only.
    read_only: AtomicBool,
    /// Whether the volume was opened read-only. Then its space is not known.
    began_read_only: bool,
    aborted: Mutex<Option<Arc<Error>>>,
    on_abort: OnceLock<OnAbort>,
    last_errors: LastErrors,
}

impl Writability {
    /// Creates the state of a mount that is opened read-only, or that refuses changes until it is
    /// remounted read-write (`begins_at_rest`).
    pub(crate) fn new(opened_read_only: bool, begins_at_rest: bool) -> Self {
        Self {
            read_only: AtomicBool::new(opened_read_only || begins_at_rest),
            began_read_only: opened_read_only,
            aborted: Mutex::with_default(Rank::Aborted),
            on_abort: OnceLock::new(),
            last_errors: LastErrors::default(),
        }
    }

    /// Whether changes are refused.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Whether the volume was opened read-only.
    pub(crate) fn began_read_only(&self) -> bool {
        self.began_read_only
    }

    /// Whether changes are refused until the end of the mount: it began read-only, or had an error.
    pub(crate) fn is_read_only_for_good(&self) -> bool {
        self.is_read_only() && (self.began_read_only || self.aborted().is_some())
    }

    /// Fails if changes are refused.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_read_only() {
            // By invariant 13 nothing changes after a failure, and each attempt gets the reason.
            return Err(self.aborted().map_or(Errno::ROFS.into(), Error::Aborted));
        }
        Ok(())
    }

    /// Turns the file system read-only for good, and calls `stop`, which ends all writing,
    /// meanwhile. Logs the reason once. Returns the error for all operations that it affects. If
    /// the error only follows from an earlier one, the result refers to that one.
    pub(crate) fn abort(&self, error: Error, stop: impl FnOnce()) -> Arc<Error> {
        let mut aborted = self.aborted.lock();
        let action = if aborted.is_none() { self.on_abort.get() } else { None };
        let error = match (error, &*aborted) {
            (Error::Shared(error), _) => error,
            (error, Some(first)) if error.is_consequence() => Arc::new(Error::NotDurable(first.clone())),
            (error, _) => {
                self.last_errors.note(&error);
                Arc::new(error)
            }
        };
        // A flush that fails turns the volume read-only before it calls this. An operation that
        // meets that state in between does not know the cause.
        if aborted.as_ref().is_none_or(|first| first.is_consequence() && !error.is_consequence()) {
            tracing::error!("turning read-only: {}", error.chain());
            *aborted = Some(error.clone());
        }
        self.read_only.store(true, Ordering::Release);
        stop();
        drop(aborted);
        if let Some(action) = action {
            action();
        }
        error
    }

    /// Sets the action that is called, once, when the file system turns read-only after an error;
    /// calls it at once if that has happened. The action must not take a lock of the engine nor
    /// wait.
    pub(crate) fn on_abort(&self, action: OnAbort) {
        let aborted = self.aborted.lock();
        let _ = self.on_abort.set(action);
        let action = if aborted.is_some() { self.on_abort.get() } else { None };
        drop(aborted);
        if let Some(action) = action {
            action();
        }
    }

    /// Returns the error by which the file system turned read-only, if it did.
    pub(crate) fn aborted(&self) -> Option<Arc<Error>> {
        self.aborted.lock().clone()
    }

    /// Returns why the file system turned read-only, if it did.
    pub(crate) fn abort_reason(&self) -> Option<String> {
        self.aborted().map(|error| error.chain())
    }

    /// Notes an error after which the file system goes on, and logs it.
    pub(crate) fn note_error(&self, error: &Error) {
        tracing::warn!("{}", error.chain());
        self.last_errors.note(error);
    }

    /// Returns the last errors.
    pub(crate) fn last_errors(&self) -> &LastErrors {
        &self.last_errors
    }

    /// Refuses changes until the next remount.
    pub(crate) fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// Allows changes again after [`Self::set_read_only`]. A file system that was opened read-only,
    /// or that turned read-only after an error, stays so.
    pub(crate) fn set_writable(&self) -> Result<()> {
        let aborted = self.aborted.lock();
        match &*aborted {
            Some(error) => Err(Error::Aborted(error.clone())),
            None if self.began_read_only => Err(Errno::ROFS.into()),
            None => {
                self.read_only.store(false, Ordering::Release);
                Ok(())
            }
        }
    }
}
