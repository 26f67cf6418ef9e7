//! Ends a mount with a process, as that of `ubtrfs shell`, even if the process is killed and can't
//! unmount it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use ubtrfs_fuse::mount::{Mount, Unmount};

use crate::failure::{Failure, Result};

/// The interval of the attempts to unmount while the mount is in use.
const AGAIN: Duration = Duration::from_secs(1);

/// Watches the process. Dropping this waits for an attempt to unmount that is in progress.
pub struct Tied {
    unmounting: Arc<Mutex<()>>,
}

impl Tied {
    /// Unmounts once the process has ended and nobody uses the mount, and removes its directory.
    pub fn new(process: u32, mount: &Arc<Mount>) -> Result<Self> {
        let failed = |error: io::Error| Failure::about("the process that the mount is tied to", &error);
        let process = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(|| failed(Errno::SRCH.into()))?;
        let process = match pidfd_open(process, PidfdFlags::empty()) {
            Ok(process) => Some(process),
            // The process has ended already.
            Err(Errno::SRCH) => None,
            Err(error) => return Err(failed(error.into())),
        };
        let unmounting = Arc::default();
        let (mount, lock) = (Arc::clone(mount), Arc::clone(&unmounting));
        let watch = move || {
            if process.is_none_or(|process| has_ended(&process)) {
                end(&mount, &lock);
            }
        };
        thread::Builder::new().name("tied".into()).spawn(watch).map_err(failed)?;
        Ok(Self { unmounting })
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        drop(self.unmounting.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Waits for the end of a process. Returns false if that is impossible.
fn has_ended(process: &OwnedFd) -> bool {
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], None) {
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(error) => {
                tracing::warn!(%error, "the process that the mount is tied to can't be waited for");
                return false;
            }
        }
    }
}

fn end(mount: &Mount, unmounting: &Mutex<()>) {
    loop {
        // The lock keeps the server from ending between the unmount and the removal of the
        // directory.
        let busy = unmounting.lock().unwrap_or_else(PoisonError::into_inner);
        if mount.unmount(Unmount::Now).is_ok() || !mount.is_mounted() {
            if let Err(error) = fs::remove_dir(mount.path()) {
                tracing::warn!(%error, "{} stays", mount.path().display());
            }
            return;
        }
        drop(busy);
        thread::sleep(AGAIN);
    }
}
