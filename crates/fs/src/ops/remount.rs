//! Remounts between read-only and writable.

use super::operations::Durability;
use crate::error::{Errno, Result};

/// How many commits are tried until there is one after which nothing has changed.
const ATTEMPTS_TO_STOP: u32 = 100;

impl Durability {
    /// Makes all changes durable, and refuses changes from then on until [`Self::write_again`]. It
    /// is for a mount that the kernel has made read-only, so operations that change files must have
    /// ended before.
    pub fn stop_writing(&self) -> Result<()> {
        for _ in 0..ATTEMPTS_TO_STOP {
            self.sync()?;
            if self.info.is_read_only() {
                return Ok(());
            }
            let _turn = self.inactivator.pause();
            self.committer.commit()?;
            self.info.writability.set_read_only();
            if self.info.is_all_committed() {
                return Ok(());
            }
            // An operation is still changing files, or its commit is in progress. Changes that it
            // has acknowledged must not be lost.
            self.info.writability.set_writable()?;
        }
        Err(Errno::BUSY.into())
    }

    /// Ends the effect of [`Self::stop_writing`]. A file system that was opened read-only, or that
    /// turned read-only after an error, stays so.
    pub fn write_again(&self) -> Result<()> {
        self.info.writability.set_writable()?;
        self.inactivator.go_on();
        Ok(())
    }
}
