//! An implementation that mounts an image so that programs can work in it: the kernel's btrfs, or
//! ubtrfs.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::kernel::KernelMount;
use crate::need::ubtrfs_binary;
use crate::run::{Outcome, command, run, run_within};
use crate::scratch::{mount_table, scratch_dir};
use crate::threads_of::threads_of;

/// How long a mount or unmount of ubtrfs may take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// How many seconds a mount of ubtrfs may live before it counts as hanging and is torn down, unless
/// `UBTRFS_MOUNT_LIMIT` says otherwise.
const MOUNT_LIMIT: u64 = 900;

/// The implementation that mounts.
#[derive(Debug, Clone)]
pub enum Subject {
    /// The kernel's btrfs on a loop device.
    Kernel,
    /// `ubtrfs mount`, with the path of the binary.
    Ubtrfs(PathBuf),
}

impl Subject {
    /// Returns ubtrfs, whose binary must exist: see [`Need::Ubtrfs`](crate::need::Need::Ubtrfs).
    pub fn ubtrfs() -> Self {
        Self::Ubtrfs(ubtrfs_binary().expect("the ubtrfs binary"))
    }

    /// Returns its name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kernel => "the kernel",
            Self::Ubtrfs(_) => "ubtrfs",
        }
    }

    /// Mounts the volume of `images` with `options` as `-o` takes them (may be empty). Returns a
    /// refusal.
    pub fn try_mount(&self, images: &[&Path], options: &str) -> Result<Mount, Outcome> {
        match self {
            Self::Kernel => KernelMount::try_new(images, options).map(Mount::Kernel),
            Self::Ubtrfs(binary) => FuseMount::try_new(binary, images, options).map(Mount::Ubtrfs),
        }
    }

    /// Like [`Self::try_mount`], but a refusal fails the test.
    #[track_caller]
    pub fn mount(&self, images: &[&Path], options: &str) -> Mount {
        self.try_mount(images, options).unwrap_or_else(|outcome| panic!("{}", outcome.report()))
    }
}

/// A mounted volume; unmounted on drop.
#[derive(Debug)]
pub enum Mount {
    /// Mounted by the kernel.
    Kernel(KernelMount),
    /// Mounted by ubtrfs.
    Ubtrfs(FuseMount),
}

impl Mount {
    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        match self {
            Self::Kernel(mount) => mount.path(),
            Self::Ubtrfs(mount) => mount.dir.path(),
        }
    }

    /// Returns what the mount has written to the standard error stream; nothing for the kernel.
    pub fn said(&self) -> &str {
        match self {
            Self::Kernel(_) => "",
            Self::Ubtrfs(mount) => &mount.said,
        }
    }

    /// Unmounts. Fails the test if that fails, and if the kernel's btrfs complained of the volume.
    #[track_caller]
    pub fn unmount(self) {
        match self {
            Self::Kernel(mount) => {
                let complaints = mount.unmount();
                assert!(complaints.is_empty(), "the kernel complained:\n{}", complaints.join("\n"));
            }
            Self::Ubtrfs(mount) => mount.unmount(),
        }
    }
}

/// A volume mounted by the ubtrfs daemon; unmounted on drop, by force if need be.
#[derive(Debug)]
pub struct FuseMount {
    dir: tempfile::TempDir,
    binary: PathBuf,
    said: String,
    watchdog: Option<(Sender<()>, JoinHandle<()>)>,
}

impl FuseMount {
    fn try_new(binary: &Path, images: &[&Path], options: &str) -> Result<Self, Outcome> {
        let dir = scratch_dir();
        let mut line = Command::new(binary);
        line.arg("mount");
        if !options.is_empty() {
            line.arg("-o").arg(options);
        }
        let outcome = run_within(line.args(images).arg(dir.path()), TIMEOUT);
        let mut mount = Self { dir, binary: binary.to_owned(), said: outcome.stderr.clone(), watchdog: None };
        if !outcome.success() {
            return Err(outcome);
        }
        assert!(mount.is_mounted(), "success, but nothing is mounted: {}", outcome.report());
        mount.watchdog = Some(watch(mount.dir.path().to_owned()));
        Ok(mount)
    }

    fn is_mounted(&self) -> bool {
        mount_table().iter().any(|line| line.dir == self.dir.path())
    }

