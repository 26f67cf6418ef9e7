//! A volume that the command mounts.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::mkfs_btrfs;
use ubtrfs_testkit::run::{Outcome, run};
use ubtrfs_testkit::scratch::{mount_points, scratch_dir};
use ubtrfs_testkit::threads_of::threads_of;

/// Whether requests arrive over rings (`io_uring`) in this run of the tests.
pub const OVER_RINGS: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"mounted_ring");

/// The transport of requests: tests of the mount itself use each of the two in turn, and tables of
/// rules with many thousands of requests use the faster one.
pub const TRANSPORT: &str = match env!("CARGO_CRATE_NAME").as_bytes() {
    b"mounted_ring" => "transport=ring",
    b"posix" => "transport=auto",
    _ => "transport=dev",
};

/// What a mount needs in this run of the tests.
pub const FUSE: Need = if OVER_RINGS { Need::FuseRing } else { Need::Fuse };

/// Runs `ubtrfs` to its end.
pub fn ubtrfs<S: AsRef<OsStr>>(arguments: &[S]) -> Outcome {
    run(Command::new(env!("CARGO_BIN_EXE_ubtrfs")).args(arguments))
}

/// Asserts that a run failed with one sentence that contains `words`.
#[track_caller]
pub fn fails(outcome: &Outcome, words: &str) {
    assert_eq!(outcome.code(), Some(1), "{}", outcome.report());
    assert!(outcome.stderr.lines().count() == 1 && outcome.stderr.contains(words), "{}", outcome.report());
}

/// Asserts that two tours have the same results.
#[track_caller]
pub fn assert_same(ours: &[String], theirs: &[String]) {
    let differences: Vec<_> = ours.iter().zip(theirs).filter(|(ours, theirs)| ours != theirs).collect();
    assert!(differences.is_empty(), "ours and theirs: {differences:#?}");
    assert_eq!(ours.len(), theirs.len());
}

/// Aborts a FUSE connection. The file is opened while the connection exists: once that has ended, a
/// write aborts nothing, though the connection of another mount may have its number.
pub struct Abort(File);

impl Abort {
    pub fn of(volume: &Volume) -> Self {
        let device = std::fs::metadata(&volume.point).unwrap().dev();
        Self::of_connection(&(rustix::fs::major(device) << 20 | rustix::fs::minor(device)).to_string())
    }

    pub fn of_connection(number: &str) -> Self {
        let path = format!("/sys/fs/fuse/connections/{number}/abort");
        Self(OpenOptions::new().write(true).open(path).unwrap())
    }

    pub fn abort(&self) {
        let _ = (&self.0).write_all(b"1");
    }
}

/// Returns the content of a file of the volume on a device, read without a mount.
#[track_caller]
pub fn cat(device: &Path, path: &str) -> String {
    ubtrfs(&["cat".as_ref(), device.as_os_str(), path.as_ref()]).ok().stdout
}

/// An image and a mount point. If a volume is still mounted there at the end, it is unmounted.
pub struct Volume {
    pub dir: TempDir,
    pub image: PathBuf,
    pub point: PathBuf,
}

impl Volume {
    /// Asserts that a tour has the same results in a new volume that the kernel has mounted.
    #[track_caller]
    pub fn assert_kernels_tour_is_the_same(&self, ours: &[String], tour: fn(&Path) -> Vec<String>) {
        assert_same(ours, &self.tour_of_kernels("", |_| (), tour));
    }

    /// Returns the results of a tour in a new volume that the kernel has mounted, which `prepare`
    /// has changed like [`image`](Self::image). Its image is called `kernels`.
    pub fn tour_of_kernels<T>(&self, options: &str, prepare: fn(&Path), tour: impl FnOnce(&Path) -> T) -> T {
        let other = self.dir.path().join("kernels");
        mkfs_btrfs(&other, 256 << 20, &[]);
        prepare(&other);
        let kernel = KernelMount::new(&[&other], options);
        tour(kernel.path())
    }

    /// Makes a new volume.
    pub fn new() -> Self {
        Self::of_size("256M")
    }

    /// Makes a new volume of this size, in the format of `mkfs`.
    pub fn of_size(size: &str) -> Self {
        let volume = Self::without_image();
        ubtrfs(&["mkfs".as_ref(), "--size".as_ref(), size.as_ref(), volume.image.as_os_str()]).ok();
        volume
    }

    /// Makes the directories for a volume, without the image.
    pub fn without_image() -> Self {
        let dir = scratch_dir();
        let (image, point) = (dir.path().join("image"), dir.path().join("mnt"));
        std::fs::create_dir(&point).unwrap();
        Self { dir, image, point }
    }

    /// Mounts with these options, which may be empty.
    pub fn try_mount(&self, options: &str) -> Outcome {
        self.try_mount_device(&self.image, options)
    }

    pub fn try_mount_device(&self, device: &Path, options: &str) -> Outcome {
        let mut arguments: Vec<&OsStr> = vec!["mount".as_ref(), "-o".as_ref(), TRANSPORT.as_ref()];
        if !options.is_empty() {
            arguments.extend(["-o".as_ref(), options.as_ref()] as [&OsStr; 2]);
        }
        arguments.extend([device.as_os_str(), self.point.as_os_str()]);
        ubtrfs(&arguments)
    }

    #[track_caller]
    pub fn mount(&self, options: &str) {
        self.try_mount(options).ok();
        assert!(self.is_mounted());
    }

    pub fn is_mounted(&self) -> bool {
        mount_points().contains(&self.point)
    }

    /// Unmounts; transient users of the mount get time to finish.
    pub fn try_umount(&self) -> Outcome {
        let unmount = || ubtrfs(&["umount".as_ref(), self.point.as_os_str()]);
        let mut outcome = unmount();
        for _ in 0..20 {
            if !outcome.stderr.contains("busy") {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            outcome = unmount();
        }
        outcome
    }

    #[track_caller]
    pub fn umount(&self) {
        self.try_umount().ok();
        assert!(!self.is_mounted());
    }

    /// Returns the statistics of the server.
    pub fn stats(&self) -> Value {
        let outcome = ubtrfs(&["stats".as_ref(), "--json".as_ref(), self.point.as_os_str()]).ok();
        serde_json::from_str(&outcome.stdout).unwrap()
    }

    /// Returns the process of the server.
    pub fn server(&self) -> Server {
        Server(i32::try_from(self.stats()["pid"].as_u64().unwrap()).unwrap())
    }

    #[track_caller]
    pub fn check(&self) {
        ubtrfs(&["check".as_ref(), self.image.as_os_str()]).ok();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.is_mounted() {
            run(Command::new("umount").arg("-l").arg(&self.point));
        }
    }
}

/// The process of a server.
pub struct Server(pub i32);

impl Server {
    pub fn signal(&self, signal: &str) {
        run(Command::new("kill").arg(format!("-{signal}")).arg(self.0.to_string())).ok();
    }

    /// Waits until the process has ended.
    #[track_caller]
    pub fn ended(&self) {
        let limit = Instant::now() + Duration::from_secs(60);
        // A zombie has ended, too.
        let is_alive = || {
            let status = std::fs::read_to_string(format!("/proc/{}/status", self.0));
            status.is_ok_and(|status| !status.contains("\nState:\tZ") && !status.contains("\nState:\tX"))
        };
        while is_alive() {
            assert!(Instant::now() < limit, "the server does not end:\n{}", threads_of(self.0.cast_unsigned()));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
