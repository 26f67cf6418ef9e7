//! The kernel's end of a mount, as its control file system for FUSE shows it.

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
    /// That of the mount whose files have this device number.
    pub fn of((major, minor): (u32, u32)) -> Self {
        let number = major << 20 | minor;
        Self { number, place: format!("/sys/fs/fuse/connections/{number}").into() }
    }

    /// Its number, as the kernel shows it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether no request is in progress, or none is within that time. Where the control file
    /// system isn't mounted, that is unknown: then this waits as long as a few requests take.
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

    /// Aborts it: all requests fail from then on, and its server ends. Returns whether it is
    /// aborted.
    pub fn abort(&self) -> bool {
        self.open_abort().and_then(|mut file| file.write_all(b"1")).is_ok()
    }

    /// The file to which a write aborts it, now or later: this connection, and no later one of the
    /// same number.
    pub fn open_abort(&self) -> io::Result<File> {
        self.open("abort", OFlags::WRONLY)
    }

    /// Has its end noticed, for this connection and no later one of the same number.
    pub fn observe(&self) -> io::Result<Observed> {
        Ok(Observed { waiting: self.open("waiting", OFlags::PATH)? })
    }

    fn open(&self, name: &str, how: OFlags) -> io::Result<File> {
        let opened = rustix::fs::open(self.place.join(name), how | OFlags::CLOEXEC, Mode::empty());
        // Nobody has mounted the control file system, as in many containers.
        Ok(opened.map(File::from).or_else(|error| self.open_unmounted(name, how).map_err(|_| error))?)
    }

    /// Opens a file of the connection in a control file system that is mounted nowhere. Root may.
    fn open_unmounted(&self, name: &str, how: OFlags) -> rustix::io::Result<File> {
        let new = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&new)?;
        let root = fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let path = format!("{}/{name}", self.number);
        Ok(openat(root, path, how | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}

/// A connection that is looked at until it has ended.
#[derive(Debug)]
pub struct Observed {
    waiting: File,
}

impl Observed {
    /// Whether its file system still exists in the kernel, also when it is aborted: it is mounted
    /// somewhere, or files of it are open. Until it doesn't, no other file system gets its device
    /// number.
    pub fn exists(&self) -> bool {
        // The kernel empties the file when it removes it. Each time that it is open it can be read
        // once.
        let waiting = format!("/proc/self/fd/{}", self.waiting.as_raw_fd());
        fs::read(waiting).is_ok_and(|content| !content.is_empty())
    }
}
