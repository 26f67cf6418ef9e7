//! Limits a block device's bandwidth by the kernel's blkio controller (cgroup v1). A rule of its
//! root group also applies to writes of the kernel's threads; `io.max` of cgroup v2 does not apply
//! to that group.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

use crate::failure::{Failure, Result};

/// The directory in a yard on which the controller is mounted.
const DIRECTORY: &str = "blkio";
const RULES: [&str; 2] = ["blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"];

/// A limit; it ends when this is dropped.
#[derive(Debug)]
pub struct Limit {
    controller: PathBuf,
    device: PathBuf,
}

impl Limit {
    /// Limits reads from `device`, and writes to it, to so many bytes per second each. The
    /// controller is mounted in `yard`.
    pub fn new(yard: &Path, device: &Path, bytes: u64) -> Result<Self> {
        let impossible = |why: String| Failure::Impossible(format!("no bandwidth can be limited: {why}"));
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.split_once(":blkio:"));
        if let Some((_, group)) = own.filter(|(_, group)| *group != "/") {
            return Err(impossible(format!("this process is in the group {group} of blkio, not in its root")));
        }
        let controller = yard.join(DIRECTORY);
        if !controller.join(RULES[0]).exists() {
            std::fs::create_dir_all(&controller)?;
            mount("none", &controller, "cgroup", MountFlags::empty(), c"blkio")
                .map_err(|error| impossible(format!("the controller blkio of cgroup v1: {error}")))?;
        }
        rule(&controller, device, bytes).map_err(|error| impossible(error.to_string()))?;
        Ok(Self { controller, device: device.into() })
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Err(error) = rule(&self.controller, &self.device, 0) {
            eprintln!("ubtrfs-bench: the bandwidth of {} is still limited: {error}", self.device.display());
        }
    }
}

/// Removes a limit that a process of this yard may have left.
pub fn lift(yard: &Path, device: &Path) {
    // Without a controller there is no limit.
    let _ = rule(&yard.join(DIRECTORY), device, 0);
}

/// Sets the limit of a device; 0 removes it.
fn rule(controller: &Path, device: &Path, bytes: u64) -> io::Result<()> {
    let name = device.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let number = std::fs::read_to_string(Path::new("/sys/block").join(name).join("dev"))?;
    for rule in RULES {
        // Opens without O_CREAT, so that no file is made if no controller is mounted.
        let mut file = std::fs::OpenOptions::new().write(true).open(controller.join(rule))?;
        io::Write::write_all(&mut file, format!("{} {bytes}", number.trim()).as_bytes())?;
    }
    Ok(())
}
