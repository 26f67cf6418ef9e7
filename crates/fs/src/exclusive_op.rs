//! Operations that move chunks: balances, and the removal, the resizing and the replacement of
//! devices. A volume runs only one of them at a time.

use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::error::{Errno, Result};

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// Whether the mount is about to end, so that none begins any more.
    is_ending: bool,
}

/// Whether an exclusive operation is running.
#[derive(Debug)]
pub(crate) struct ExclusiveOp {
    state: Mutex<State>,
    /// Signalled when the operation has ended.
    ended: Condvar,
}

impl Default for ExclusiveOp {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::ExclusiveOperation), ended: Condvar::new() }
    }
}

/// A running exclusive operation. It ends when this is dropped.
#[must_use]
pub(crate) struct Running<'a>(&'a ExclusiveOp);

impl ExclusiveOp {
    /// Begins an operation. `EINPROGRESS` if one is running, `ECANCELED` when the mount is about to
    /// end.
    pub(crate) fn begin(&self) -> Result<Running<'_>> {
        let mut state = self.state.lock();
        if state.is_ending {
            return Err(Errno::CANCELED.into());
        }
        if state.is_running {
            return Err(Errno::INPROGRESS.into());
        }
        state.is_running = true;
        Ok(Running(self))
    }

    /// Prevents new operations, and waits for the running one, which has to call
    /// [`Self::is_ending`].
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.is_ending = true;
        while state.is_running {
            self.ended.wait(&mut state);
        }
    }

    /// Whether the running operation has to end soon.
    pub(crate) fn is_ending(&self) -> bool {
        self.state.lock().is_ending
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_running = false;
        self.0.ended.notify_all();
    }
}