    /// Kills the server, waits for its end, and returns its statistics from before. The dead mount
    /// remains until it is unmounted.
    #[track_caller]
    pub fn kill_server(&self) -> serde_json::Value {
        let (report, process) = self.server();
        pidfd_send_signal(&process, Signal::KILL).expect("kill the server");
        assert_ends(&process);
        report
    }

    /// Returns the server's statistics, and its process.
    #[track_caller]
    pub fn server(&self) -> (serde_json::Value, OwnedFd) {
        let output = run(Command::new(&self.binary).args(["stats", "--json"]).arg(self.dir.path())).ok().stdout;
        let report: serde_json::Value = serde_json::from_str(&output).expect("a report as JSON");
        let number =
            report["pid"].as_i64().and_then(|number| Pid::from_raw(number as i32)).expect("the server's process");
        // The number can't belong to another process: the server, which has answered, lives as long
        // as this mount.
        let process = pidfd_open(number, PidfdFlags::empty()).expect("the server's process");
        (report, process)
    }

    #[track_caller]
    fn unmount(mut self) {
        let outcome = self.umount();
        assert!(outcome.success() && !self.is_mounted(), "ubtrfs umount: {}", outcome.report());
    }

    /// Calls `ubtrfs umount`, again while it answers "busy", as it does while a program that scans
    /// new mounts uses this one.
    fn umount(&mut self) -> Outcome {
        if let Some((stop, thread)) = self.watchdog.take() {
            drop(stop);
            let _ = thread.join();
        }
        let mut outcome = run_within(Command::new(&self.binary).arg("umount").arg(self.dir.path()), TIMEOUT);
        for _ in 0..20 {
            if outcome.success() || !outcome.stderr.contains("busy") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            outcome = run_within(Command::new(&self.binary).arg("umount").arg(self.dir.path()), TIMEOUT);
        }
        outcome
    }
}

/// Waits for the end of a process, which has to end soon.
#[track_caller]
pub fn assert_ends(process: &OwnedFd) {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)).expect("wait for a process");
    if ended != 1 {
        // The descriptor's information has the number of the process.
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).unwrap_or_default();
        let number = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
        panic!("the process does not end:\n{}", number.map(threads_of).unwrap_or_default());
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        if self.is_mounted() {
            let outcome = self.umount();
            if !outcome.success() || self.is_mounted() {
                eprintln!("ubtrfs umount: {}", outcome.report());
                tear_down(self.dir.path());
            }
        }
    }
}

/// Tears the mount at `dir` down when it lives too long, so that a process that waits for its
/// daemon gets an error.
fn watch(dir: PathBuf) -> (Sender<()>, JoinHandle<()>) {
    let limit = std::env::var("UBTRFS_MOUNT_LIMIT").ok().and_then(|text| text.parse().ok()).unwrap_or(MOUNT_LIMIT);
    let (stop, stopped) = channel();
    let thread = std::thread::spawn(move || {
        if stopped.recv_timeout(Duration::from_secs(limit)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{} lived for {limit} s: taken for hanging", dir.display());
            tear_down(&dir);
        }
    });
    (stop, thread)
}

/// Aborts the FUSE connection and removes the mount, whatever its daemon does.
fn tear_down(dir: &Path) {
    for line in mount_table().iter().filter(|line| line.dir == dir) {
        let device = line
            .device
            .split_once(':')
            .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
        if let Some((major, minor)) = device {
            // For `fuseblk` this is the number of the block device; for plain `fuse` the major
            // number is zero.
            let abort = format!("/sys/fs/fuse/connections/{}/abort", major << 20 | minor);
            let _ = std::fs::write(abort, "1");
        }
    }
    if !run(command("umount", &["-l"]).arg(dir)).success() {
        run(command("fusermount3", &["-u", "-z"]).arg(dir));
    }
}

/// Waits until the image is not locked any more. The kernel completes the I/O of a killed server,
/// which holds the lock until then.
#[track_caller]
pub fn settle(image: &Path) {
    let file = std::fs::File::open(image).expect("open an image");
    let start = std::time::Instant::now();
    while let Err(error) = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        assert!(start.elapsed() < Duration::from_secs(120), "{}: {error}", image.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}
