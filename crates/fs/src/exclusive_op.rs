//! Operations that change where chunks are, of which a volume has one at a time: balances, and the
//! removal, the resizing and the replacement of devices.

use parking_lot::Mutex;

use crate::error::{Errno, Result};

/// Whether one is under way.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveOp(Mutex<bool>);

/// One that is under way, until this is dropped.
#[must_use]
pub(crate) struct Running<'a>(&'a ExclusiveOp);

impl ExclusiveOp {
    /// Begins one. `EINPROGRESS` if there is one.
    pub(crate) fn begin(&self) -> Result<Running<'_>> {
        let mut is_running = self.0.lock();
        if *is_running {
            return Err(Errno::INPROGRESS.into());
        }
        *is_running = true;
        Ok(Running(self))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.0.lock() = false;
    }
}
