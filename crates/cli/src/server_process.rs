//! Finds the processes that serve a mount, according to the kernel: they have `/dev/fuse` open with
//! the mount's connection. The server of another user's mount may name any process as its own, so
//! its answer is only a hint where to look first (invariant 39).

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use ubtrfs_fuse::Connection;

use crate::failure::{Failure, Result};
use crate::mount_table::Mounted;

/// Major and minor number of `/dev/fuse`.
const DEVICE: (u32, u32) = (10, 229);

/// The processes that serve a mount.
#[derive(Debug, Default)]
pub struct Servers(Vec<OwnedFd>);

/// Whether a process serves a mount.
#[derive(Debug, PartialEq, Eq)]
enum Serves {
    Yes,
    No,
    /// Unknown: this kernel (before 6.16) doesn't show it, or doesn't show it to us.
    Unknown,
}

impl Servers {
    /// Finds the servers of a mount whose server says that its process is `said`.
    pub fn of(mounted: &Mounted, said: Option<u32>) -> Self {
        let number = Connection::of(mounted.device).number();
        if let Some(pid) = said
            && let Some(process) = open(pid)
        {
            match serves(&format!("/proc/{pid}"), number) {
                Serves::Yes => return Self(vec![process]),
                // The process is waited for, and nothing else is done to it. The kernel lets only
                // this user serve the mount.
                Serves::Unknown if mounted.user.is_some() && user_of(pid) == mounted.user => {
                    return Self(vec![process]);
                }
                Serves::Unknown | Serves::No => {}
            }
        }
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        // The pid may have been reused by the time it is opened, so open the process first, and
        // check it then.
        let open_if_serving = |pid: u32| {
            let process = open(pid)?;
            (serves(&format!("/proc/{pid}"), number) == Serves::Yes).then_some(process)
        };
        Self(pids.filter_map(open_if_serving).collect())
    }

    /// Waits until all of them end; returns whether they did before the deadline.
    pub fn have_ended(&self, deadline: Instant) -> Result<bool> {
        for process in &self.0 {
            loop {
                let left = deadline.saturating_duration_since(Instant::now()).min(Duration::from_secs(3600));
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) {
                    Ok(0) if Instant::now() >= deadline => return Ok(false),
                    Ok(0) | Err(Errno::INTR) => {}
                    Ok(_) => break,
                    Err(errno) => {
                        return Err(Failure::about("waiting for the server", &std::io::Error::from(errno)));
                    }
                }
            }
        }
        Ok(true)
    }
}

fn open(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}

/// The effective user of a process.
fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

/// Whether the process with this directory in `/proc` has `/dev/fuse` open with this connection.
fn serves(process: &str, connection: u32) -> Serves {
    let Ok(descriptors) = fs::read_dir(format!("{process}/fdinfo")) else { return Serves::Unknown };
    let mut found = Serves::No;
    for descriptor in descriptors.flatten() {
        let Ok(info) = fs::read_to_string(descriptor.path()) else { continue };
        let line = info.lines().find_map(|line| line.strip_prefix("fuse_connection:"));
        match line.and_then(|number| number.trim().parse::<u32>().ok()) {
            Some(number) if connection == number => return Serves::Yes,
            None if is_fuse(&Path::new(process).join("fd").join(descriptor.file_name())) => found = Serves::Unknown,
            Some(_) | None => {}
        }
    }
    found
}

fn is_fuse(link: &Path) -> bool {
    // The descriptor may be of a file that a FUSE server serves, which is not asked.
    rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).is_ok_and(|found| {
        FileType::from_raw_mode(found.stx_mode.into()) == FileType::CharacterDevice
            && (found.stx_rdev_major, found.stx_rdev_minor) == DEVICE
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_no_device_open_serves_nothing() {
        assert_eq!(serves("/proc/self", 0), Serves::No);
        assert_eq!(serves("/proc/0", 0), Serves::Unknown);
    }

    /// Invariant 39.
    #[test]
    fn a_process_that_a_mount_names_is_none_of_its_servers_for_that() {
        let mounted = Mounted {
            number: 1,
            own_options: Vec::new(),
            point: "/point".into(),
            device: (4095, 4095),
            kind: "fuse.ubtrfs".into(),
            source: "source".into(),
            read_only: false,
            options: Vec::new(),
            user: Some(rustix::process::geteuid().as_raw()),
            group: None,
        };
        assert!(Servers::of(&mounted, Some(std::process::id())).0.is_empty());
    }

    #[test]
    fn processes_that_live_are_waited_for_until_the_deadline() {
        let servers = Servers(vec![open(std::process::id()).unwrap()]);
        assert!(!servers.have_ended(Instant::now() + Duration::from_millis(20)).unwrap());
        assert!(Servers::default().have_ended(Instant::now()).unwrap());
    }
}
