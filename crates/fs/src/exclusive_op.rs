//! Operations that change where chunks are, of which a volume has one at a time: balances, and the
//! removal, the resizing and the replacement of devices.

use ubtrfs_threads::{Condvar, Mutex, Rank};

use crate::error::{Errno, Result};

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// The mount ends: nothing begins any more.
    is_ending: bool,
}

/// Whether one is under way.
#[derive(Debug)]
pub(crate) struct ExclusiveOp {
    state: Mutex<State>,
    /// Signalled when one has ended.
    ended: Condvar,
}

impl Default for ExclusiveOp {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::ExclusiveOperation), ended: Condvar::new() }
    }
}

/// One that is under way, until this is dropped.
#[must_use]
pub(crate) struct Running<'a>(&'a ExclusiveOp);

impl ExclusiveOp {
    /// Begins one. `EINPROGRESS` if there is one, `ECANCELED` when the mount ends.
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

    /// Lets none begin any more, and waits for the one that is under way, which has to ask.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.is_ending = true;
        while state.is_running {
            self.ended.wait(&mut state);
        }
    }

    /// Whether the one that is under way is to end soon.
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
