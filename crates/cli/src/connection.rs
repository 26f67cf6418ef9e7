//! The kernel's end of a mount, as its control file system for FUSE shows it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
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
        let opened = OpenOptions::new().write(true).open(self.place.join("abort"));
        // Nobody has mounted the control file system, as in many containers.
        opened.or_else(|error| self.open_unmounted("abort").map_err(|_| error))
    }

    /// Opens a file of the connection in a control file system that is mounted nowhere. Root may.
    fn open_unmounted(&self, name: &str) -> rustix::io::Result<File> {
        let new = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&new)?;
        let root = fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let path = format!("{}/{name}", self.number);
        Ok(openat(root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}
