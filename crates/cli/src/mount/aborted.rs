//! Has the kernel show a mount as read-only that has turned read-only after an error.
//!
//! The kernel's own btrfs makes its mount read-only then. Of a FUSE mount the kernel sees only that
//! each change fails with EROFS, so the server makes it read-only, as root does by a remount: then
//! findmnt(8), access(2) and open(2) show it, too. The kernel refuses that as long as a file is
//! open for writing, and root can undo it by a remount without a helper, so the server tries again
//! in both cases. A server without root's rights can't do that, and its mount is shown as writable.

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use ubtrfs_fuse::mount::Mount;
use ubtrfs_server::Shared;

/// The interval of the attempts while files are open for writing.
const AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Has the mount shown as read-only once the file system turns read-only.
pub fn show(mount: &Arc<Mount>, server: &Arc<Shared>) {
    let (mount, shared) = (Arc::downgrade(mount), Arc::downgrade(server));
    server.engine().on_abort(move || {
        let (mount, shared) = (Weak::clone(&mount), Weak::clone(&shared));
        // The error may occur in a thread that serves requests, and the kernel sends requests
        // during the remount; so another thread does that.
        let started = thread::Builder::new().name("read-only".into()).spawn(move || keep_read_only(&mount, &shared));
        if let Err(error) = started {
            tracing::warn!(%error, "the mount goes on to be shown as writable");
        }
    });
}

fn keep_read_only(mount: &Weak<Mount>, server: &Weak<Shared>) {
    let mut said_busy = false;
    let Ok(table) = File::open(ubtrfs_mounts::TABLE) else { return };
    while let (Some(mount), Some(server)) = (mount.upgrade(), server.upgrade()) {
        if server.is_ending() || !mount.is_mounted() {
            return;
        }
        let done = if mount.is_listed_read_only() { Ok(()) } else { mount.make_read_only() };
        let limit = match done {
            Ok(()) => None,
            Err(error) if is_busy(&error) => {
                if !std::mem::replace(&mut said_busy, true) {
                    tracing::warn!("files are open for writing: until they are closed the kernel shows rw");
                }
                Some(&AGAIN)
            }
            Err(error) => {
                tracing::warn!(%error, "the mount goes on to be shown as writable");
                return;
            }
        };
        drop((mount, server));
        // A remount changes the table.
        let polled = poll(&mut [PollFd::new(&table, PollFlags::PRI)], limit);
        if polled.is_err_and(|errno| errno != Errno::INTR) {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::BUSY)
}
