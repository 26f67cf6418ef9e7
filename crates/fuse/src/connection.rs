//! The kernel's end of a mount, as the control file system for FUSE shows it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// The connection of a mount to its server.
#[derive(Debug, Clone)]
pub struct Connection {
    number: u32,
    place: PathBuf,
}

impl Connection {
    /// The connection of the mount whose files have this device number.
    pub fn of((major, minor): (u32, u32)) -> Self {
        let number = major << 20 | minor;
        Self { number, place: format!("/sys/fs/fuse/connections/{number}").into() }
    }

    /// Its number, as the kernel shows it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether there is a moment within `time` in which no request is in progress. Where
    /// the control file system isn't mounted that is unknown; then this waits as long as a few
    /// requests take.
    pub fn is_idle_within(&self, time: Duration) -> bool {
        const POLL_INTERVAL: Duration = Duration::from_millis(5);
        let deadline = Instant::now() + time;
        loop {
            match fs::read_to_string(self.place.join("waiting")) {
                Ok(waiting) if waiting.trim() != "0" => {}
                Ok(_) => return true,
                Err(_) => {
                    thread::sleep(40 * POLL_INTERVAL);
                    return true;
                }
            }
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Aborts the connection: all requests fail from then on, and its server ends. Returns whether
    /// it is aborted.
    pub fn abort(&self) -> bool {
        self.open_abort().and_then(|mut file| file.write_all(b"1")).is_ok()
    }

    /// Opens the file to which a write aborts the connection, now or later. It belongs to this
    /// connection, and to no later one of the same number.
    pub fn open_abort(&self) -> io::Result<File> {
        self.open("abort", OFlags::WRONLY)
    }

    /// Returns a handle that tells when this connection has ended, whatever later connection gets
    /// the same number.
    pub fn observe(&self) -> io::Result<Observed> {
        Ok(Observed { waiting: self.open("waiting", OFlags::PATH)? })
    }

    fn open(&self, name: &str, how: OFlags) -> io::Result<File> {
        let opened = rustix::fs::open(self.place.join(name), how | OFlags::CLOEXEC, Mode::empty());
        // The control file system may not be mounted, as in many containers.
        Ok(opened.map(File::from).or_else(|error| self.open_unmounted(name, how).map_err(|_| error))?)
    }

    /// Opens a file of the connection in a control file system that is mounted nowhere. Needs root.
    fn open_unmounted(&self, name: &str, how: OFlags) -> rustix::io::Result<File> {
        let new = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&new)?;
        let root = fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let path = format!("{}/{name}", self.number);
        Ok(openat(root, path, how | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}

/// A handle that tells whether a connection has ended.
#[derive(Debug)]
pub struct Observed {
    waiting: File,
}

impl Observed {
    /// Returns whether the connection's file system still exists in the kernel, even if aborted,
    /// because it is mounted somewhere or files of it are open. As long as it exists, no other file
    /// system gets its device number.
    pub fn exists(&self) -> bool {
        // The kernel empties the file when it removes it. The file can be read once after each
        // open.
        let waiting = format!("/proc/self/fd/{}", self.waiting.as_raw_fd());
        fs::read(waiting).is_ok_and(|content| !content.is_empty())
    }
}
