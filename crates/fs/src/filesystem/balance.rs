//! Balances, and block groups that are emptied.

use ubtrfs_format::Logical;
use ubtrfs_format::items::BalanceItem;

use super::Filesystem;
use crate::error::Result;
use crate::relocation::{BalanceProgress, BalanceStatus, Emptied};

impl Filesystem {
    /// Moves all that is in the block group at `start` elsewhere, in steps, each of which is
    /// durable; `go_on` is asked before each. Then the block group is gone. Returns whether that is
    /// so.
    pub fn empty_block_group(&self, start: Logical, go_on: &dyn Fn() -> bool) -> Result<bool> {
        Ok(self.balancer.relocator().empty_one(start, go_on)? == Emptied::All)
    }

    /// Balances, and returns when it is done. `EINPROGRESS` if there is one already, `EINVAL` for
    /// arguments that make no sense, `ECANCELED` if it was paused or cancelled meanwhile, `ENOSPC`
    /// if there was no room to empty some chunks. `goes_on` is asked again and again; when it says
    /// no the balance is cancelled. Returns how far it came.
    pub fn start_balance(
        &self,
        balance: &BalanceItem,
        goes_on: &dyn Fn(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        self.balancer.start(balance, goes_on)
    }

    /// Goes on with a balance that was paused, also by the end of a mount. `ENOTCONN` if there is
    /// none.
    pub fn resume_balance(&self, goes_on: &dyn Fn(&BalanceProgress) -> bool) -> Result<BalanceProgress> {
        self.balancer.resume(goes_on)
    }

    /// Pauses the balance under way: it stays noted in the volume. `ENOTCONN` if none is.
    pub fn pause_balance(&self) -> Result<()> {
        self.balancer.pause()
    }

    /// Ends the balance that is under way or paused. `ENOTCONN` if there is none.
    pub fn cancel_balance(&self) -> Result<()> {
        self.balancer.cancel()
    }

    /// The balance that is under way or paused.
    pub fn balance_status(&self) -> Option<BalanceStatus> {
        self.balancer.status()
    }
}
