//! Balances of a volume.

use std::path::Path;

use rustix::io::Errno;
use ubtrfs::BalanceProgress;
use ubtrfs_format::items::{BalanceFlags, BalanceItem};
use ubtrfs_server::balance::{CANCEL, PAUSE, Run, progress_in};

use super::on_mount::OnMount;
use crate::failure::{Failure, Result};
use crate::ioctls::about_mount;
use crate::place::Image;
use crate::remedy::only_on_ours;
use crate::report::meanwhile;
use crate::signals::Signals;

/// Controls the balance of a volume.
pub trait Balances {
    /// Starts or resumes a balance, and returns its progress when it is done. Moves at most so many
    /// bytes in a second. Calls `show` with the progress.
    fn balance(
        &self,
        balance: &BalanceItem,
        limit: Option<u64>,
        show: &dyn Fn(BalanceProgress),
    ) -> Result<BalanceProgress>;

    /// Pauses the balance that runs.
    fn pause_balance(&self) -> Result<()>;

    /// Cancels the balance.
    fn cancel_balance(&self) -> Result<()>;

    /// Returns whether a balance runs or is paused, and its progress; `None` if there is none.
    fn balance_status(&self) -> Result<Option<(bool, BalanceProgress)>>;
}

impl Balances for OnMount {
    fn balance(
        &self,
        balance: &BalanceItem,
        limit: Option<u64>,
        show: &dyn Fn(BalanceProgress),
    ) -> Result<BalanceProgress> {
        let mounted = self.opened()?;
        let failed = |errno| about(self.place(), errno);
        if limit.is_some() {
            only_on_ours("--limit", self.place(), mounted.is_of_the_kernel().map_err(failed)?)?;
        }
        let run = Run { balance: *balance, bytes_per_second: limit.unwrap_or(0) };
        let look = || {
            if let Ok((true, progress)) = mounted.balance_progress().map(|answer| progress_in(&answer)) {
                show(progress);
            }
        };
        meanwhile(|| mounted.balance(&run), look).map_err(failed)
    }

    fn pause_balance(&self) -> Result<()> {
        self.opened()?.control_balance(PAUSE).map_err(|errno| about(self.place(), errno))
    }

    fn cancel_balance(&self) -> Result<()> {
        self.opened()?.control_balance(CANCEL).map_err(|errno| about(self.place(), errno))
    }

    fn balance_status(&self) -> Result<Option<(bool, BalanceProgress)>> {
        match self.opened()?.balance_progress() {
            Err(Errno::NOTCONN) => Ok(None),
            Err(errno) => Err(about(self.place(), errno)),
            Ok(answer) => Ok(Some(progress_in(&answer))),
        }
    }
}

impl Balances for Image {
    fn balance(
        &self,
        balance: &BalanceItem,
        limit: Option<u64>,
        show: &dyn Fn(BalanceProgress),
    ) -> Result<BalanceProgress> {
        self.fs.relocator().limit(limit);
        let signals = Signals::listen().ok();
        let goes_on = |progress: &BalanceProgress| {
            show(*progress);
            !signals.as_ref().is_some_and(Signals::has_come)
        };
        let done = if balance.flags & BalanceFlags::RESUME == 0 {
            self.fs.balancer().start(balance, &goes_on)
        } else {
            self.fs.balancer().resume(&goes_on)
        };
        done.map_err(|error| in_image(self, &error))
    }

    fn pause_balance(&self) -> Result<()> {
        self.fs.balancer().pause().map_err(|error| in_image(self, &error))
    }

    fn cancel_balance(&self) -> Result<()> {
        self.fs.balancer().cancel().map_err(|error| in_image(self, &error))
    }

    fn balance_status(&self) -> Result<Option<(bool, BalanceProgress)>> {
        Ok(self.fs.balancer().status().map(|status| (status.running, status.progress)))
    }
}

fn in_image(image: &Image, error: &ubtrfs::Error) -> Failure {
    match error.errno() {
        errno @ (Errno::NOTCONN | Errno::INPROGRESS | Errno::CANCELED | Errno::INVAL | Errno::NOSPC) => {
            about(image.path(), errno)
        }
        _ => image.failed(error),
    }
}

fn about(path: &Path, errno: Errno) -> Failure {
    let what = match errno {
        Errno::NOTCONN => "there is no balance that this could be about",
        Errno::INPROGRESS => {
            "a balance or a change of devices is under way, or a balance is paused ('ubtrfs balance status', 'resume' \
             and 'cancel')"
        }
        Errno::CANCELED => "the balance was paused or cancelled",
        Errno::INVAL => {
            "the volume can't have chunks like that; where a conversion leaves fewer copies of metadata, --force says \
             that this is wanted; where data and metadata share chunks, -d and -m have to be the same"
        }
        Errno::NOSPC => "there was no room to empty some of the chunks",
        Errno::INTR => "a signal has ended the balance",
        Errno::NOTTY => "the volume is not mounted by ubtrfs, or by one that can't balance",
        Errno::PERM => "only root, or the user who has mounted it, may balance a mounted volume",
        errno => return about_mount(path.display(), errno),
    };
    Failure::new(format!("{}: {what}", path.display()))
}
