//! The kernel's end of a mount, as its control file system for FUSE shows it.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

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
        fs::write(self.place.join("abort"), b"1").is_ok()
    }
}
