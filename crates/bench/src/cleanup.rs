//! Clean-up: nothing stays behind, in whatever way a run ends.
//!
//! Everything that is mounted, attached or stored is in one directory ("the yard") whose name has
//! the id of the process that made it. Guards remove it at the usual end and on panics. SIGINT and
//! SIGTERM end the programs that run, and the workload notices the signal by [`check`]; if it
//! doesn't in time, the yard is cleared by force. After a SIGKILL the next run clears it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Failure, Result};
use crate::throttle;

/// The beginning of a yard's name. The process follows and, after a second dash, something random.
const PREFIX: &str = "ubtrfs-bench-";
/// The interval of checks for signals and time limits.
const INTERVAL: Duration = Duration::from_millis(50);
/// The time in which the usual end has to happen after a signal.
const GRACE_PERIOD: Duration = Duration::from_secs(60);

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
static RUNNING: Mutex<Vec<Running>> = Mutex::new(Vec::new());

/// A program that runs as a process group of its own.
struct Running {
    group: Pid,
    until: Instant,
}

/// Returns whether a signal has requested the end.
pub fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails if a signal has requested the end.
pub fn check() -> Result<()> {
    if interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Ends the program of process group `group` when a signal comes or `limit` is over, until the
/// guard is dropped.
pub fn watch(group: Pid, limit: Duration) -> Watched {
    RUNNING.lock().push(Running { group, until: Instant::now() + limit });
    Watched(group)
}

/// See [`watch`].
pub struct Watched(Pid);

impl Drop for Watched {
    fn drop(&mut self) {
        RUNNING.lock().retain(|running| running.group != self.0);
    }
}

/// Begins to listen to signals and time limits. Later calls do nothing.
pub fn listen(yard: &Path) -> Result<()> {
    let flag = Arc::new(AtomicBool::new(false));
    if INTERRUPTED.set(Arc::clone(&flag)).is_err() {
        return Ok(());
    }
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    let yard = yard.to_owned();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut since = None;
        loop {
            std::thread::sleep(INTERVAL);
            let ending = flag.load(Ordering::Relaxed);
            for running in RUNNING.lock().iter().filter(|running| ending || running.until < Instant::now()) {
                let _ = kill_process_group(running.group, Signal::KILL);
            }
            if ending && since.get_or_insert_with(Instant::now).elapsed() > GRACE_PERIOD {
                eprintln!("ubtrfs-bench: something hangs; clearing by force");
                clear(&yard);
                std::process::exit(130);
            }
        }
    })?;
    Ok(())
}

/// A directory for images and mount points; cleared when it is dropped.
#[derive(Debug)]
pub struct Yard {
    path: PathBuf,
}

impl Yard {
    /// Makes a yard in `dir`, after it has cleared those of killed runs.
    pub fn new(dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().map_err(|error| Failure::about(dir.display(), &error))?;
        for entry in std::fs::read_dir(&dir)?.flatten() {
            if maker(&entry.path()).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                clear(&entry.path());
            }
        }
        let path = tempfile::Builder::new().prefix(&format!("{PREFIX}{}-", std::process::id())).tempdir_in(dir)?.keep();
        Ok(Self { path })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        clear(&self.path);
    }
}

/// Returns the process that made a yard.
fn maker(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Unmounts and detaches everything in `yard`, and removes it.
fn clear(yard: &Path) {
    let devices: Vec<PathBuf> =
        loop_devices().into_iter().filter(|(_, file)| file.starts_with(yard)).map(|(device, _)| device).collect();
    for device in &devices {
        throttle::lift(yard, device);
    }
    for (device, directory) in mounts() {
        if directory.starts_with(yard) {
            if let Some(connection) = connection(&device) {
                // Only FUSE mounts have this file; writing to it ends all waits for the server.
                let _ = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), b"1");
            }
            if !quietly(Command::new("umount").arg("-l").arg(&directory)) {
                quietly(Command::new("fusermount3").arg("-uz").arg(&directory));
            }
        }
    }
    for device in devices {
        quietly(Command::new("losetup").arg("-d").arg(device));
    }
    if yard.exists() && std::fs::remove_dir_all(yard).is_err() {
        eprintln!("ubtrfs-bench: {} could not be removed", yard.display());
    }
}

/// Returns the number of a device's mount in FUSE's control files, for a device as `major:minor`.
fn connection(device: &str) -> Option<u32> {
    let (major, minor) = device.split_once(':')?;
    Some(major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?)
}

fn quietly(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Returns all mounts as `major:minor` and the directory, the latest first.
pub fn mounts() -> Vec<(String, PathBuf)> {
    let all = ubtrfs_mounts::all().unwrap_or_default().into_iter();
    let mut mounts: Vec<_> =
        all.map(|mounted| (format!("{}:{}", mounted.device.0, mounted.device.1), mounted.point)).collect();
    mounts.reverse();
    mounts
}

/// Returns all loop devices with the files behind them.
fn loop_devices() -> Vec<(PathBuf, PathBuf)> {
    let blocks = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    blocks
        .filter_map(|block| {
            let file = std::fs::read_to_string(block.path().join("loop/backing_file")).ok()?;
            let file = file.trim_end().trim_end_matches(" (deleted)").to_owned();
            Some((Path::new("/dev").join(block.file_name()), file.into()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_the_numbers_of_devices() {
        assert_eq!([connection("0:53"), connection("7:1"), connection("x")], [Some(53), Some(7 << 20 | 1), None]);
    }

    #[test]
    fn yards_identify_their_makers_and_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(format!("{PREFIX}4294967290-abc"));
        let other = dir.path().join("ubtrfs-bench-results.json");
        std::fs::create_dir(&left).unwrap();
        std::fs::write(&other, "").unwrap();
        let yard = Yard::new(dir.path()).unwrap();
        assert!(!left.exists() && other.exists());
        assert_eq!(maker(yard.path()), Some(std::process::id()));
        std::fs::write(yard.path().join("image"), "x").unwrap();
        let path = yard.path().to_owned();
        drop(yard);
        assert!(!path.exists());
    }
}
